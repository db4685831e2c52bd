package config

import (
	"fmt"
	"net"
	"strings"

	"github.com/spf13/pflag"
)

// A Tier says which part of a deployment a process is; the text is the command that runs
// it.
type Tier string

// The tiers. Standalone is all of them in one process.
const (
	Standalone Tier = "standalone"
	Router     Tier = "router"
	Store      Tier = "store"
	Proxy      Tier = "proxy"
)

// tiers is a set of them.
type tiers uint8

const (
	standalone tiers = 1 << iota
	routerNode
	storeNode
	proxyNode

	cluster    = routerNode | storeNode | proxyNode
	everywhere = standalone | cluster
)

func (t Tier) set() tiers {
	return map[Tier]tiers{Standalone: standalone, Router: routerNode, Store: storeNode, Proxy: proxyNode}[t]
}

// Cluster says which other tiers a process lets in, and how it shows itself to them.
// Without anything it speaks cleartext and lets everybody in.
type Cluster struct {
	// TokenFile has the secret that the tiers show each other (cluster.token_file): one on
	// each line, of which a process shows the first and takes any.
	TokenFile string
	// CertFile and KeyFile are PEM files with the certificate that the process shows
	// (cluster.cert_file, cluster.key_file), CAFile one with the authorities that sign those
	// of other tiers (cluster.ca_file).
	CertFile, KeyFile, CAFile string
}

// Etcd says where routers share their metadata. Without endpoints a router has them for
// itself, in its data folder.
type Etcd struct {
	// Endpoints are the addresses of the members of etcd (etcd.endpoints).
	Endpoints []string
	// Prefix is what the keys begin with (etcd.prefix).
	Prefix string
	// Username is a user of etcd (etcd.username), PasswordFile has the password
	// (etcd.password_file). Empty: none is asked for.
	Username, PasswordFile string
	// CAFile is a PEM file with the authorities that sign the certificates of etcd
	// (etcd.ca_file); empty: cleartext. CertFile and KeyFile are the certificate that the
	// router shows (etcd.cert_file, etcd.key_file).
	CertFile, KeyFile, CAFile string
}

// The ports of the tiers for each other, and of etcd.
const (
	routerListen = ":8082"
	storeListen  = ":8083"
	routerPort   = "8082"
	etcdPort     = "2379"
)

// DefaultOf returns the configuration of a process of the tier that nobody configured.
func DefaultOf(t Tier) Config {
	c := Default()
	c.Tier = t
	switch t {
	case Router:
		c.Listen, c.DataDir = routerListen, "perigee-router"
	case Store:
		c.Listen, c.DataDir, c.Shard = storeListen, "perigee-store", ""
	case Proxy:
		c.DataDir = "perigee-proxy"
	}
	return c
}

// A nameList is a value over a list of texts, separated by commas where it comes as one
// text.
type nameList struct{ value[[]string] }

func names(target *[]string) pflag.Value {
	parse := func(s string) ([]string, error) {
		var list []string
		for _, name := range strings.Split(s, ",") {
			if name = strings.TrimSpace(name); name != "" {
				list = append(list, name)
			}
		}
		return list, nil
	}
	return nameList{value[[]string]{target, "addresses", parse, func(list []string) string { return strings.Join(list, ",") }}}
}

// setEntries sets it from a list in a file.
func (v nameList) setEntries(entries []any) error {
	list := make([]string, len(entries))
	for i, e := range entries {
		text, ok := e.(string)
		if !ok || strings.Contains(text, ",") {
			return fmt.Errorf("entry %d must be a single text", i)
		}
		list[i] = text
	}
	return v.Set(strings.Join(list, ","))
}

// complete sets what follows from other settings.
func (c *Config) complete() {
	if c.Tier == Store && c.Shard == "" {
		c.Shard = c.Name
	}
	withPort(c.Routers, routerPort)
	withPort(c.Etcd.Endpoints, etcdPort)
}

// withPort adds the port to the addresses that have none.
func withPort(addrs []string, port string) {
	for i, addr := range addrs {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			addrs[i] = net.JoinHostPort(addr, port)
		}
	}
}

// validateTier checks what the tier needs to find the others and to be found.
func (c Config) validateTier() error {
	t := c.Tier.set()
	if t&(routerNode|storeNode) != 0 {
		if reason := checkAddress(c.Listen); reason != "" {
			return invalid("listen", c.Listen, reason)
		}
		if sameAddress(c.HTTPListen, c.Listen) {
			return invalid("http_listen", c.HTTPListen, "must differ from listen")
		}
	}
	if t&(storeNode|proxyNode) != 0 {
		if len(c.Routers) == 0 {
			return invalid("router", "", "must name the address of a router")
		}
		for _, addr := range c.Routers {
			if reason := checkAddress(addr); reason != "" {
				return invalid("router", addr, reason)
			}
		}
		if reason := checkAdvertise(c.Announce); reason != "" {
			return invalid("announce", c.Announce, reason)
		}
	}
	if t&storeNode != 0 || t&proxyNode != 0 && c.Name != "" {
		if reason := checkShard(c.Name); reason != "" {
			return invalid("name", c.Name, reason)
		}
	}
	switch cl := c.Cluster; {
	case cl.CertFile != "" && cl.KeyFile == "":
		return invalid("cluster.cert_file", cl.CertFile, "needs cluster.key_file beside it")
	case cl.KeyFile != "" && cl.CertFile == "":
		return invalid("cluster.key_file", cl.KeyFile, "needs cluster.cert_file beside it")
	case cl.CertFile != "" && cl.CAFile == "":
		return invalid("cluster.cert_file", cl.CertFile, "needs cluster.ca_file beside it")
	}
	if c.Tier == Router {
		return c.Etcd.validate()
	}
	return nil
}

func (e Etcd) validate() error {
	for _, addr := range e.Endpoints {
		if reason := checkAdvertise(addr); reason != "" {
			return invalid("etcd.endpoints", addr, reason)
		}
	}
	switch {
	case !strings.HasPrefix(e.Prefix, "/") || len(e.Prefix) < 2 || len(e.Prefix) > maxEtcdPrefix || strings.HasSuffix(e.Prefix, "/"):
		return invalid("etcd.prefix", e.Prefix, fmt.Sprintf("must begin with a slash, not end with one, and have 2 to %d characters", maxEtcdPrefix))
	case len(e.Endpoints) == 0 && (e.Username != "" || e.PasswordFile != "" || e.CAFile != "" || e.CertFile != "" || e.KeyFile != ""):
		return invalid("etcd.endpoints", "", "must name at least one when other keys of etcd are set")
	case e.Username != "" && e.PasswordFile == "":
		return invalid("etcd.username", e.Username, "needs etcd.password_file beside it")
	case e.PasswordFile != "" && e.Username == "":
		return invalid("etcd.password_file", e.PasswordFile, "needs etcd.username beside it")
	case e.CertFile != "" && e.KeyFile == "":
		return invalid("etcd.cert_file", e.CertFile, "needs etcd.key_file beside it")
	case e.KeyFile != "" && e.CertFile == "":
		return invalid("etcd.key_file", e.KeyFile, "needs etcd.cert_file beside it")
	case e.CertFile != "" && e.CAFile == "":
		return invalid("etcd.cert_file", e.CertFile, "needs etcd.ca_file beside it")
	}
	return nil
}
