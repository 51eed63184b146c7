package fetch_test

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/portico-llm/portico/internal/multimodal/fetch"
)

func TestPublic(t *testing.T) {
	for text, want := range map[string]bool{
		"8.8.8.8": true, "93.184.216.34": true, "172.15.255.255": true, "172.32.0.1": true, "100.63.0.1": true,
		"2606:2800:220:1::1": true, "2a00:1450::1": true,
		"127.0.0.1": false, "127.255.255.254": false, "0.0.0.0": false, "0.1.2.3": false, "10.0.0.1": false,
		"172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false, "169.254.169.254": false,
		"100.64.0.1": false, "100.100.100.200": false, "168.63.129.16": false, "192.0.0.192": false, "192.0.2.1": false,
		"198.18.0.1": false, "198.51.100.7": false, "203.0.113.9": false, "224.0.0.1": false, "240.0.0.1": false,
		"255.255.255.255": false, "192.88.99.1": false,
		"::": false, "::1": false, "::127.0.0.1": false, "fe80::1": false, "fec0::1": false, "fc00::1": false, "fd00:ec2::254": false,
		"ff02::1": false, "::ffff:127.0.0.1": false, "::ffff:8.8.8.8": false, "64:ff9b::7f00:1": false,
		"64:ff9b::808:808": false, "64:ff9b:1::1": false, "2002:7f00:1::": false, "2001::1": false, "2001:db8::1": false,
		"3fff::1": false, "100::1": false, "5f00::1": false,
	} {
		if got := fetch.Public(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: got %v, want %v", text, got, want)
		}
	}
}

// TestRefusedHosts: whatever the spelling, no connection is made, neither to the trap nor to anywhere else.
func TestRefusedHosts(t *testing.T) {
	_, resolver := newNameServer(t, map[string][][]string{
		"private.test":  {{"10.1.2.3"}},
		"loop.test":     {{"127.0.0.1"}},
		"loop6.test":    {{"::1"}},
		"mixed.test":    {{"93.184.216.34", "127.0.0.1"}},
		"mixed6.test":   {{"93.184.216.34", "fd00::1"}},
		"metadata.test": {{"169.254.169.254"}},
		"nat64.test":    {{"64:ff9b::7f00:1"}},
	})
	f := newFetcher(t, fetch.Options{Resolver: resolver})
	var dialled atomic.Int32
	f.Connect(func(ctx context.Context, network, address string) (net.Conn, error) {
		dialled.Add(1)
		return (&net.Dialer{}).DialContext(ctx, network, address)
	})
	port := trap(t, "tcp4", "127.0.0.1")
	for _, tc := range []struct{ host, reason string }{
		{"127.0.0.1", "not public"}, {"127.1.2.3", "not public"}, {"0.0.0.0", "not public"},
		{"10.0.0.1", "not public"}, {"169.254.169.254", "not public"}, {"192.168.0.1", "not public"},
		{"[::1]", "not public"}, {"[::]", "not public"}, {"[::ffff:127.0.0.1]", "not public"},
		{"[::ffff:7f00:1]", "not public"}, {"[64:ff9b::127.0.0.1]", "not public"}, {"[fe80::1]", "not public"},
		{"[fd00:ec2::254]", "not public"}, {"[2002:7f00:1::]", "not public"}, {"[fe80::1%25lo]", "no IPv6 address"},
		{"[::1%25lo]", "no IPv6 address"},
		{"0x7f000001", "four decimal numbers"}, {"0x7f.0.0.1", "four decimal numbers"},
		{"2130706433", "four decimal numbers"}, {"0177.0.0.1", "four decimal numbers"}, {"127.1", "four decimal numbers"},
		{"127.0.1", "four decimal numbers"}, {"017700000001", "four decimal numbers"}, {"127.0.0.0x1", "four decimal numbers"},
		{"127.0.0.1.", "not public"}, {"%31%32%37.0.0.1", "not a URL"}, {"１２７.0.0.1", "not public"},
		{"127。0。0。1", "not public"}, {"①②⑦.0.0.1", "not public"}, {"99999999999", "four decimal numbers"},
		{"0x", "four decimal numbers"}, {"256.256.256.256", "four decimal numbers"},
		{"allowed.test@127.0.0.1", "user name"}, {"a:b@127.0.0.1", "user name"},
		{"private.test", "not public"}, {"LOOP.test", "not public"}, {"loop.test.", "not public"},
		{"loop6.test", "not public"}, {"mixed.test", "not public"}, {"mixed6.test", "not public"},
		{"metadata.test", "not public"}, {"nat64.test", "not public"},
		{"nobody.test", "not known"}, {"a b.test", "not a URL"}, {"", "no host"},
	} {
		t.Run(tc.host, func(t *testing.T) {
			for _, scheme := range []string{"http", "https", "HTTP"} {
				_, err := get(t, f, scheme+"://"+tc.host+":"+port+"/latest/meta-data")
				refused(t, err, tc.reason)
			}
		})
	}
	if n := dialled.Load(); n != 0 {
		t.Errorf("%d addresses were dialled", n)
	}
}

