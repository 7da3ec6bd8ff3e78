//go:build unix

package statsd_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
	"github.com/weir-dev/weir/clients/go/statsd/statsdtest"
)

// The tests in this file use the real agent: the binary WEIR_BIN names, or else the one built from the repository.

var weirBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEIR_BIN"); path != "" {
		return path, nil
	}
	root, err := repository()
	if err != nil {
		return "", err
	}
	build := exec.Command("cargo", "build", "--locked", "--bin", "weir")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cargo build: %w\n%s", err, out)
	}
	target := os.Getenv("CARGO_TARGET_DIR")
	if target == "" {
		target = filepath.Join(root, "target")
	}
	return filepath.Join(target, "debug", "weir"), nil
})

// errAlone says that the module is used without the repository around it.
var errAlone = errors.New("the client stands alone here, and WEIR_BIN does not name the agent's binary")

// repository returns the folder of the repository, or errAlone.
func repository() (string, error) {
	root, err := filepath.Abs("../../..")
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(root, "Cargo.toml")); err != nil {
		return "", errAlone
	}
	return root, nil
}

func weir(t testing.TB) string {
	t.Helper()
	path, err := weirBinary()
	if errors.Is(err, errAlone) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// readByAgent returns the agent's parse of packets.
func readByAgent(t *testing.T, packets []string) []map[string]any {
	t.Helper()
	cmd := exec.Command(weir(t), "parse", "-")
	cmd.Stdin = strings.NewReader(strings.Join(packets, ""))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("weir parse: %v\n%s", err, &stderr)
	}
	var messages []map[string]any
	if err := json.Unmarshal(out, &messages); err != nil {
		t.Fatalf("weir parse: %v", err)
	}
	return messages
}

// TestAgentAcceptsWhateverIsSent hands random text and numbers to every kind of call and has the agent read the
// outcome.
func TestAgentAcceptsWhateverIsSent(t *testing.T) {
	seed := statsd.SeedOf(t)
	r := rand.New(rand.NewSource(seed))
	text := func() string {
		b := make([]byte, r.Intn(1<<r.Intn(8)))
		for i := range b {
			if b[i] = byte(r.Intn(256)); r.Intn(3) > 0 {
				const telling = "|:,#@\n\rT_e{sc}m\\ab"
				b[i] = telling[r.Intn(len(telling))]
			}
		}
		return string(b)
	}
	var packets []string
	for i := 0; i < 150; i++ {
		name, tag, value := text(), text(), text()
		for c, k := range fuzzClients(t, tag) {
			callEverything(c, name, tag, value, r.Int63()>>r.Intn(64), math.Float64frombits(r.Uint64()),
				r.Float64()*1.2)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
			checkPackets(t, k.packets, fuzzLimit)
			packets = append(packets, k.packets...)
		}
	}
	lines := strings.Split(strings.TrimSuffix(strings.Join(packets, ""), "\n"), "\n")
	messages := readByAgent(t, packets)
	if len(messages) != len(lines) || len(lines) < 5000 {
		t.Fatalf("%d lines are read as %d messages", len(lines), len(messages))
	}
	for i, m := range messages {
		if class, refused := m["error"]; refused {
			t.Errorf("refused as %v: %q", class, lines[i])
			continue
		}
		// The parser of the test package has to agree, because the fuzz tests rely on it.
		own, err := statsdtest.Parse(lines[i])
		if err != nil || own.Kind != m["kind"] || own.Kind == statsdtest.Metric && (own.Name != m["name"] ||
			own.Type != m["type"]) {
			t.Errorf("%q is %v for the agent and %+v, %v for the test package", lines[i], m, own, err)
		}
	}
}

