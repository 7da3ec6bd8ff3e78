package statsd

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
)

const defaultPort = "8125"

const (
	transportUDP       = "udp"
	transportUDS       = "uds"
	transportUDSStream = "uds-stream"
	transportTCP       = "tcp"
	transportPipe      = "pipe"
	transportCustom    = "custom"
)

// resolveAddress completes an address: from the environment if it is empty, with the default port if it has none. It
// does not look up names.
func resolveAddress(addr string) string {
	port := defaultPort
	if addr == "" {
		if fromURL := addressFromURL(os.Getenv("DD_DOGSTATSD_URL")); fromURL != "" {
			return fromURL
		}
		addr = os.Getenv("DD_AGENT_HOST")
		if p := os.Getenv("DD_DOGSTATSD_PORT"); p != "" {
			port = p
		}
	}
	if addr == "" || hasSocketPrefix(addr) || isColumnsAddress(addr) {
		return addr
	}
	scheme := ""
	for _, s := range []string{"udp://", "tcp://"} {
		if strings.HasPrefix(addr, s) {
			scheme, addr = s, addr[len(s):]
		}
	}
	if scheme == "udp://" {
		scheme = ""
	}
	if ip, err := netip.ParseAddr(addr); err == nil && ip.Is6() {
		return scheme + net.JoinHostPort(addr, port)
	}
	if strings.HasPrefix(addr, "[") && strings.HasSuffix(addr, "]") {
		return scheme + addr + ":" + port
	}
	if strings.Contains(addr, ":") {
		return scheme + addr
	}
	return scheme + addr + ":" + port
}

func hasSocketPrefix(addr string) bool {
	for _, p := range []string{UnixAddressPrefix, UnixAddressDatagramPrefix, UnixAddressStreamPrefix,
		WindowsPipeAddressPrefix} {
		if strings.HasPrefix(addr, p) {
			return true
		}
	}
	return false
}

// addressFromURL returns the address meant by DD_DOGSTATSD_URL, or nothing if it is not one, so that the other
// variables apply.
func addressFromURL(text string) string {
	if text == "" || hasSocketPrefix(text) || isColumnsAddress(text) {
		return text
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "udp" || u.Host == "" {
		return ""
	}
	if u.Port() != "" {
		return u.Host
	}
	return net.JoinHostPort(u.Hostname(), defaultPort)
}

// ErrNoAddress is returned by constructors that are given no address and find none in DD_DOGSTATSD_URL and
// DD_AGENT_HOST. Its text, and that of other errors which the client of Datadog has too, is the one used there.
var ErrNoAddress = errors.New("No address passed and autodetection from environment failed")

// newTransport makes the transport of an address and returns the sizes that suit it. Nothing is connected yet, except a
// UDP socket to a numeric address.
func newTransport(addr string, o *Options) (t Transport, unix bool, err error) {
	if addr == "" {
		return nil, false, ErrNoAddress
	}
	for _, x := range []struct{ prefix, network string }{
		{UnixAddressPrefix, ""}, {UnixAddressDatagramPrefix, "unixgram"}, {UnixAddressStreamPrefix, "unix"},
	} {
		if strings.HasPrefix(addr, x.prefix) {
			path := addr[len(x.prefix):]
			if path == "" {
				return nil, false, fmt.Errorf("statsd: address %q has no socket path", addr)
			}
			return newSocketTransport(path, x.network, o), true, nil
		}
	}
	if strings.HasPrefix(addr, WindowsPipeAddressPrefix) {
		t, err = newPipeTransport(addr, o.writeTimeout)
		return t, false, err
	}
	network := "udp"
	if strings.HasPrefix(addr, "tcp://") {
		network, addr = "tcp", addr[len("tcp://"):]
	}
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, false, fmt.Errorf("statsd: address %q is not host:port: %w", addr, err)
	}
	number, err := net.LookupPort(network, port)
	if err != nil || number == 0 {
		return nil, false, fmt.Errorf("statsd: address %q has no valid port", addr)
	}
	if network == "tcp" {
		return newTCPTransport(host, number, o), false, nil
	}
	t, err = newUDPTransport(host, number, o)
	return t, false, err
}