// TestLocalhost: the system's own resolver knows names for this machine.
func TestLocalhost(t *testing.T) {
	f := newFetcher(t, fetch.Options{})
	port := trap(t, "tcp4", "127.0.0.1")
	_, err := get(t, f, "http://localhost:"+port+"/")
	refused(t, err, "not public")
}

// world is a Fetcher whose public addresses all lead to one local server.
func world(t *testing.T, opts fetch.Options, answers map[string][][]string, handler http.Handler) (*fetch.Fetcher, *[]string) {
	t.Helper()
	srv := httptest.NewServer(handler)
	t.Cleanup(srv.Close)
	_, opts.Resolver = newNameServer(t, answers)
	f := newFetcher(t, opts)
	dialled := new([]string) // one fetch at a time
	f.Connect(func(ctx context.Context, network, address string) (net.Conn, error) {
		*dialled = append(*dialled, address)
		return (&net.Dialer{}).DialContext(ctx, network, srv.Listener.Addr().String())
	})
	return f, dialled
}

// TestRebinding: a name that is public when first asked for and this machine the second time gets one connection, to
// the address that was checked.
func TestRebinding(t *testing.T) {
	port := trap(t, "tcp4", "127.0.0.1")
	var hits atomic.Int32
	f, dialled := world(t, fetch.Options{}, map[string][][]string{
		"rebind.test": {{"93.184.216.34"}, {"127.0.0.1"}},
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hits.Add(1)
		if r.URL.Path == "/again" {
			// To another port, so that it needs a connection of its own.
			http.Redirect(w, r, "http://rebind.test:"+port+"/secret", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("picture"))
	}))
	_, err := get(t, f, "http://rebind.test/again")
	refused(t, err, "not public")
	if hits.Load() != 1 || len(*dialled) != 1 || (*dialled)[0] != "93.184.216.34:80" {
		t.Errorf("got %d requests over connections to %v, want one to the address that was checked", hits.Load(), *dialled)
	}
}

func TestRedirects(t *testing.T) {
	port := trap(t, "tcp4", "127.0.0.1")
	targets := map[string]string{
		"/loopback": "http://127.0.0.1:" + port + "/", "/hex": "http://0x7f000001:" + port + "/",
		"/mapped": "http://[::ffff:127.0.0.1]:" + port + "/", "/name": "http://loop.test:" + port + "/",
		"/metadata": "http://169.254.169.254/latest", "/file": "file:///etc/passwd", "/data": "data:,x",
		"/ftp": "ftp://www.test/", "/user": "http://u:p@www.test/", "/loop": "/loop", "/ping": "/pong", "/pong": "/ping",
		"/n4": "/n3", "/n3": "/n2", "/n2": "/n1", "/n1": "/n0", "/other": "http://other.test/n0", "/relative": "n0",
	}
	var referer atomic.Value
	f, _ := world(t, fetch.Options{}, map[string][][]string{
		"www.test": {{"93.184.216.34"}}, "other.test": {{"93.184.216.35"}}, "loop.test": {{"127.0.0.1"}},
		"elsewhere.org": {{"93.184.216.36"}}, "exact.org": {{"93.184.216.37"}}, "not-exact.org": {{"93.184.216.38"}},
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if to, ok := targets[r.URL.Path]; ok {
			w.Header().Set("Location", to)
			w.WriteHeader(http.StatusTemporaryRedirect)
			return
		}
		referer.Store(r.Referer() + "|" + r.Host)
		_, _ = w.Write([]byte("picture"))
	}))
	for path, reason := range map[string]string{
		"/loopback": "not public", "/hex": "four decimal numbers", "/mapped": "not public", "/name": "not public",
		"/metadata": "not public", "/file": "http or https", "/data": "http or https", "/ftp": "http or https",
		"/user": "user name", "/loop": "more than 3 times", "/ping": "more than 3 times", "/n4": "more than 3 times",
		"/n3": "", "/n1": "", "/other": "", "/relative": "",
	} {
		t.Run(path, func(t *testing.T) {
			data, err := get(t, f, "http://www.test"+path+"?signature=secret")
			if reason != "" {
				refused(t, err, reason)
				return
			}
			if err != nil || string(data) != "picture" {
				t.Errorf("got %q, %v", data, err)
			}
			if got := referer.Load(); path == "/other" && got != "|other.test" {
				t.Errorf("got referer and host %q", got)
			}
		})
	}
}