// TestVectorsThroughTheClient sends the shared vectors, and has the agent read them back.
func TestVectorsThroughTheClient(t *testing.T) {
	root, err := repository()
	if err != nil {
		t.Skip(err)
	}
	f, err := os.Open(filepath.Join(root, "tests/vectors/protocol.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	k := &keeper{}
	c, err := statsd.NewWithWriter(k, statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(),
		statsd.WithoutClientSideAggregation(),
		statsd.WithWorkersCount(1), statsd.WithMaxBytesPerPayload(60000))
	if err != nil {
		t.Fatal(err)
	}
	direct := &statsd.ClientDirect{Client: c}
	var want []map[string]any
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v struct {
			Expect []map[string]any `json:"expect"`
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		for _, m := range v.Expect {
			if m["kind"] != "metric" {
				continue
			}
			for _, section := range []string{"local", "external", "card", "rate", "ts"} {
				delete(m, section)
			}
			var tags []string
			if list, ok := m["tags"].([]any); ok {
				for _, tag := range list {
					tags = append(tags, tag.(string))
				}
			}
			name := m["name"].(string)
			values, _ := m["values"].([]any)
			send := func(v float64) error {
				switch m["type"] {
				case "c":
					return c.CountFloat(name, v, tags, 1)
				case "g":
					return c.Gauge(name, v, tags, 1)
				case "h":
					return c.Histogram(name, v, tags, 1)
				default:
					return c.TimeInMilliseconds(name, v, tags, 1)
				}
			}
			switch {
			case m["type"] == "s":
				err = c.Set(name, m["set"].(string), tags, 1)
				want = append(want, m)
			case m["type"] == "d":
				var all []float64
				for _, v := range values {
					all = append(all, v.(float64))
				}
				err = direct.DistributionSamples(name, all, tags, 1)
				want = append(want, m)
			default:
				for _, v := range values {
					x := v.(float64)
					if m["type"] == "ms" {
						// Six decimals are the format.
						x = math.Round(x*1e6) / 1e6
					}
					err = send(x)
					one := map[string]any{"kind": "metric", "name": name, "type": m["type"], "values": []any{x}}
					if m["tags"] != nil {
						one["tags"] = m["tags"]
					}
					want = append(want, one)
				}
			}
			if err != nil {
				t.Fatalf("%v: %v", m, err)
			}
		}
	}
	c.Close()
	got := readByAgent(t, k.packets)
	if len(got) != len(want) || len(want) < 120 {
		t.Fatalf("%d messages sent, %d read", len(want), len(got))
	}
	for i := range want {
		if tags, ok := want[i]["tags"].([]any); ok && len(tags) == 0 {
			delete(want[i], "tags")
		}
		if !reflect.DeepEqual(got[i], want[i]) {
			t.Errorf("read %v, sent %v", got[i], want[i])
		}
	}
}

// agent is a running weir.
type agent struct {
	t         testing.TB
	cmd       *exec.Cmd
	addresses map[string]string
	out       bytes.Buffer
	errs      bytes.Buffer
	mu        sync.Mutex
	exited    chan error
}

// startAgent starts the agent with listeners of all kinds; sockets are in dir.
func startAgent(t testing.TB, dir string) *agent {
	t.Helper()
	a := &agent{t: t, addresses: map[string]string{}, exited: make(chan error, 1)}
	a.cmd = exec.Command(weir(t), "run", "--udp", "127.0.0.1:0", "--tcp", "127.0.0.1:0", "--uds", filepath.Join(dir,
		"g"),
		"--uds-stream", filepath.Join(dir, "s"), "--admin", "127.0.0.1:0", "--output", "stdout")
	// The agent takes settings from its environment, and refuses those it does not know.
	a.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "NO_COLOR=1"}
	a.cmd.Stdout = &a.out
	errs, err := a.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan struct{})
	go func() {
		lines := bufio.NewScanner(errs)
		for lines.Scan() {
			line := lines.Text()
			a.mu.Lock()
			fmt.Fprintln(&a.errs, line)
			if _, address, found := strings.Cut(line, "listening on "); found {
				scheme, rest, _ := strings.Cut(strings.TrimSpace(address), "://")
				if a.addresses[scheme] = rest; len(a.addresses) == 4 {
					close(ready)
				}
			}
			a.mu.Unlock()
		}
		a.exited <- a.cmd.Wait()
	}()
	t.Cleanup(func() {
		if a.cmd.ProcessState == nil {
			_ = a.cmd.Process.Kill()
		}
	})
	select {
	case <-ready:
	case err := <-a.exited:
		a.mu.Lock()
		defer a.mu.Unlock()
		t.Fatalf("the agent did not start: %v\n%s", err, &a.errs)
	case <-time.After(60 * time.Second):
		t.Fatal("the agent was not ready after 60 s")
	}
	return a
}

// nearlyRead waits until the agent has read nearly all data in its UDP socket, because the kernel drops packets it
// has no room for. Both the room and the agent's delay differ between machines.
func (a *agent) nearlyRead() {
	_, text, _ := strings.Cut(a.addresses["udp"], ":")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return
	}
	for end := time.Now().Add(60 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		table, _ := os.ReadFile("/proc/net/udp")
		// While others close sockets, the table can miss one.
		waiting := int64(-1)
		for _, line := range strings.Split(string(table), "\n") {
			f := strings.Fields(line)
			if len(f) < 5 || !strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
				continue
			}
			_, bytes, _ := strings.Cut(f[4], ":")
			n, _ := strconv.ParseInt(bytes, 16, 64)
			waiting = max(waiting, 0) + n
		}
		if waiting >= 0 && waiting < 32<<10 {
			return
		}
	}
}

// stop ends the agent and returns its deliveries: sums of counters, numbers of values, members of sets, last values
// of gauges.
func (a *agent) stop() map[string]float64 {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.t.Fatal(err)
	}
	select {
	case err := <-a.exited:
		if err != nil {
			a.t.Fatalf("the agent ended with %v\n%s", err, &a.errs)
		}
	case <-time.After(60 * time.Second):
		a.t.Fatal("the agent did not end within 60 s")
	}
	got := map[string]float64{}
	for _, line := range strings.Split(strings.TrimSpace(a.out.String()), "\n") {
		var p struct {
			Metric   string
			Type     string
			Interval float64
			Tags     []string
			Value    float64
			Count    float64 `json:"cnt"`
		}
		if line == "" {
			continue
		}
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			a.t.Fatalf("%v: %s", err, line)
		}
		key := p.Metric + "|" + strings.Join(p.Tags, ",")
		switch p.Type {
		case "rate":
			got[key] += p.Value * p.Interval
		case "count":
			got[key] += p.Value
		case "sketch":
			got[key] += p.Count
		case "gauge":
			got[key] = p.Value
		}
	}
	for k, v := range got {
		got[k] = math.Round(v)
	}
	return got
}

