package config_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/portico-llm/portico/internal/config"
)

// certificate writes a certificate for 127.0.0.1 that vouches for itself, and its key.
func certificate(t *testing.T) (certPath, keyPath string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certPath, keyPath = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for path, block := range map[string]*pem.Block{certPath: {Type: "CERTIFICATE", Bytes: der},
		keyPath: {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return certPath, keyPath
}

func TestTLS(t *testing.T) {
	cert, key := certificate(t)
	serverConfig, err := config.ServerTLS{CertPath: cert, KeyPath: key, ClientCAPath: cert}.Config()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Proto)
	}))
	server.Config.ErrorLog = nil
	listener := tls.NewListener(server.Listener, serverConfig)
	server.Listener = listener
	server.Start()
	defer server.Close()
	url := "https://" + listener.Addr().String()

	get := func(client config.ClientTLS) (string, error) {
		clientConfig, err := client.Config()
		if err != nil {
			t.Fatal(err)
		}
		transport := &http.Transport{TLSClientConfig: clientConfig}
		defer transport.CloseIdleConnections()
		response, err := (&http.Client{Transport: transport}).Get(url)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		return string(body), err
	}
	for name, client := range map[string]config.ClientTLS{
		"both sides checked": {CAPath: cert, CertPath: cert, KeyPath: key},
		"insecure":           {Insecure: true, CertPath: cert, KeyPath: key},
	} {
		if body, err := get(client); err != nil || body != "HTTP/1.1" {
			t.Errorf("%s: %q, %v", name, body, err)
		}
	}
	for name, client := range map[string]config.ClientTLS{
		"unknown authority": {CertPath: cert, KeyPath: key},
		"no certificate":    {CAPath: cert},
	} {
		if _, err := get(client); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestTLSFilesAreChecked(t *testing.T) {
	cert, key := certificate(t)
	if c, err := (config.ServerTLS{}).Config(); c != nil || err != nil {
		t.Errorf("no TLS asked for: %v, %v", c, err)
	}
	if c, err := (config.ClientTLS{}).Config(); c != nil || err != nil {
		t.Errorf("no TLS asked for: %v, %v", c, err)
	}
	for name, load := range map[string]func() (*tls.Config, error){
		"missing certificate": config.ServerTLS{CertPath: "none", KeyPath: key}.Config,
		"authorities not PEM": config.ServerTLS{CertPath: cert, KeyPath: key, ClientCAPath: key}.Config,
		"missing authorities": config.ClientTLS{CAPath: "none"}.Config,
		"wrong key":           config.ClientTLS{CertPath: cert, KeyPath: cert}.Config,
	} {
		if _, err := load(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