// TestDomains: an operator's list holds for redirects, too.
func TestDomains(t *testing.T) {
	f, _ := world(t, fetch.Options{Domains: []string{"*.test", " Exact.ORG."}}, map[string][][]string{
		"www.test": {{"93.184.216.34"}}, "elsewhere.org": {{"93.184.216.36"}}, "exact.org": {{"93.184.216.37"}},
		"loop.test": {{"127.0.0.1"}},
	}, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(w, r, "http://elsewhere.org/", http.StatusFound)
			return
		}
		_, _ = w.Write([]byte("picture"))
	}))
	for _, ok := range []string{"http://exact.org/", "http://EXACT.org./", "http://www.test/"} {
		if _, err := get(t, f, ok); err != nil {
			t.Errorf("%s: %v", ok, err)
		}
	}
	for _, bad := range []string{
		"http://not-exact.org/", "http://sub.exact.org/", "http://test/", "http://8.8.8.8/", "http://www.test/away",
	} {
		_, err := get(t, f, bad)
		refused(t, err, "not allowed here")
	}
	_, err := get(t, f, "http://loop.test/")
	refused(t, err, "not public")
}

// TestInternal: an operator may open the inside.
func TestInternal(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("picture"))
	}))
	t.Cleanup(srv.Close)
	f := newFetcher(t, fetch.Options{AllowInternal: true})
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]"} {
		u := fmt.Sprintf("http://%s:%s/", host, srv.URL[strings.LastIndexByte(srv.URL, ':')+1:])
		if data, err := get(t, f, u); err != nil || string(data) != "picture" {
			t.Errorf("%s: got %q, %v", u, data, err)
		}
	}
	_, err := get(t, f, "http://2130706433/")
	refused(t, err, "four decimal numbers")
}

// FuzzTarget: what passes the checks is a URL whose host is looked up as it stands, and checking it again changes
// nothing.
func FuzzTarget(f *testing.F) {
	for _, seed := range []string{
		"http://a.test/x?y#z", "https://[2606:2800::1]:8443/", "http://0x7f.1/", "http://%31/", "http://u@h/", "http://a_b.test/",
		"http://１.test/", "http://bücher.example/", "HTTP://A..b/", "http://xn--a/", "http://1.2.3.4:99999/", "http:///",
	} {
		f.Add(seed)
	}
	fetcher := newFetcher(f, fetch.Options{})
	f.Fuzz(func(t *testing.T, raw string) {
		u, err := fetcher.Target(raw)
		if err != nil {
			return
		}
		host := u.Hostname()
		if ip, err := netip.ParseAddr(host); err == nil && !fetch.Public(ip) {
			t.Fatalf("%q passes with the address %s", raw, ip)
		}
		if strings.ContainsFunc(host, func(r rune) bool { return r > 0x7e || r <= ' ' }) || u.User != nil {
			t.Fatalf("%q passes as %q", raw, u)
		}
		again, err := url.Parse(u.String())
		if err != nil || again.Host != u.Host {
			t.Fatalf("%q becomes %q, which reads as %v, %v", raw, u, again, err)
		}
		if twice, err := fetcher.Target(u.String()); err != nil || twice.Host != u.Host {
			t.Fatalf("%q passes as %q, and that as %v, %v", raw, u, twice, err)
		}
	})
}
