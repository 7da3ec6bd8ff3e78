package statsd

import (
	"encoding/binary"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"
)

// TestMain makes the tests independent of the environment they run in.
func TestMain(m *testing.M) {
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "DD_") || strings.HasPrefix(v, "DATADOG_") {
			name, _, _ := strings.Cut(v, "=")
			os.Unsetenv(name)
		}
	}
	os.Exit(m.Run())
}

// recorder is a writer that keeps packets.
type recorder struct {
	mu      sync.Mutex
	packets []string
	closed  bool
	// block, if set, holds up every write until it is closed.
	block chan struct{}
	// entered, if set, is called at the start of every write.
	entered chan struct{}
}

func (r *recorder) Write(b []byte) (int, error) {
	if r.entered != nil {
		select {
		case r.entered <- struct{}{}:
		default:
		}
	}
	if r.block != nil {
		<-r.block
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = append(r.packets, string(b))
	return len(b), nil
}

func (r *recorder) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	return nil
}

func (r *recorder) lines() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return splitLines(r.packets)
}

func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.packets = nil
}

func splitLines(packets []string) (lines []string) {
	for _, p := range packets {
		lines = append(lines, strings.Split(strings.TrimSuffix(p, "\n"), "\n")...)
	}
	return lines
}

// sorted returns the lines in order, for contexts are flushed in any order.
func (r *recorder) sorted() []string {
	l := r.lines()
	sort.Strings(l)
	return l
}

// record returns a client without telemetry, origin and clock, and its output.
func record(t testing.TB, options ...Option) (*Client, *recorder) {
	t.Helper()
	r := &recorder{}
	base := []Option{WithoutTelemetry(), WithoutOriginDetection(), WithAggregationInterval(time.Hour),
		WithBufferFlushInterval(time.Hour)}
	c, err := NewWithWriter(r, append(base, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, r
}

func equalLines(t *testing.T, got, want []string) {
	t.Helper()
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("lines are\n%s\nwanted\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// patience is long enough for a machine that does other work; only a failure reaches it.
const patience = 60 * time.Second

// holdsInTime waits until a condition holds, and says whether it came to that.
func holdsInTime(holds func() bool) bool {
	for end := time.Now().Add(patience); !holds(); {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(time.Millisecond)
	}
	return true
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	if !holdsInTime(holds) {
		t.Fatalf("waited %v for this: %s", patience, what)
	}
}

// server receives packets on a real socket.
type server struct {
	address string
	mu      sync.Mutex
	packets []string
	frames  []string
	close   func()
	// pause, held for writing, keeps the server from reading after the next packet.
	pause sync.RWMutex
}

func (s *server) add(b []byte) {
	s.mu.Lock()
	s.packets = append(s.packets, string(b))
	s.mu.Unlock()
}

func (s *server) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return splitLines(s.packets)
}

func (s *server) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.packets)
}

// readAll waits until the server has read everything sent so far. Over UDP the kernel drops packets it has no
// room for, however little that is, so a sender that must lose nothing stays this close to its receiver. Any goroutine
// may call it.
func (s *server) readAll(c *Client) bool {
	sent := c.clientEx.core.sender.sentPackets.Load()
	return holdsInTime(func() bool { return uint64(s.count()) >= sent })
}

func shortDir(t testing.TB) string {
	// Socket paths are limited to about 100 bytes, which test names can exceed.
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func serveUDP(t testing.TB) *server {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadBuffer(8 << 20)
	s := &server{address: conn.LocalAddr().String()}
	s.readDatagrams(t, conn)
	return s
}

func serveUnixgram(t testing.TB, path string) *server {
	t.Helper()
	if path == "" {
		path = filepath.Join(shortDir(t), "s")
	}
	_ = os.Remove(path)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &server{address: path}
	s.readDatagrams(t, conn)
	return s
}

func (s *server) readDatagrams(t testing.TB, conn net.Conn) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 70000)
		for {
			n, err := conn.Read(b)
			if err != nil {
				return
			}
			s.add(b[:n])
			s.pause.RLock()
			s.pause.RUnlock()
		}
	}()
	var once sync.Once
	s.close = func() { once.Do(func() { conn.Close(); <-done }) }
	t.Cleanup(s.close)
}

