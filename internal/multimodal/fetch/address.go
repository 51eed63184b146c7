package fetch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/idna"
)

// errInternal is the refusal of an address. Which address a name led to is not told.
var errInternal = refuse("leads to an address that is not public, which is not allowed here")

// special are the blocks that are not the public internet's, beside those that netip knows by name. Some are routable
// in places, and a metadata service, a gateway or a neighbour answers there.
var special = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),        // this network
	netip.MustParsePrefix("100.64.0.0/10"),    // shared by carriers; metadata of one cloud
	netip.MustParsePrefix("168.63.129.16/32"), // the host's services in another
	netip.MustParsePrefix("192.0.0.0/24"),     // protocol assignments; metadata of a third
	netip.MustParsePrefix("192.0.2.0/24"),     // documentation
	netip.MustParsePrefix("192.88.99.0/24"),   // relays of 6to4
	netip.MustParsePrefix("198.18.0.0/15"),    // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"),  // documentation
	netip.MustParsePrefix("203.0.113.0/24"),   // documentation
	netip.MustParsePrefix("240.0.0.0/4"),      // reserved, broadcast
	netip.MustParsePrefix("2001::/23"),        // protocol assignments, Teredo among them
	netip.MustParsePrefix("2001:db8::/32"),    // documentation
	netip.MustParsePrefix("2002::/16"),        // 6to4: an IPv4 address in disguise
	netip.MustParsePrefix("3fff::/20"),        // documentation
}

// global is the part of IPv6 that is the public internet. Translated, mapped, local and reserved addresses are outside.
var global = netip.MustParsePrefix("2000::/3")

// public reports whether an address is one of the public internet. An IPv4 address in IPv6's clothes never is.
func public(ip netip.Addr) bool {
	if !ip.IsGlobalUnicast() || ip.IsPrivate() || ip.Is4In6() || ip.Zone() != "" {
		return false
	}
	if ip.Is6() && !global.Contains(ip) {
		return false
	}
	for _, block := range special {
		if block.Contains(ip) {
			return false
		}
	}
	return true
}

// guard decides which hosts may be spoken to, and dials.
type guard struct {
	internal bool                // addresses that aren't public are fine
	exact    map[string]struct{} // hosts; with below both empty: any
	below    []string            // suffixes with their dot
	resolver *net.Resolver
	timeout  time.Duration // for one address

	// connect opens a connection to an address that has been checked.
	connect func(ctx context.Context, network, address string) (net.Conn, error)
}

func newGuard(o *Options) *guard {
	g := &guard{internal: o.AllowInternal, exact: map[string]struct{}{}, resolver: o.Resolver, timeout: o.DialTimeout}
	for _, name := range o.Domains {
		name = strings.ToLower(strings.TrimSuffix(strings.TrimSpace(name), "."))
		if suffix, ok := strings.CutPrefix(name, "*."); ok {
			g.below = append(g.below, "."+suffix)
		} else if name != "" {
			g.exact[name] = struct{}{}
		}
	}
	g.connect = (&net.Dialer{Timeout: o.DialTimeout}).DialContext
	return g
}

// target parses a URL and checks all that can be checked without asking a name server. It is called for each redirect
// too. The result has its host in the form that is looked up, and no fragment.
func (g *guard) target(raw string) (*url.URL, error) {
	u, err := url.Parse(raw)
	if err != nil {
		return nil, refuse("is not a URL") // the parser's message repeats what it was given
	}
	return u, g.check(u)
}

// check is target's work on a URL that is parsed already.
func (g *guard) check(u *url.URL) error {
	if s := strings.ToLower(u.Scheme); s != "http" && s != "https" {
		return refuse("must be an http or https URL")
	}
	// Names and passwords are what http://allowed@other/ hides behind, and nobody's image needs them.
	if u.User != nil {
		return refuse("must not hold a user name or password")
	}
	host, err := hostName(u.Hostname())
	if err != nil {
		return err
	}
	port := u.Port()
	if port != "" {
		if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
			return refuse("has a port that is none")
		}
	}
	if !g.allowed(host) {
		return refuse("is of a host that is not allowed here")
	}
	if ip, err := netip.ParseAddr(host); err == nil && !g.internal && !public(ip) {
		return errInternal
	}
	u.Fragment, u.RawFragment = "", ""
	if u.Host = host; strings.Contains(host, ":") {
		u.Host = "[" + host + "]"
	}
	if port != "" {
		u.Host += ":" + port
	}
	return nil
}

