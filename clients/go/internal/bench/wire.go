package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	datadog "github.com/DataDog/datadog-go/v5/statsd"
	smira "github.com/smira/go-statsd"
	weir "github.com/weir-dev/weir/clients/go/statsd"
)

// receive is the receiver, run as a process of its own so that its work is not measured. It prints its address, and
// when its input is closed, the sum of the counters that arrived.
func receive(network string) error {
	if network == "unix" || strings.HasSuffix(network, "-drain") {
		return drain(strings.TrimSuffix(network, "-drain"))
	}
	conn, err := listen(network)
	if err != nil {
		return err
	}
	if b, ok := conn.(interface{ SetReadBuffer(int) error }); ok {
		_ = b.SetReadBuffer(16 << 20)
	}
	fmt.Println(conn.LocalAddr())
	var sum atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := make([]byte, 65536)
		for {
			n, _, err := conn.ReadFrom(b)
			if err != nil {
				return
			}
			total := int64(0)
			for text := string(b[:n]); text != ""; {
				line, rest, _ := strings.Cut(text, "\n")
				text = rest
				if _, value, ok := strings.Cut(line, ":"); ok && strings.Contains(value, "|c") {
					value, _, _ = strings.Cut(value, "|")
					v, _ := strconv.ParseInt(value, 10, 64)
					total += v
				}
			}
			sum.Add(total)
		}
	}()
	_, _ = io.Copy(io.Discard, os.Stdin)
	// Wait until everything in the kernel's buffer is read: nothing new comes, so the sum stops changing.
	for last := int64(-1); last != sum.Load(); {
		last = sum.Load()
		time.Sleep(50 * time.Millisecond)
	}
	conn.Close()
	<-done
	fmt.Println(sum.Load())
	return nil
}

func listen(network string) (net.PacketConn, error) {
	if network == "udp" {
		return net.ListenPacket("udp", "127.0.0.1:0")
	}
	dir, err := os.MkdirTemp("", "bench")
	if err != nil {
		return nil, err
	}
	return net.ListenPacket(network, filepath.Join(dir, "s"))
}

// drain is a receiver that only reads: packets of a datagram socket or the connections of a stream socket.
func drain(network string) error {
	empty := func(conn io.Reader) {
		b := make([]byte, 65536)
		for {
			if _, err := conn.Read(b); err != nil {
				return
			}
		}
	}
	if network != "unix" {
		conn, err := listen(network)
		if err != nil {
			return err
		}
		fmt.Println(conn.LocalAddr())
		go empty(conn.(io.Reader))
	} else {
		dir, err := os.MkdirTemp("", "bench")
		if err != nil {
			return err
		}
		l, err := net.Listen("unix", filepath.Join(dir, "s"))
		if err != nil {
			return err
		}
		fmt.Println(l.Addr())
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go empty(conn)
			}
		}()
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	fmt.Println(0)
	return nil
}

type receiver struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	stdout  *bufio.Scanner
	address string
}

