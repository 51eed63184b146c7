package callhome

import (
	"fmt"
	"net"
	"net/netip"
)

// resolveHost returns the address to bind and the address to advertise for host: an IP address, a wildcard, the name of
// a network interface, or nothing, which is the first address that other machines can reach. A wildcard binds every
// address and advertises a reachable one. Names of hosts are not resolved: a socket binds addresses.
func resolveHost(host string) (bind, advertise netip.Addr, err error) {
	if host == "*" {
		host = "0.0.0.0"
	}
	if host == "" {
		ip, err := reachable()
		return ip, ip, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if !ip.IsUnspecified() {
			return ip, ip, nil
		}
		out, err := reachable()
		return ip, out, err
	}
	ifc, err := net.InterfaceByName(host)
	if err != nil {
		return bind, advertise, fmt.Errorf("response stream host %q is neither an IP address nor an interface: %w", host, err)
	}
	addrs, err := ifc.Addrs()
	if err != nil {
		return bind, advertise, fmt.Errorf("addresses of interface %s: %w", host, err)
	}
	ip := best(addrs)
	if !ip.IsValid() {
		return bind, advertise, fmt.Errorf("interface %s has no usable address", host)
	}
	return ip, ip, nil
}

// reachable returns the address to advertise when nobody chose one; loopback on a machine without a network, where all
// workers are local.
func reachable() (netip.Addr, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, fmt.Errorf("list network addresses: %w", err)
	}
	if ip := best(addrs); ip.IsValid() {
		return ip, nil
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
}

// best returns the first IPv4 address that is not loopback, else the first such IPv6 address, else a loopback one.
// Link-local addresses need a zone, which a worker elsewhere can't know.
func best(addrs []net.Addr) (ip netip.Addr) {
	// Ranks: 3 for IPv4, 2 for IPv6, 1 for loopback. Of equal ones the first wins, in the system's order of interfaces.
	rank := 0
	for _, a := range addrs {
		prefix, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		x, ok := netip.AddrFromSlice(prefix.IP)
		if !ok {
			continue
		}
		// net writes IPv4 addresses in sixteen bytes now and then.
		x = x.Unmap()
		r := 1
		switch {
		case x.IsLinkLocalUnicast(), x.IsMulticast():
			continue
		case x.IsLoopback():
		case x.Is4():
			r = 3
		default:
			r = 2
		}
		if r > rank {
			ip, rank = x, r
		}
	}
	return ip
}