// TestTotalsWithTheRealAgent sends a random mix from 8 goroutines over every transport and compares the agent's
// deliveries.
func TestTotalsWithTheRealAgent(t *testing.T) {
	for _, x := range []struct{ scheme, prefix string }{{"udp", ""}, {"unixgram", "unixgram://"}, {"unix", "unix://"},
		{"tcp", "tcp://"}} {
		for mode, options := range map[string][]statsd.Option{
			"default": nil, "extended": {statsd.WithExtendedClientSideAggregation()},
			"not aggregated": {statsd.WithoutClientSideAggregation()},
		} {
			t.Run(x.scheme+"/"+mode, func(t *testing.T) {
				t.Parallel()
				a := startAgent(t, shortDir(t))
				c, err := statsd.New(x.prefix+a.addresses[x.scheme], append([]statsd.Option{
					statsd.WithoutTelemetry(), statsd.WithoutOriginDetection(), statsd.WithSenderQueueSize(1 << 20),
					statsd.WithWriteTimeout(60 * time.Second), statsd.WithAggregationInterval(10 * time.Millisecond),
				}, options...)...)
				if err != nil {
					t.Fatal(err)
				}
				seed := statsd.SeedOf(t)
				want := map[string]float64{}
				var mu sync.Mutex
				var all sync.WaitGroup
				for g := 0; g < 8; g++ {
					all.Add(1)
					go func() {
						defer all.Done()
						own := map[string]float64{}
						r := rand.New(rand.NewSource(seed + int64(g)))
						handle := c.NewDistribution("handle", "a:1")
						for i := 0; i < 3000; i++ {
							tag := fmt.Sprint("k:", r.Intn(5))
							switch r.Intn(5) {
							case 0:
								n := int64(r.Intn(100))
								_ = c.Count("count", n, []string{tag}, 1)
								own["count|"+tag] += float64(n)
							case 1:
								_ = c.Distribution("dist", r.Float64(), []string{tag}, 1)
								own["dist|"+tag]++
							case 2:
								_ = c.Histogram("hist", 1, []string{tag}, 1)
								own["hist.count|"+tag]++
							case 3:
								handle.Observe(2)
								own["handle|a:1"]++
							case 4:
								_ = c.Gauge(fmt.Sprint("gauge", g), float64(i), nil, 1)
								own[fmt.Sprint("gauge", g, "|")] = float64(i)
							}
							if i%200 == 0 {
								_ = c.Flush()
								if x.scheme == "udp" {
									a.nearlyRead()
								}
							}
						}
						mu.Lock()
						defer mu.Unlock()
						for k, v := range own {
							want[k] += v
						}
					}()
				}
				all.Wait()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				if tm := c.GetTelemetry(); tm.TotalPayloadsDropped != 0 {
					t.Errorf("packets were dropped: %+v", tm)
				}
				got := a.stop()
				for k, v := range want {
					if got[k] != v {
						t.Errorf("%s is %v, not %v", k, got[k], v)
					}
				}
			})
		}
	}
}

// TestRealAgentRestarts sends to an agent, to nobody, and to the agent's successor.
func TestRealAgentRestarts(t *testing.T) {
	for _, x := range []struct{ scheme, file string }{{"unixgram", "g"}, {"unix", "s"}} {
		t.Run(x.scheme, func(t *testing.T) {
			t.Parallel()
			dir := shortDir(t)
			c, err := statsd.New(x.scheme+"://"+filepath.Join(dir, x.file), statsd.WithoutTelemetry(),
				statsd.WithoutOriginDetection(), statsd.WithWriteTimeout(60*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			for life := 1; life <= 2; life++ {
				a := startAgent(t, dir)
				for i := 0; i < 5; i++ {
					_ = c.Count("alive", int64(life), nil, 1)
					_ = c.Flush()
				}
				if got := a.stop()["alive|"]; got != float64(5*life) {
					t.Errorf("life %d: the agent got %v of %d", life, got, 5*life)
				}
				dropped := c.GetTelemetry().TotalPayloadsDropped
				_ = c.Count("nobody", 1, nil, 1)
				_ = c.Flush()
				if n := c.GetTelemetry().TotalPayloadsDropped - dropped; n != 1 {
					t.Errorf("life %d: with no agent %d packets were dropped, not 1", life, n)
				}
			}
		})
	}
}

func shortDir(t testing.TB) string {
	t.Helper()
	// Socket paths are limited to about 100 bytes, which test names can exceed.
	dir, err := os.MkdirTemp("", "sd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