func serveStream(t testing.TB, network, address string) *server {
	t.Helper()
	if address == "" {
		address = "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(shortDir(t), "s")
		}
	}
	if network == "unix" {
		_ = os.Remove(address)
	}
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	if u, ok := l.(*net.UnixListener); ok {
		// By then another socket may be at the path.
		u.SetUnlinkOnClose(false)
	}
	s := &server{address: l.Addr().String()}
	var all sync.WaitGroup
	var mu sync.Mutex
	conns := map[net.Conn]bool{}
	all.Add(1)
	go func() {
		defer all.Done()
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns[conn] = true
			mu.Unlock()
			all.Add(1)
			go func() {
				defer all.Done()
				defer conn.Close()
				var head [4]byte
				for {
					_, err := io.ReadFull(conn, head[:])
					if err == nil {
						frame := make([]byte, binary.LittleEndian.Uint32(head[:]))
						if _, err = io.ReadFull(conn, frame); err == nil {
							s.add(frame)
						}
					}
					if err != nil {
						return
					}
					s.pause.RLock()
					s.pause.RUnlock()
				}
			}()
		}
	}()
	var once sync.Once
	s.close = func() {
		once.Do(func() {
			l.Close()
			mu.Lock()
			for c := range conns {
				c.Close()
			}
			mu.Unlock()
			all.Wait()
		})
	}
	t.Cleanup(s.close)
	return s
}

// SeedOf returns the seed of random numbers: the same each time, unless WEIR_SEED is a number, or "random".
func SeedOf(t testing.TB) int64 {
	t.Helper()
	seed := int64(1)
	switch text := os.Getenv("WEIR_SEED"); text {
	case "":
	case "random":
		seed = time.Now().UnixNano()
	default:
		var err error
		if seed, err = strconv.ParseInt(text, 10, 64); err != nil {
			t.Fatalf("WEIR_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	return seed
}

// noLeaks fails the test if goroutines or descriptors are left at its end. It is called first, so that it runs after
// all clean-ups.
func noLeaks(t *testing.T) {
	t.Helper()
	// The runtime opens descriptors of its own with the first socket, and keeps them.
	if s, err := net.ListenPacket("udp", "127.0.0.1:0"); err == nil {
		s.Close()
	}
	goroutines, descriptors := runtime.NumGoroutine(), openDescriptors(t)
	t.Cleanup(func() {
		if !holdsInTime(func() bool {
			return runtime.NumGoroutine() <= goroutines && openDescriptors(t) <= descriptors
		}) {
			b := make([]byte, 1<<16)
			t.Errorf("waited %v for the end of goroutines and descriptors:\n%s", patience, b[:runtime.Stack(b, true)])
		}
	})
}

func openDescriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(entries)
}

// alias returns a string that shares memory with b, as fast HTTP servers make them.
func alias(b []byte) string { return unsafe.String(&b[0], len(b)) }

func sortStrings(s []string) { sort.Strings(s) }

// parsed is a metric line taken apart.
type parsed struct {
	name, kind string
	values     []string
	rate       float64
	tags       string
}

func parse(t testing.TB, line string) parsed {
	t.Helper()
	sections := strings.Split(line, "|")
	name, values, ok := strings.Cut(sections[0], ":")
	if !ok || len(sections) < 2 {
		t.Fatalf("not a metric: %q", line)
	}
	p := parsed{name: name, kind: sections[1], rate: 1}
	if p.values = []string{values}; p.kind != "s" {
		p.values = strings.Split(values, ":")
	}
	for _, s := range sections[2:] {
		switch {
		case strings.HasPrefix(s, "#"):
			p.tags = s[1:]
		case strings.HasPrefix(s, "@"):
			rate, err := strconv.ParseFloat(s[1:], 64)
			if err != nil {
				t.Fatalf("rate of %q: %v", line, err)
			}
			p.rate = rate
		}
	}
	return p
}

// total is the sum of a counter, the value of a gauge and the number of values of the other kinds.
func (p parsed) total() int64 {
	if p.kind != "c" && p.kind != "g" {
		return int64(len(p.values))
	}
	n, _ := strconv.ParseInt(p.values[0], 10, 64)
	return n
}

func mustWrite(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func dirFS(dir string) fs.FS { return os.DirFS(dir) }

func uitoa(n uint64) string { return strconv.FormatUint(n, 10) }
