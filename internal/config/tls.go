package config

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// ServerTLS is the identity this process shows to those that connect to it.
type ServerTLS struct {
	CertPath     string // PEM, the chain included; empty for no TLS
	KeyPath      string // PEM, of the certificate
	ClientCAPath string // authorities whose certificate a client must show; empty asks for none
}

// ClientTLS says how a connection to a server is secured.
type ClientTLS struct {
	CAPath   string // authorities to trust in place of the system's
	CertPath string // certificate to show
	KeyPath  string // of the certificate
	Insecure bool   // trust any server
}

// Enabled reports whether anything was said about TLS.
func (t ClientTLS) Enabled() bool { return t != ClientTLS{} }

// Config reads the files and checks that they fit. It returns nil without an error when TLS isn't wanted.
func (t ServerTLS) Config() (*tls.Config, error) {
	if t.CertPath == "" {
		return nil, nil
	}
	certificate, err := tls.LoadX509KeyPair(t.CertPath, t.KeyPath)
	if err != nil {
		return nil, fmt.Errorf("load the server's certificate: %w", err)
	}
	// HTTP/1.1 alone: a stream holds its connection, and its writes are gathered below net/http.
	c := &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"}}
	if t.ClientCAPath != "" {
		if c.ClientCAs, err = readAuthorities(t.ClientCAPath); err != nil {
			return nil, err
		}
		c.ClientAuth = tls.RequireAndVerifyClientCert
	}
	return c, nil
}

// Config reads the files. It returns nil without an error when nothing was said about TLS.
func (t ClientTLS) Config() (*tls.Config, error) {
	if !t.Enabled() {
		return nil, nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: t.Insecure} //nolint:gosec // the operator asked for it, and was warned
	var err error
	if t.CAPath != "" {
		if c.RootCAs, err = readAuthorities(t.CAPath); err != nil {
			return nil, err
		}
	}
	if t.CertPath != "" {
		certificate, err := tls.LoadX509KeyPair(t.CertPath, t.KeyPath)
		if err != nil {
			return nil, fmt.Errorf("load the client's certificate: %w", err)
		}
		c.Certificates = []tls.Certificate{certificate}
	}
	return c, nil
}

// readAuthorities reads a bundle of certificates. A file without any is an error: an empty pool would trust nobody, and
// say so only when the first connection fails.
func readAuthorities(path string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read certificate authorities: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("%s: %w", path, errors.New("no certificate in it"))
	}
	return pool, nil
}
