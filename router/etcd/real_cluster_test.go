package etcd

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/perigee-mq/perigee/internal/tiercreds"
	"github.com/perigee-mq/perigee/mq"
	"github.com/perigee-mq/perigee/router"
)

// TestAnEtcdOfThreeOutlivesOneMemberAndComesBackFromTheLossOfTwo goes by the members that a
// majority needs.
func TestAnEtcdOfThreeOutlivesOneMemberAndComesBackFromTheLossOfTwo(t *testing.T) {
	members := startMembers(t, 3)
	opts := Options{Endpoints: addresses(members), Prefix: "/perigee"}
	a, b := openRouter(t, opts), openRouter(t, opts)
	made := 0
	create := func() error {
		_, err := []*router.Router{a, b}[made%2].EnsureTopic(t.Context(), named(fmt.Sprint("t", made)))
		if err == nil {
			made++
		}
		return err
	}
	for range 4 {
		require.NoError(t, create())
	}
	members[0].kill() // it may lead
	want := made + 10
	require.Eventually(t, func() bool { _ = create(); return made == want }, time.Minute, 10*time.Millisecond)
	requireSame(t, a, b)

	members[1].kill()
	_, err := a.EnsureTopic(t.Context(), named("meanwhile"))
	require.ErrorIs(t, err, mq.ErrUnavailable)
	_, err = b.DeleteTopic(t.Context(), named("t0"))
	require.ErrorIs(t, err, mq.ErrUnavailable)
	for i := range made {
		_, err := b.Topic(t.Context(), named(fmt.Sprint("t", i)))
		require.NoError(t, err, "reading goes on")
	}
	require.ErrorIs(t, a.Degraded(), mq.ErrUnavailable)
	require.NoError(t, a.Err())

	members[0].start()
	want = made + 4
	require.Eventually(t, func() bool { _ = create(); return made == want }, time.Minute, 10*time.Millisecond)
	members[1].start()
	requireSame(t, a, b, openRouter(t, opts))
	require.Eventually(t, func() bool { return a.Degraded() == nil && b.Degraded() == nil }, time.Minute, 10*time.Millisecond)
}

