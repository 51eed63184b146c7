package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/portico-llm/portico/internal/config"
	"github.com/portico-llm/portico/internal/lifecycle"
	"github.com/portico-llm/portico/internal/observe"
)

// run serves until ctx ends, and returns nil after an orderly stop. Everything is started in the direction in which a
// request flows back, and stopped in the reverse: not ready, running streams finish within the grace period, the rest is
// cancelled, then the ways to the workers, the models, discovery and the tracer.
func run(ctx context.Context, cfg *config.Config, log *slog.Logger, stdout io.Writer) (err error) {
	listener, err := listen(ctx, cfg)
	if err != nil {
		return err
	}
	// Everything a request needs is made before the first one is taken.
	a, err := build(ctx, cfg, log)
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	// Releasing is bounded by a time of its own: ctx is over by then.
	defer func() { err = errors.Join(err, a.close(context.WithoutCancel(ctx))) }()

	// Serving outlives ctx: the end of ctx begins the shutdown, it doesn't break connections off.
	serving := lifecycle.New(context.WithoutCancel(ctx))
	serving.Go("http", func(ctx context.Context) error { return a.server.Serve(ctx, listener) })
	// Beside the server: the greeting waits for a model, requests don't.
	serving.Go("announce", func(ctx context.Context) error {
		announce(ctx, cfg, a, listener.Addr(), log, stdout)
		return nil
	})
	select {
	case <-ctx.Done():
		log.Info("stopping", "grace", cfg.HTTP.GracePeriod)
	// Better to stop and be restarted than to serve without, say, discovery.
	case <-a.failed():
		log.Error("a part that can't be done without has failed", "error", a.cause())
	// The listener failed: there is nothing left to serve on.
	case <-serving.Context().Done():
	}
	// The same way out in all three cases.
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), cfg.HTTP.GracePeriod)
	defer cancel()
	if cut := a.server.Shutdown(grace); cut != nil {
		log.Warn("the grace period was over before all requests", "error", cut)
	}
	// The deferred close follows, once nobody is served any more.
	return errors.Join(serving.Stop(), a.cause())
}

// listen binds the port first of all: of two servers started by mistake the second must not touch anything. It doesn't
// accept yet: connections wait in the kernel's queue until the server runs.
func listen(ctx context.Context, cfg *config.Config) (net.Listener, error) {
	tlsConfig, err := cfg.HTTP.TLS.Config()
	if err != nil {
		return nil, err
	}
	// Probes of idle connections are the HTTP server's business; without them accepting costs four calls less.
	lc := net.ListenConfig{KeepAlive: -1}
	l, err := lc.Listen(ctx, "tcp", cfg.HTTP.Address())
	if err != nil {
		return nil, fmt.Errorf("http-host, http-port: %w", err)
	}
	return withTLS(l, tlsConfig), nil
}

// readyPoll is how often announce looks for the first model. It runs until there is a model, and costs one atomic load.
const readyPoll = 10 * time.Millisecond

// announce tells when the server listens, and prints one line with a request to paste once there is a model. It waits
// as long as it takes, until ctx ends: a server without workers is a server all the same.
func announce(ctx context.Context, cfg *config.Config, a *app, addr net.Addr, log *slog.Logger, stdout io.Writer) {
	version, _ := observe.Version()
	log.Info("listening", "address", addr.String(), "version", version, "discovery", cfg.Discovery.Backend)
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for !a.catalog.Ready() {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
	// The first by name; the one that was ready a moment ago may be gone, and then there is no line.
	for _, m := range a.catalog.Models() {
		if m.Ready {
			fmt.Fprintln(stdout, readyLine(cfg, addr, m.ID))
			return
		}
	}
}

// readyLine is the one line a new user needs. It is a command for a shell, and a model's name may be anything: it is
// quoted as JSON, and the whole body for the shell.
func readyLine(cfg *config.Config, addr net.Addr, model string) string {
	// The address as somebody at this machine would write it.
	scheme, host := "http", "localhost"
	if cfg.HTTP.TLS.CertPath != "" {
		scheme = "https"
	}
	// The port that was really taken, should the configuration leave it open.
	port := 0
	if tcp, ok := addr.(*net.TCPAddr); ok {
		port = tcp.Port
		// localhost reaches a server that listens everywhere, or on loopback; only a certain address has to be named.
		if !tcp.IP.IsUnspecified() && !tcp.IP.IsLoopback() {
			host = tcp.IP.String()
		}
	}
	url := scheme + "://" + net.JoinHostPort(host, strconv.Itoa(port)) + "/v1/chat/completions"
	name, _ := json.Marshal(model) // a string always can be
	return fmt.Sprintf(`Portico is ready: curl -N %s -H 'Content-Type: application/json' `+
		`-d '{"model":%s,"stream":true,"messages":[{"role":"user","content":"Hello!"}]}'`,
		url, strings.ReplaceAll(string(name), "'", `'\''`))
}