func startReceiver(network string) *receiver {
	cmd := exec.Command(os.Args[0], "-receive", network)
	in, err := cmd.StdinPipe()
	if err != nil {
		panic(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		panic(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		panic(err)
	}
	r := &receiver{cmd: cmd, stdin: in, stdout: bufio.NewScanner(out)}
	r.stdout.Scan()
	r.address = r.stdout.Text()
	return r
}

func (r *receiver) stop() int64 {
	r.stdin.Close()
	r.stdout.Scan()
	n, err := strconv.ParseInt(r.stdout.Text(), 10, 64)
	if err != nil {
		panic(err)
	}
	_ = r.cmd.Wait()
	if strings.HasPrefix(r.address, "/") {
		_ = os.RemoveAll(filepath.Dir(r.address))
	}
	return n
}

// wireCalls is the number of calls in a run over a socket. A flush ends each hundredth part, because no agent is sent
// millions of messages without a pause.
const wireCalls = 400000

// overSocket makes calls with this many different names over a socket, and counts missing values as lost. Before it
// measures, it uses each name once, and three times where there are so many that each is idle for several flushes: ours
// keeps them from the time on that it sees them return.
func overSocket(network string, names []string, connect func(address string) (call func(name string),
	flush func() error, stop func())) side {
	return func(b *meter) {
		r := startReceiver(network)
		address := r.address
		if network != "udp" {
			address = "unixgram://" + address
		}
		call, flush, stop := connect(address)
		inTurn := func(calls int) {
			for i := 0; i < calls; i++ {
				call(names[i%len(names)])
				if i%(wireCalls/100) == wireCalls/100-1 {
					_ = flush()
				}
			}
			_ = flush()
		}
		first := len(names)
		if first > 10000 {
			first *= 3
		}
		inTurn(first)
		b.N = wireCalls
		b.start()
		inTurn(wireCalls)
		b.stop()
		stop()
		b.calls = uint64(first + wireCalls)
		b.lost = uint64(max(int64(first+wireCalls)-r.stop(), 0))
	}
}

func overSocketOurs(network string, names []string, options ...weir.Option) side {
	return overSocket(network, names, func(address string) (func(string), func() error, func()) {
		c, err := weir.New(address, append([]weir.Option{weir.WithoutTelemetry(), weir.WithoutOriginDetection()},
			options...)...)
		if err != nil {
			panic(err)
		}
		return func(name string) { _ = c.Count(name, 1, nil, 1) }, c.Flush, func() { _ = c.Close() }
	})
}

func overSocketTheirs(network string, names []string, options ...datadog.Option) side {
	return overSocket(network, names, func(address string) (func(string), func() error, func()) {
		c, err := datadog.New(address, append([]datadog.Option{datadog.WithoutTelemetry(),
			datadog.WithoutOriginDetection()}, options...)...)
		if err != nil {
			panic(err)
		}
		return func(name string) { _ = c.Count(name, 1, nil, 1) }, c.Flush, func() { _ = c.Close() }
	})
}

// wireBenchmarks are the benchmarks of the change that added aggregation to datadog-go: 1 to 200,000 metrics over UDP
// and Unix sockets.
func wireBenchmarks() []benchmark {
	var list []benchmark
	for _, network := range []string{"udp", "unixgram"} {
		for _, n := range []int{1, 10, 100, 1000, 10000, 100000, 200000} {
			names := namesOf(n)
			list = append(list,
				benchmark{fmt.Sprintf("%s, %d metrics, not aggregated", network, n), overSocketOurs(network, names,
					plainOurs...), overSocketTheirs(network, names, plainTheirs...)},
				benchmark{fmt.Sprintf("%s, %d metrics, aggregated", network, n), overSocketOurs(network, names),
					overSocketTheirs(network, names)},
			)
		}
	}
	return list
}

// passBenchmarks use each of many metrics once between two flushes, as a service with that many live contexts does.
// Only a Unix socket can take such a flush without a loss.
func passBenchmarks() []benchmark {
	var list []benchmark
	for _, n := range []int{10000, 100000, 200000} {
		names := namesOf(n)
		pass := func(connect func(address string) (func(string), func() error, func())) side {
			return func(b *meter) {
				r := startReceiver("unixgram")
				call, flush, stop := connect("unixgram://" + r.address)
				round := func() {
					for _, name := range names {
						call(name)
					}
					_ = flush()
				}
				round()
				b.N = 2 * n
				b.start()
				round()
				round()
				b.stop()
				stop()
				b.calls = uint64(3 * n)
				b.lost = uint64(max(int64(3*n)-r.stop(), 0))
			}
		}
		list = append(list, benchmark{fmt.Sprintf("unixgram, %d metrics, each once between flushes, aggregated", n),
			pass(func(address string) (func(string), func() error, func()) {
				c, err := weir.New(address, weir.WithoutTelemetry(), weir.WithoutOriginDetection(),
					weir.WithAggregationInterval(time.Hour), weir.WithSenderQueueSize(1<<20))
				if err != nil {
					panic(err)
				}
				return func(name string) { _ = c.Count(name, 1, nil, 1) }, c.Flush, func() { _ = c.Close() }
			}),
			pass(func(address string) (func(string), func() error, func()) {
				c, err := datadog.New(address, datadog.WithoutTelemetry(), datadog.WithoutOriginDetection(),
					datadog.WithAggregationInterval(time.Hour), datadog.WithSenderQueueSize(1<<20))
				if err != nil {
					panic(err)
				}
				return func(name string) { _ = c.Count(name, 1, nil, 1) }, c.Flush, func() { _ = c.Close() }
			})})
	}
	return list
}

// smiraBenchmarks compare with go-statsd, which has no aggregation and no flush: it is given time to send with its own
// ticker.
func smiraBenchmarks() []benchmark {
	var list []benchmark
	for _, n := range []int{0, 5} {
		var typed []smira.Tag
		for _, t := range tags[:n] {
			key, value, _ := strings.Cut(t, ":")
			typed = append(typed, smira.StringTag(key, value))
		}
		theirs := overSocket("udp", []string{name}, func(address string) (func(string), func() error, func()) {
			c := smira.NewClient(address, smira.TagStyle(smira.TagFormatDatadog), smira.MaxPacketSize(1432))
			return func(name string) { c.Incr(name, 1, typed...) }, func() error { return nil },
				func() { _ = c.Close() }
		})
		ours := func(options ...weir.Option) side {
			return overSocket("udp", []string{name}, func(address string) (func(string), func() error, func()) {
				c, err := weir.New(address, append([]weir.Option{weir.WithoutTelemetry(),
					weir.WithoutOriginDetection()}, options...)...)
				if err != nil {
					panic(err)
				}
				return func(name string) { _ = c.Count(name, 1, tags[:n], 1) }, c.Flush, func() { _ = c.Close() }
			})
		}
		list = append(list,
			benchmark{fmt.Sprintf("UDP, `Incr` with %d tags, aggregated here", n), ours(), theirs},
			benchmark{fmt.Sprintf("UDP, `Incr` with %d tags, not aggregated here", n), ours(plainOurs...), theirs},
		)
	}
	return list
}