// An authority signs certificates.
type authority struct {
	t    *testing.T
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	var err error
	a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	require.NoError(t, err)
	a.cert, err = x509.ParseCertificate(der)
	require.NoError(t, err)
	a.write("ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

func (a *authority) write(name, kind string, der []byte) {
	require.NoError(a.t, os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
}

// sign makes NAME.pem and NAME.key for 127.0.0.1.
func (a *authority) sign(name string) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a.t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	require.NoError(a.t, err)
	a.write(name+".pem", "CERTIFICATE", der)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a.t, err)
	a.write(name+".key", "PRIVATE KEY", private)
}

func (a *authority) options(t *testing.T, e *realEtcd, o tiercreds.Options) Options {
	dial, err := tiercreds.Client(o)
	require.NoError(t, err)
	return Options{Endpoints: []string{e.address}, Dial: dial}
}

// TestARealEtcdIsReachedWithTLSAndWithACertificateOfOnesOwn leaves out what it asks for, too.
func TestARealEtcdIsReachedWithTLSAndWithACertificateOfOnesOwn(t *testing.T) {
	a := newAuthority(t)
	a.sign("server")
	a.sign("router")
	other := newAuthority(t)
	e := startMembers(t, 1, "--cert-file", a.file("server.pem"), "--key-file", a.file("server.key"), "--trusted-ca-file", a.file("ca.pem"), "--client-cert-auth")[0]
	own := tiercreds.Options{CAFile: a.file("ca.pem"), CertFile: a.file("router.pem"), KeyFile: a.file("router.key")}
	r := openRouter(t, a.options(t, e, own))
	_, err := r.EnsureTopic(t.Context(), named("t"))
	require.NoError(t, err)
	requireSame(t, r, openRouter(t, a.options(t, e, own)))

	_, err = tryRouter(a.options(t, e, tiercreds.Options{CAFile: other.file("ca.pem")}))
	require.ErrorIs(t, err, mq.ErrUnavailable)
	require.ErrorContains(t, err, "unknown authority")
	_, err = tryRouter(a.options(t, e, tiercreds.Options{CAFile: a.file("ca.pem")}))
	require.ErrorIs(t, err, mq.ErrUnavailable, "it shows no certificate")
	_, err = tryRouter(a.options(t, e, tiercreds.Options{}))
	require.ErrorIs(t, err, mq.ErrUnavailable, "it speaks cleartext")
}

// TestARealEtcdLetsInWhoLogsInAndSaysSoOfOthers is about users, roles and passwords.
func TestARealEtcdLetsInWhoLogsInAndSaysSoOfOthers(t *testing.T) {
	e := startEtcd(t)
	e.open("/perigee") // it answers
	root, err := clientv3.New(clientv3.Config{Endpoints: []string{e.address}})
	require.NoError(t, err)
	defer root.Close()
	ctx := t.Context()
	do := func(_ any, err error) { t.Helper(); require.NoError(t, err) }
	do(root.UserAdd(ctx, "root", "secret"))
	do(root.UserGrantRole(ctx, "root", "root"))
	do(root.RoleAdd(ctx, "perigee"))
	do(root.RoleGrantPermission(ctx, "perigee", "/perigee/", clientv3.GetPrefixRangeEnd("/perigee/"), clientv3.PermissionType(clientv3.PermReadWrite)))
	do(root.UserAdd(ctx, "router", "right"))
	do(root.UserGrantRole(ctx, "router", "perigee"))
	do(root.UserAdd(ctx, "guest", "guest"))
	do(root.AuthEnable(ctx))

	opts := Options{Endpoints: []string{e.address}, Username: "router", Password: "right"}
	r := openRouter(t, opts)
	_, err = r.EnsureTopic(t.Context(), named("t"))
	require.NoError(t, err)
	for what, change := range map[string]func(o *Options){
		"another password": func(o *Options) { o.Password = "wrong" },
		"an unknown user":  func(o *Options) { o.Username = "nobody" },
		"no user":          func(o *Options) { o.Username, o.Password = "", "" },
		"no right":         func(o *Options) { o.Username, o.Password = "guest", "guest" },
		"another prefix":   func(o *Options) { o.Prefix = "/elsewhere" },
	} {
		denied := opts
		change(&denied)
		_, err := tryRouter(denied)
		require.ErrorIs(t, err, ErrDenied, what)
		require.ErrorContains(t, err, e.address, what)
	}

	// A password that is changed while the router runs.
	admin, err := clientv3.New(clientv3.Config{Endpoints: []string{e.address}, Username: "root", Password: "secret"})
	require.NoError(t, err)
	defer admin.Close()
	do(admin.UserChangePassword(ctx, "router", "changed"))
	require.Eventually(t, func() bool {
		_, err := r.EnsureTopic(t.Context(), named("u"))
		return err != nil
	}, time.Minute, 10*time.Millisecond)
	require.ErrorIs(t, r.Degraded(), ErrDenied)
	_, err = r.Topic(t.Context(), named("t"))
	require.NoError(t, err)
	opts.Password = "changed"
	_, err = openRouter(t, opts).EnsureTopic(t.Context(), named("u"))
	require.NoError(t, err)
}

// embedded makes metadata in a data folder, and returns their entries.
func embedded(t *testing.T, topics int) (entries []router.Entry, shown string) {
	fsys := vfs.NewMem()
	r, err := router.Open(router.Options{FS: fsys, Dir: "router", Shards: []string{"s1"}})
	require.NoError(t, err)
	for i := range topics {
		_, _, err := r.CreateTopic(t.Context(), router.TopicSpec{Resource: named(fmt.Sprint("t", i))})
		require.NoError(t, err)
	}
	_, _, err = r.CreateGroup(t.Context(), router.GroupSpec{Resource: named("g")})
	require.NoError(t, err)
	_, err = r.AddShard(t.Context(), "s1")
	require.NoError(t, err)
	shown = show(r)
	require.NoError(t, r.Close())
	require.NoError(t, router.Entries(fsys, "router", func(e router.Entry) error { entries = append(entries, e); return nil }))
	require.Len(t, entries, topics+3)
	return entries, shown
}

func TestMetadataAreImportedIntoARealEtcdThatHasNone(t *testing.T) {
	e := startEtcd(t)
	e.open("/other") // it answers
	entries, shown := embedded(t, 350)
	into := func(prefix string) error {
		b, err := Open(Options{Endpoints: []string{e.address}, Prefix: prefix})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close()) }()
		return b.Import(t.Context(), entries)
	}
	require.NoError(t, into("/perigee"))
	require.NoError(t, into("/perigee"), "the same again")
	r := e.open("/perigee")
	require.Equal(t, shown, show(r))
	topic, err := r.EnsureTopic(t.Context(), named("next"))
	require.NoError(t, err)
	require.EqualValues(t, 352, topic.ID, "ids go on") // the group has a dead-letter topic
	require.ErrorIs(t, into("/perigee"), ErrHasMetadata)
	require.ErrorIs(t, into("/other"), ErrHasMetadata)
	requireSame(t, r, e.open("/perigee"))
}
