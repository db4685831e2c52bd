package node

import (
	"github.com/perigee-mq/perigee/internal/config"
	"github.com/perigee-mq/perigee/proxy/transport"
)

// openCredentials reads certificates and keys, and makes what the ports speak.
func (n *node) openCredentials() (err error) {
	mode, err := transport.ParseMode(n.cfg.TLS.Mode)
	if err != nil {
		return err
	}
	if mode != transport.Disabled {
		if n.keyring, err = n.openKeyring(n.cfg.TLS); err != nil {
			return err
		}
	}
	n.credentials, err = transport.NewCredentials(transport.CredentialsOptions{Mode: mode, Keyring: n.keyring, Logger: n.logger})
	return err
}

func (n *node) openKeyring(c config.TLS) (*transport.Keyring, error) {
	auth, err := transport.ParseClientAuth(c.ClientAuth)
	if err != nil {
		return nil, err
	}
	opts := transport.KeyringOptions{ClientAuth: auth, ClientCAFile: c.ClientCAFile, Logger: n.logger}
	if c.CertFile == "" {
		if opts.SelfSigned, err = transport.SelfSigned(n.cfg.DataDir, n.logger); err != nil {
			return nil, err
		}
	}
	opts.Default = transport.KeyPair{CertFile: c.CertFile, KeyFile: c.KeyFile, PasswordFile: c.KeyPasswordFile, Password: c.KeyPassword}
	for _, cert := range c.Certificates {
		opts.Others = append(opts.Others, transport.KeyPair{CertFile: cert.CertFile, KeyFile: cert.KeyFile, PasswordFile: cert.KeyPasswordFile})
	}
	return transport.OpenKeyring(opts)
}
