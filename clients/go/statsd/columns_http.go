package statsd

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

const (
	columnsHTTP     = "http://"
	columnsHTTPUnix = "http+unix://"
)

func isColumnsAddress(addr string) bool {
	return strings.HasPrefix(addr, columnsHTTP) || strings.HasPrefix(addr, columnsHTTPUnix)
}

// endpoint makes requests of HTTP/1.1, each on a connection of its own: there is one every few seconds, and a
// connection that the agent has just closed cannot be mistaken for an agent that has failed. Package net/http would
// add four megabytes to programs that do not serve HTTP.
type endpoint struct {
	network, address string
	host, path       string
	resolve          func(ctx context.Context, host, port string) (string, error)
	connectTimeout   time.Duration
	// head are the header lines that are the same in all requests.
	head string

	mu   sync.Mutex
	conn net.Conn
	end  time.Time
}

// newEndpoint understands the address of an endpoint for columns.
func newEndpoint(addr, local, external string, o *Options) (*endpoint, error) {
	e := &endpoint{network: "tcp", connectTimeout: o.connectTimeout}
	if path, ok := strings.CutPrefix(addr, columnsHTTPUnix); ok {
		if path == "" {
			return nil, fmt.Errorf("statsd: address %q has no socket path", addr)
		}
		e.network, e.address, e.host = "unix", path, "localhost"
	} else {
		u, err := url.Parse(addr)
		if err != nil || u.Scheme != "http" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" {
			return nil, fmt.Errorf("statsd: address %q is not http://HOST:PORT or http+unix://PATH", addr)
		}
		port := u.Port()
		if port == "" {
			port = defaultPort
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("statsd: address %q has no valid port", addr)
		}
		e.address = net.JoinHostPort(u.Hostname(), port)
		e.host, e.path = e.address, strings.TrimRight(u.EscapedPath(), "/")
		e.resolve = resolverOf(o)
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return nil, fmt.Errorf("statsd: no random number for this client: %w", err)
	}
	e.head = "Host: " + e.host + "\r\nUser-Agent: weir-go/" + version +
		"\r\nContent-Type: application/x-protobuf\r\nConnection: close\r\nx-weir-client: " + hex.EncodeToString(id[:]) +
		"\r\n"
	if local = strings.TrimPrefix(local, "|c:"); local != "" {
		e.head += "x-dsd-ld: " + local + "\r\n"
	}
	if external = strings.TrimPrefix(external, "|e:"); external != "" {
		e.head += "x-dsd-ed: " + external + "\r\n"
	}
	return e, nil
}

// resolverOf returns the lookup of [WithResolver] for a dialer, or nothing if there is none.
func resolverOf(o *Options) func(ctx context.Context, host, port string) (string, error) {
	if o.resolver == nil {
		return nil
	}
	return func(ctx context.Context, host, port string) (string, error) {
		if _, err := numericHost(host); err == nil {
			return net.JoinHostPort(host, port), nil
		}
		found, err := o.resolver(ctx, host)
		if err != nil {
			return "", err
		}
		if len(found) == 0 {
			return "", fmt.Errorf("statsd: %s has no address", host)
		}
		return net.JoinHostPort(found[0].String(), port), nil
	}
}

// datagramAddress returns the address for datagrams beside an endpoint: that of the environment, or else the agent's
// default port on the same host.
func datagramAddress(endpoint string) string {
	if addr := resolveAddress(""); addr != "" && !isColumnsAddress(addr) {
		return addr
	}
	host, port := os.Getenv("DD_AGENT_HOST"), os.Getenv("DD_DOGSTATSD_PORT")
	if host == "" {
		host = "127.0.0.1"
		if u, err := url.Parse(endpoint); err == nil && u.Scheme == "http" && u.Hostname() != "" {
			host = u.Hostname()
		}
	}
	if port == "" {
		port = defaultPort
	}
	return net.JoinHostPort(host, port)
}

// columnsAddress returns the endpoint beside an address for datagrams: the same host and port, or the socket
// dsd-http.sock in the same folder.
func columnsAddress(datagrams string) (string, error) {
	for _, prefix := range []string{UnixAddressDatagramPrefix, UnixAddressStreamPrefix, UnixAddressPrefix} {
		if path, ok := strings.CutPrefix(datagrams, prefix); ok {
			return columnsHTTPUnix + path[:strings.LastIndexByte(path, '/')+1] + "dsd-http.sock", nil
		}
	}
	if strings.HasPrefix(datagrams, WindowsPipeAddressPrefix) {
		return "", errors.New("statsd: WithColumnar needs the address of the endpoint beside a named pipe")
	}
	return columnsHTTP + strings.TrimPrefix(datagrams, "tcp://"), nil
}

