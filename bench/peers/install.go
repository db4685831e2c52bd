package peers

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/perigee-mq/perigee/bench/figures"
	"github.com/perigee-mq/perigee/bench/server"
)

// kinds are the servers that there are.
type kinds struct {
	perigee   *server.Perigee
	noop      *server.Noop
	rocketmq  *server.RocketMQ
	jetstream *server.JetStream
	rabbitmq  *server.RabbitMQ
}

// installTimeout bounds the installation of one server.
const installTimeout = 5 * time.Minute

// install finds or installs the servers, each from where its own people publish it. One
// that is not to be had is a note.
func (c *comparison) install(ctx context.Context, self server.Noop) (k kinds) {
	var versions []string
	for _, s := range []struct {
		name, title string
		install     func(context.Context) (version string, err error)
	}{
		{namePerigee, figures.Perigee, func(context.Context) (string, error) {
			k.perigee = &server.Perigee{Binary: c.perigee}
			_, err := os.Stat(c.perigee)
			return c.record.Value(figures.KeyCommit), err
		}},
		{nameNoop, figures.Noop, func(context.Context) (string, error) {
			k.noop = &self
			return "grpc-go, in this repository", nil
		}},
		{nameJetStream, figures.JetStream, func(ctx context.Context) (version string, err error) {
			k.jetstream, version, err = installJetStream(ctx, c.cache)
			return version, err
		}},
		{nameRocketMQ, figures.RocketMQ, func(ctx context.Context) (version string, err error) {
			k.rocketmq, version, err = installRocketMQ(ctx, c.cache)
			return version, err
		}},
		{nameRabbitMQ, figures.RabbitMQ, func(ctx context.Context) (version string, err error) {
			k.rabbitmq, version, err = installRabbitMQ(ctx)
			return version, err
		}},
	} {
		if !c.wants(s.name) {
			continue
		}
		c.say("install %s", s.name)
		limited, cancel := context.WithTimeout(ctx, installTimeout)
		version, err := s.install(limited)
		cancel()
		if err != nil {
			c.note("%s is not compared, it could not be installed: %v", s.title, err)
			continue
		}
		versions = append(versions, fmt.Sprintf("%s %s", s.title, version))
	}
	c.record.Set(figures.KeyVersions, strings.Join(versions, "; "))
	return k
}

// command runs a command and returns its output.
func command(ctx context.Context, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		text := out.String() + errs.String()
		return "", fmt.Errorf("%s: %w: %s", name, err, strings.TrimSpace(text[max(0, len(text)-500):]))
	}
	return strings.TrimSpace(out.String()), nil
}

// natsModule is a tool of the module that this is in, which says its version.
const natsModule = "github.com/nats-io/nats-server/v2"

func installJetStream(ctx context.Context, cache string) (*server.JetStream, string, error) {
	version, err := command(ctx, "go", "list", "-m", "-f", "{{.Version}}", natsModule)
	if err != nil {
		return nil, "", err
	}
	binary := filepath.Join(cache, "nats-server-"+version)
	if _, err := os.Stat(binary); err != nil {
		if _, err := command(ctx, "go", "build", "-trimpath", "-o", binary, natsModule); err != nil {
			return nil, "", err
		}
	}
	return &server.JetStream{Binary: binary}, version, nil
}

// rocketPom is the list of what Apache RocketMQ needs.
const rocketPom = "rocketmq.pom.xml"

//go:embed rocketmq.pom.xml
var files embed.FS

// installRocketMQ lets Maven fetch the archives and lists them.
func installRocketMQ(ctx context.Context, cache string) (*server.RocketMQ, string, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return nil, "", err
	}
	project, err := files.ReadFile(rocketPom)
	if err != nil {
		return nil, "", err
	}
	found := regexp.MustCompile(`<rocketmq.version>(.*)</rocketmq.version>`).FindSubmatch(project)
	if found == nil {
		return nil, "", fmt.Errorf("%s names no version", rocketPom)
	}
	version := string(found[1])
	folder := filepath.Join(cache, "rocketmq-"+version)
	list, pom := filepath.Join(folder, "classpath"), filepath.Join(folder, "pom.xml")
	classpath, err := os.ReadFile(list)
	if err != nil || !allThere(string(classpath)) {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return nil, "", err
		}
		if err := os.WriteFile(pom, project, 0o644); err != nil {
			return nil, "", err
		}
		if _, err := command(ctx, "mvn", "-B", "-q", "-f", pom, "dependency:build-classpath", "-DincludeScope=runtime", "-Dmdep.outputFile="+list); err != nil {
			return nil, "", err
		}
		if classpath, err = os.ReadFile(list); err != nil {
			return nil, "", err
		}
	}
	runtime, err := command(ctx, java, "--version")
	if err != nil {
		return nil, "", err
	}
	runtime, _, _ = strings.Cut(runtime, "\n")
	return &server.RocketMQ{Java: java, Classpath: strings.TrimSpace(string(classpath))}, version + " on " + runtime, nil
}

// allThere says whether every file of a class path is there.
func allThere(classpath string) bool {
	for path := range strings.SplitSeq(strings.TrimSpace(classpath), string(os.PathListSeparator)) {
		if _, err := os.Stat(path); err != nil {
			return false
		}
	}
	return true
}

// rabbitFolders is where Debian's package puts RabbitMQ.
const rabbitFolders = "/usr/lib/rabbitmq/lib/rabbitmq_server-*"

func installRabbitMQ(ctx context.Context) (*server.RabbitMQ, string, error) {
	if found, _ := filepath.Glob(rabbitFolders); len(found) == 0 {
		if err := installRabbitPackage(ctx); err != nil {
			return nil, "", err
		}
	}
	found, err := filepath.Glob(rabbitFolders)
	if err != nil || len(found) == 0 {
		return nil, "", errors.Join(fmt.Errorf("there is no %s", rabbitFolders), err)
	}
	epmd, err := exec.LookPath("epmd")
	if err != nil {
		return nil, "", err
	}
	_, version, _ := strings.Cut(filepath.Base(found[0]), "-")
	erlang, err := command(ctx, "erl", "-noinput", "-eval", `io:put_chars(erlang:system_info(otp_release)), halt().`)
	if err != nil {
		return nil, "", err
	}
	return &server.RabbitMQ{Home: found[0], Epmd: epmd}, version + " on Erlang/OTP " + erlang, nil
}

// policy is the file that tells Debian's packages whether to start their services.
const policy = "/usr/sbin/policy-rc.d"

// installRabbitPackage installs the package without starting its service.
func installRabbitPackage(ctx context.Context) error {
	if syscall.Geteuid() != 0 {
		return errors.New("the package rabbitmq-server is not installed, and only root can install it")
	}
	if _, err := os.Stat(policy); errors.Is(err, os.ErrNotExist) {
		if err := os.WriteFile(policy, []byte("#!/bin/sh\nexit 101\n"), 0o755); err != nil {
			return err
		}
		defer func() { _ = os.Remove(policy) }() // it was not there before
	}
	if _, err := command(ctx, "apt-get", "update"); err != nil {
		return err
	}
	_, err := command(ctx, "env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", "-y", "--no-install-recommends", "rabbitmq-server")
	return err
}
