// Command etcdserver is a single-member etcd for the end-to-end tests: the real server, embedded, without fsync and
// without a discovery of peers. It lives in a module of its own so that the product's go.mod stays small.
//
//	etcdserver --data-dir DIR --listen 127.0.0.1:0
//
// Once clients are served it prints one line, "ready HOST:PORT". SIGTERM and SIGINT stop it in good order; started
// again with the same directory and address it goes on where it was, leases included.
package main

import (
	"errors"
	"flag"
	"fmt"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
)

// startTimeout bounds the wait for the member to elect itself.
const startTimeout = 30 * time.Second

func main() {
	dir := flag.String("data-dir", "", "directory of the member's data (required)")
	listen := flag.String("listen", "127.0.0.1:0", "host:port to serve clients at; port 0 picks one")
	level := flag.String("log-level", "fatal", "etcd's own log level")
	flag.Parse()
	if err := run(*dir, *listen, *level); err != nil {
		fmt.Fprintln(os.Stderr, "etcdserver:", err)
		os.Exit(1)
	}
}

func run(dir, listen, level string) error {
	if dir == "" {
		return errors.New("--data-dir is required")
	}
	stop := make(chan os.Signal, 1) // one signal is enough to stop
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)

	server, err := embed.StartEtcd(config(dir, listen, level))
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	defer server.Close()
	select {
	case <-server.Server.ReadyNotify():
	case <-stop:
		return nil
	case <-time.After(startTimeout):
		return fmt.Errorf("not ready after %s", startTimeout)
	}
	fmt.Printf("ready %s\n", server.Clients[0].Addr())
	select {
	case <-stop:
		return nil
	case err := <-server.Err():
		return fmt.Errorf("serve: %w", err)
	}
}

// config describes one member that never meets another: its peer address is advertised but never dialled, so that any
// free port will do for the listener.
func config(dir, listen, level string) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "single"
	cfg.Dir = dir
	cfg.LogLevel = level
	cfg.LogOutputs = []string{"stderr"}
	cfg.UnsafeNoFsync = true
	cfg.TickMs, cfg.ElectionMs = 20, 200 // a member without peers elects itself soon

	client := url.URL{Scheme: "http", Host: listen}
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:2380"}
	cfg.ListenClientUrls = []url.URL{client}
	cfg.AdvertiseClientUrls = []url.URL{client}
	cfg.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	cfg.AdvertisePeerUrls = []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	return cfg
}
