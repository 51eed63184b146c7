package etcd

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Options say how to reach etcd. The zero value is a local etcd without authentication.
type Options struct {
	Endpoints []string // URLs or host:port; empty: http://localhost:2379

	Username, Password string // both or neither

	CAFile, CertFile, KeyFile string // TLS; CertFile and KeyFile both or neither

	LeaseTTL       time.Duration // of a registrar's lease; 0: 30 s
	StartTimeout   time.Duration // how long the first connection is tried for; 0: 120 s
	RequestTimeout time.Duration // of one call; 0: 10 s
	Keepalive      time.Duration // between pings on an idle connection; 0: 15 s, negative: none

	Log *slog.Logger // nil: slog.Default()
}

// How connections are made and kept; none of it needs to be set.
const (
	keepaliveTimeout = 10 * time.Second       // a ping without an answer for so long ends the connection
	dialTimeout      = 5 * time.Second        // of one attempt
	minBackoff       = 100 * time.Millisecond // wait after the first failure
	maxBackoff       = 3 * time.Second        // and at most, doubling
)

// withDefaults fills in what was left open.
func (o Options) withDefaults() Options {
	if len(o.Endpoints) == 0 {
		o.Endpoints = []string{"http://localhost:2379"}
	}
	if o.LeaseTTL <= 0 {
		o.LeaseTTL = 30 * time.Second
	}
	if o.StartTimeout <= 0 {
		o.StartTimeout = 120 * time.Second
	}
	if o.RequestTimeout <= 0 {
		o.RequestTimeout = 10 * time.Second
	}
	if o.Keepalive == 0 {
		o.Keepalive = 15 * time.Second
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	return o
}

// validate finds what can never work and returns the TLS configuration, nil without TLS. It reads the TLS files, and
// makes no connection.
func (o Options) validate() (*tls.Config, error) {
	// host:port has no scheme: it is TLS when there are TLS files, and plain otherwise.
	secure := o.CAFile != "" || o.CertFile != "" || o.KeyFile != ""
	// One https endpoint, or any TLS file, asks for a TLS configuration.
	for _, e := range o.Endpoints {
		if strings.TrimSpace(e) == "" {
			return nil, errors.New("etcd endpoint is empty")
		}
		if !strings.Contains(e, "://") {
			continue
		}
		u, err := url.Parse(e)
		if err != nil {
			return nil, fmt.Errorf("etcd endpoint %q: %w", e, err)
		}
		if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return nil, fmt.Errorf("etcd endpoint %q: want http://host:port or https://host:port", e)
		}
		secure = secure || u.Scheme == "https"
	}
	if (o.Username == "") != (o.Password == "") {
		return nil, errors.New("etcd user name and password must be given together")
	}
	if (o.CertFile == "") != (o.KeyFile == "") {
		return nil, errors.New("etcd client certificate and key must be given together")
	}
	if !secure {
		return nil, nil
	}
	// Reading the files now finds a wrong path at the start instead of at the first reconnection.
	info := transport.TLSInfo{TrustedCAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile}
	cfg, err := info.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("etcd TLS files: %w", err)
	}
	return cfg, nil
}

// dial returns a client. Without authentication it returns at once and connects in the background; with it, the
// password is checked now.
func (o Options) dial(ctx context.Context, tlsConfig *tls.Config) (*clientv3.Client, error) {
	cfg := clientv3.Config{
		Context:   ctx,
		Endpoints: o.Endpoints,
		Username:  o.Username, Password: o.Password,
		TLS:         tlsConfig,
		DialTimeout: dialTimeout,
		Logger:      zap.NewNop(), // every failure comes back as an error and is logged once, by us
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			// gRPC's own limit of two minutes would leave us blind long after etcd is back.
			Backoff:           backoff.Config{BaseDelay: minBackoff, Multiplier: 1.6, Jitter: 0.2, MaxDelay: maxBackoff},
			MinConnectTimeout: dialTimeout,
		})},
	}
	// Watches are silent for long; pings tell a quiet etcd from one behind a dead link.
	if o.Keepalive > 0 {
		cfg.DialKeepAliveTime, cfg.DialKeepAliveTimeout, cfg.PermitWithoutStream = o.Keepalive, keepaliveTimeout, true
	}
	client, err := clientv3.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("connect to etcd: %w", err)
	}
	return client, nil
}

// pause waits before attempt n (counted from 0), longer each time within bounds. It reports false when ctx ended. The
// bound keeps workers that came with etcd from waiting long for the frontend.
func pause(ctx context.Context, n int) bool {
	d := minBackoff
	for ; n > 0 && d < maxBackoff; n-- {
		d *= 2
	}
	t := time.NewTimer(min(d, maxBackoff))
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