// hostName brings a host into the one form that is checked, looked up and dialled. Spellings of addresses that some
// resolvers read and others don't (0x7f000001, 2130706433, 0177.0.0.1, 127.1) are refused: nobody writes them by
// accident.
func hostName(host string) (string, error) {
	if strings.Trim(host, ".") == "" {
		return "", refuse("names no host")
	}
	if strings.Contains(host, ":") {
		ip, err := netip.ParseAddr(host)
		if err != nil || ip.Zone() != "" {
			return "", refuse("has a host that is no IPv6 address")
		}
		return ip.String(), nil
	}
	// Full stops and digits of other scripts become those of ASCII here, before anything looks at them.
	ascii, err := idna.Lookup.ToASCII(host)
	if err != nil {
		// Underscores are no part of host names, and yet there are hosts that have them.
		if ascii = strings.ToLower(host); strings.ContainsFunc(ascii, notHost) {
			return "", refuse("has a host that is no name")
		}
	}
	ascii = strings.TrimSuffix(ascii, ".")
	if ascii == "" || strings.Contains("."+ascii+".", "..") { // a label without letters
		return "", refuse("has a host that is no name")
	}
	if !endsInNumber(ascii) {
		return ascii, nil
	}
	ip, err := netip.ParseAddr(ascii)
	if err != nil {
		return "", refuse("has a host that is no IPv4 address of four decimal numbers")
	}
	return ip.String(), nil
}

// notHost reports what no name server is asked about.
func notHost(r rune) bool {
	return r != '-' && r != '.' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z')
}

// endsInNumber reports whether a host's last label is a number in some notation, which browsers, too, take as the sign
// of an IPv4 address.
func endsInNumber(host string) bool {
	label := host[strings.LastIndexByte(host, '.')+1:]
	if label == "" {
		return false
	}
	if rest, ok := strings.CutPrefix(label, "0x"); ok {
		_, err := strconv.ParseUint("0"+rest, 16, 64)
		return err == nil || errors.Is(err, strconv.ErrRange)
	}
	return strings.Trim(label, "0123456789") == ""
}

// allowed reports whether the operator's list has the host, where there is one.
func (g *guard) allowed(host string) bool {
	if len(g.exact) == 0 && len(g.below) == 0 {
		return true
	}
	if _, ok := g.exact[host]; ok {
		return true
	}
	for _, suffix := range g.below {
		if strings.HasSuffix(host, suffix) {
			return true
		}
	}
	return false
}

// dial resolves a host once, checks every address of it, and connects to one of those very addresses. One address that
// isn't public spoils the name: honest names have none.
func (g *guard) dial(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	ips, err := g.lookup(ctx, host)
	if err != nil {
		return nil, err
	}
	for _, ip := range ips {
		if !g.internal && !public(ip) {
			return nil, errInternal
		}
	}
	// In the resolver's order, which puts those first that this machine can reach.
	for _, ip := range ips {
		conn, dialErr := g.connect(ctx, network, net.JoinHostPort(ip.String(), port))
		if dialErr == nil {
			return conn, nil
		}
		err = dialErr
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	return nil, refuse("could not be fetched: its host is not reachable").because(err)
}

// lookup returns the addresses of a host; of a literal address, that one.
func (g *guard) lookup(ctx context.Context, host string) ([]netip.Addr, error) {
	if ip, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{ip}, nil
	}
	// Blocks until the name server answers or ctx ends.
	ips, err := g.resolver.LookupNetIP(ctx, "ip", host)
	if err != nil || len(ips) == 0 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		return nil, refuse("could not be fetched: its host is not known").because(err)
	}
	for i := range ips {
		ips[i] = ips[i].Unmap() // the resolver's way of writing an A record
	}
	return ips, nil
}