// answer is the answer to a request. The status is 0 if there was none.
type answer struct {
	status     int
	duplicate  bool
	retryAfter time.Duration
	text       string
}

// fault returns nothing for an accepted payload.
func (a *answer) fault() error {
	if a.status/100 == 2 {
		return nil
	}
	if a.text == "" {
		return fmt.Errorf("statsd: the agent answers %d to columns", a.status)
	}
	return fmt.Errorf("statsd: the agent answers %d to columns: %s", a.status, a.text)
}

// hurry ends every request at a moment.
func (e *endpoint) hurry(end time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.end = end
	if e.conn != nil {
		_ = e.conn.SetDeadline(end)
	}
}

// use makes a connection the one that hurry ends.
func (e *endpoint) use(conn net.Conn, end time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.conn = conn
	if conn == nil {
		return
	}
	if !e.end.IsZero() && e.end.Before(end) {
		end = e.end
	}
	_ = conn.SetDeadline(end)
}

// post sends a payload. Without a number it only looks whether somebody takes columns.
func (e *endpoint) post(path string, body []byte, number, oldest uint64) (answer, error) {
	timeout := columnsTimeout
	if number == 0 {
		timeout = 2 * e.connectTimeout
	}
	end := time.Now().Add(timeout)
	conn, err := e.dial()
	if err != nil {
		return answer{}, fmt.Errorf("statsd: columns: %w", err)
	}
	defer conn.Close()
	e.use(conn, end)
	defer e.use(nil, end)
	b := make([]byte, 0, len(e.head)+256)
	b = append(b, "POST "+e.path+path+" HTTP/1.1\r\n"+e.head...)
	if number != 0 {
		b = append(b, "x-weir-sequence: "...)
		b = strconv.AppendUint(b, number, 10)
		b = append(b, "\r\nx-weir-oldest: "...)
		b = strconv.AppendUint(b, oldest, 10)
		b = append(b, "\r\n"...)
	}
	b = append(b, "Content-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	parts := net.Buffers{b, body}
	_, written := parts.WriteTo(conn)
	// An agent may refuse a payload before it has read it.
	a, err := readAnswer(conn)
	if err != nil {
		if written != nil {
			err = written
		}
		return answer{}, fmt.Errorf("statsd: columns: %w", err)
	}
	return a, nil
}

func (e *endpoint) dial() (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), e.connectTimeout)
	defer cancel()
	address := e.address
	if e.resolve != nil {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			return nil, err
		}
		if address, err = e.resolve(ctx, host, port); err != nil {
			return nil, err
		}
	}
	var d net.Dialer
	return d.DialContext(ctx, e.network, address)
}

// readAnswer reads status, headers and the beginning of the text.
func readAnswer(conn net.Conn) (a answer, err error) {
	r := textproto.NewReader(bufio.NewReader(io.LimitReader(conn, 64<<10)))
	for a.status/100 <= 1 {
		line, err := r.ReadLine()
		if err != nil {
			return answer{}, err
		}
		protocol, rest, _ := strings.Cut(line, " ")
		code, _, _ := strings.Cut(rest, " ")
		if a.status, err = strconv.Atoi(code); err != nil || !strings.HasPrefix(protocol, "HTTP/1.") ||
			a.status < 100 || a.status > 999 {
			return answer{}, fmt.Errorf("%q is no answer of HTTP/1.1", line)
		}
		header, err := r.ReadMIMEHeader()
		if err != nil {
			return answer{}, err
		}
		a.duplicate = header.Get("X-Weir-Duplicate") != ""
		a.retryAfter = parseRetryAfter(header.Get("Retry-After"))
	}
	if a.status/100 != 2 {
		text, _ := io.ReadAll(io.LimitReader(r.R, 512))
		a.text = strings.TrimSpace(strings.ToValidUTF8(string(text), "_"))
	}
	return a, nil
}

// parseRetryAfter understands seconds and dates.
func parseRetryAfter(text string) time.Duration {
	if seconds, err := strconv.ParseUint(text, 10, 31); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := time.Parse("Mon, 02 Jan 2006 15:04:05 GMT", text); err == nil {
		return max(time.Until(at), 0)
	}
	return 0
}
