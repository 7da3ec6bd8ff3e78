// Command bench measures the client against pinned clients of others and writes the tables of the documentation.
//
// Each case alternates between ours and theirs, theirs and ours, in one process, so that a change of the machine's
// speed affects both. It measures the CPU time of the process, user and system, in which other programs on the machine
// do not show.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"syscall"
	"time"
)

type figures struct {
	ns            []float64
	allocs, bytes float64
	lost          float64
}

func (f *figures) add(m *meter) {
	n := float64(m.N)
	f.ns = append(f.ns, float64(m.cpu.Nanoseconds())/n)
	f.allocs = max(f.allocs, float64(m.allocs)/n)
	f.bytes = max(f.bytes, float64(m.bytes)/n)
	if m.calls > 0 {
		f.lost = max(f.lost, float64(m.lost)/float64(m.calls))
	}
}

func median(v []float64) float64 {
	s := append([]float64(nil), v...)
	sort.Float64s(s)
	if len(s)%2 == 1 {
		return s[len(s)/2]
	}
	return (s[len(s)/2-1] + s[len(s)/2]) / 2
}

func main() {
	only := flag.String("only", "", "run the cases whose name matches this expression")
	rounds := flag.Int("rounds", 6, "how often each case is run on each side; even")
	cpu := flag.Int("cpu", 1, "GOMAXPROCS")
	duration := flag.Duration("time", 60*time.Millisecond, "processor time of each run")
	serviceTime := flag.Duration("service", 4*time.Second, "how long each run of the service takes")
	out := flag.String("out", "", "also write the tables to this file")
	readme := flag.String("readme", "", "also write the first table between the marks in this file")
	network := flag.String("receive", "", "be the receiver; used by the program itself")
	flag.Parse()
	if *network != "" {
		if err := receive(*network); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	runtime.GOMAXPROCS(*cpu)
	pattern := regexp.MustCompile(*only)
	var doc bytes.Buffer
	both := io.MultiWriter(os.Stdout, &doc)
	fmt.Fprintf(both, "# Benchmarks\n\n%s\n\n", method(*rounds, *cpu))
	fmt.Fprintf(both, "## Calls, against datadog-go v5.9.1\n\n")
	start := doc.Len()
	chosen := slices.DeleteFunc(benchmarks(), func(x benchmark) bool { return !pattern.MatchString(x.name) })
	found := together(chosen, *rounds, *duration)
	table(both, "datadog-go", chosen, pattern, func(x benchmark) (a, b figures, ratio string) {
		return found[x.name].ours, found[x.name].theirs, found[x.name].ratio()
	})
	calls := doc.String()[start:]
	verdicts(both)
	fmt.Fprintf(both, "\n## Different metrics over sockets, against datadog-go v5.9.1\n\nOne `Count` without tags "+
		"for each operation, "+
		"%d in a run, with a flush after every hundredth of them. The receiver is another process. With 100,000 "+
		"metrics and more, aggregated, "+
		"each occurs once in many flushes: datadog-go creates it again each time. Each name is used before, three "+
		"times where there are 100,000 and more. The last rows use each once between two flushes.\n\n", wireCalls)
	fixed := func(x benchmark) (a, b figures, ratio string) { return measureFixed(x, min(*rounds, 2)) }
	table(both, "datadog-go", append(wireBenchmarks(), passBenchmarks()...), pattern, fixed)
	others := func(x benchmark) (a, b figures, ratio string) { return measure(x, min(*rounds, 4), *duration/2) }
	fmt.Fprintf(both, "\n## datadog-go's own benchmarks\n\nThe cases of its `statsd_benchmark_test.go`, on two "+
		"processors: gauges without a pause, a flush at the end. "+
		"The receiver only reads. Dropped messages cost a client little, so compare rows without loss.\n\n")
	table(both, "datadog-go", reportBenchmarks(), pattern, others)
	fmt.Fprintf(both, "\nIts benchmarks of aggregator and contexts, through the public interface. An operation is "+
		"all the named calls, on existing contexts; "+
		"only rows that name a flush measure one. There are 20,000 and 1,000 names instead of its 100,000.\n\n")
	table(both, "datadog-go", aggregatorBenchmarks(), pattern, others)
	fmt.Fprintf(both, "\nIts benchmarks of formatting: a gauge, count, histogram, distribution, set, timing, "+
		"event and "+
		"check, sent without aggregation.\n\n")
	table(both, "datadog-go", formatBenchmarks(), pattern, others)
	fmt.Fprintf(both, "\n## One counter, one gauge, one timing\n\nThe operation of the suites that compare StatsD "+
		"clients, over UDP, with a flush after every hundredth part "+
		"if the client has one. Losses are those of the counters.\n\n")
	table(both, "the other client", suiteBenchmarks(), pattern, fixed)
	if pattern.MatchString("service") {
		fmt.Fprintf(both, "\n## A service\n\n%d goroutines, 60 %% counts, 15 %% gauges, 20 %% distributions, 5 %% "+
			"timings, %d contexts, 3 tags, %d calls/s for %v, over a "+
			"Unix datagram socket; mean of two alternating runs, latencies the worse of both. Other programs "+
			"on the machine affect the latencies.\n\n",
			serviceGoroutines, serviceContexts, serviceRate, *serviceTime)
		serviceTable(both, *serviceTime)
	}
	fmt.Fprintf(both, "\n## Against go-statsd v1.3.4\n\nIt has no aggregation and no flush; its losses are in its "+
		"own queue.\n\n")
	table(both, "go-statsd", smiraBenchmarks(), pattern, fixed)
	if *out != "" {
		if err := os.WriteFile(*out, doc.Bytes(), 0o644); err != nil {
			panic(err)
		}
	}
	if *readme != "" {
		if err := replaceTable(*readme, calls); err != nil {
			panic(err)
		}
	}
}

func method(rounds, cpu int) string {
	model := "unknown processor"
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for _, line := range strings.Split(string(info), "\n") {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				model = strings.TrimSpace(value)
				break
			}
		}
	}
	commit := "unknown commit"
	if out, err := exec.Command("git", "rev-parse", "--short", "HEAD").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	return fmt.Sprintf("Written by `make bench`. CPU time of the process, user and system, per call; medians "+
		"of %d alternating runs (4 for the benchmarks of others, 2 over sockets; ours, "+
		"theirs, theirs, ours, ...) in one process, all cases of the first table in each round. The ratio is the "+
		"median of the ratios of neighbouring runs, "+
		"with the least and the "+
		"greatest. A run includes the flush of its calls. `GOMAXPROCS` %d, %s, %s, %d processors, "+
		"commit %s. Compare ratios; the "+
		"times are of one machine.", rounds, cpu, runtime.Version(), model, runtime.NumCPU(), commit)
}

func table(w io.Writer, peer string, list []benchmark, pattern *regexp.Regexp, run func(benchmark) (figures, figures,
	string)) {
	fmt.Fprintf(w, "| case | ours | %s | ratio (range) | allocations, bytes per call: ours | theirs "+
		"|\n|---|---|---|---|---|---|\n", peer)
	for _, x := range list {
		if !pattern.MatchString(x.name) {
			continue
		}
		a, b, ratio := run(x)
		reached[x.name] = ratio
		fmt.Fprintf(w, "| %s | %s%s | %s%s | %s | %s | %s |\n", x.name, text(median(a.ns)), dropped(a),
			text(median(b.ns)), dropped(b), ratio,
			allocations(a), allocations(b))
	}
}

// reached are the measured ratios.
var reached = map[string]string{}

// verdicts compares with the targets.
func verdicts(w io.Writer) {
	fmt.Fprintf(w, "\nWe set targets as ratios before we wrote the client:\n\n| case | target | reached | "+
		"|\n|---|---|---|---|\n")
	for _, x := range benchmarks() {
		target, measured := targets[x.name], reached[x.name]
		if target == 0 || measured == "" {
			continue
		}
		var got float64
		fmt.Sscan(measured, &got)
		verdict := "yes"
		if got < target {
			verdict = "**no**"
		}
		fmt.Fprintf(w, "| %s | %.1f | %s | %s |\n", x.name, target, measured, verdict)
	}
	fmt.Fprint(w, `
A handle that is called often writes to memory of its processor, without a locked instruction. It costs
less than one atomic addition or one mutex, shown in the rows of the floors in the same run. A handle that is called
less often, or on other processors than amd64, costs one locked instruction for a counter or a gauge and two for a
distribution. A distribution also writes the text of each value. For a value equal to the previous one it copies the
text; the row of 1000 different values shows the cost of the text without repeats.
`)
}

const (
	tableBegins = "<!-- table: written by make bench -->\n"
	tableEnds   = "<!-- end of table -->"
)

func replaceTable(path, table string) error {
	old, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok1 := strings.Cut(string(old), tableBegins)
	_, after, ok2 := strings.Cut(rest, tableEnds)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no marks for the table", path)
	}
	return os.WriteFile(path, []byte(before+tableBegins+table+tableEnds+after), 0o644)
}

func measure(x benchmark, rounds int, want time.Duration) (a, b figures, ratio string) {
	na, nb := operations(x.ours, want), operations(x.theirs, want)
	return turns(rounds, func() *meter { return run(x.ours, na) }, func() *meter { return run(x.theirs, nb) })
}

func measureFixed(x benchmark, rounds int) (a, b figures, ratio string) {
	return turns(rounds, func() *meter { return run(x.ours, 1) }, func() *meter { return run(x.theirs, 1) })
}

func turns(rounds int, ours, theirs func() *meter) (a, b figures, ratio string) {
	var x comparison
	for i := 0; i < rounds; i++ {
		x.turn(ours, theirs)
	}
	return x.ours, x.theirs, x.ratio()
}

// comparison has the measurements of the turns of one case.
type comparison struct {
	ours, theirs figures
	ratios       []float64
}

func (x *comparison) turn(ours, theirs func() *meter) {
	if len(x.ratios)%2 == 0 {
		x.ours.add(ours())
		x.theirs.add(theirs())
	} else {
		x.theirs.add(theirs())
		x.ours.add(ours())
	}
	last := len(x.ratios)
	x.ratios = append(x.ratios, x.theirs.ns[last]/x.ours.ns[last])
}

func (x *comparison) ratio() string {
	sort.Float64s(x.ratios)
	return fmt.Sprintf("%.1f (%.1f to %.1f)", median(x.ratios), x.ratios[0], x.ratios[len(x.ratios)-1])
}

// together measures cases in rounds of all of them, so that each runs at the same speeds of the machine: the peer's
// cost of one call must not differ between two rows.
func together(list []benchmark, rounds int, want time.Duration) map[string]*comparison {
	found := map[string]*comparison{}
	ours, theirs := map[string]int{}, map[string]int{}
	for _, x := range list {
		found[x.name] = &comparison{}
		ours[x.name], theirs[x.name] = operations(x.ours, want), operations(x.theirs, want)
	}
	for i := 0; i < rounds; i++ {
		for _, x := range list {
			found[x.name].turn(func() *meter { return run(x.ours, ours[x.name]) },
				func() *meter { return run(x.theirs, theirs[x.name]) })
		}
	}
	return found
}

// allocations are rounded down as in package testing: occasional work of the client is not in every operation.
func allocations(f figures) string {
	return fmt.Sprintf("%d, %d", int64(f.allocs), int64(f.bytes))
}

func text(ns float64) string {
	switch {
	case ns >= 1e6:
		return fmt.Sprintf("%.2f ms", ns/1e6)
	case ns >= 1e4:
		return fmt.Sprintf("%.0f µs", ns/1e3)
	default:
		return fmt.Sprintf("%.1f ns", ns)
	}
}

// dropped returns the share of its input that a client lost, if any.
func dropped(f figures) string {
	if f.lost == 0 {
		return ""
	}
	if f.lost < 0.005 {
		return ", loses under 0.5 %"
	}
	return fmt.Sprintf(", loses %.0f %%", 100*f.lost)
}

// meter measures a part of a run: processor time of the whole process, in which other programs on the machine do not
// show, and allocations.
type meter struct {
	N int

	// lost is the number of dropped calls and of all calls; speed without delivery is void.
	lost, calls uint64

	cpu             time.Duration
	allocs, bytes   uint64
	cpu0            time.Duration
	allocs0, bytes0 uint64
}

func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func (m *meter) start() {
	// Garbage of earlier work must not be collected within this measurement.
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.allocs0, m.bytes0 = s.Mallocs, s.TotalAlloc
	m.cpu0 = processorTime()
}

func (m *meter) stop() {
	m.cpu += processorTime() - m.cpu0
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	m.allocs += s.Mallocs - m.allocs0
	m.bytes += s.TotalAlloc - m.bytes0
}

// run measures n operations.
func run(s side, n int) *meter {
	m := &meter{N: n}
	s(m)
	return m
}

// operations finds the number of operations that take about the wanted time.
func operations(s side, want time.Duration) int {
	for n := 1; ; {
		m := run(s, n)
		if m.cpu >= want/2 || n >= 1<<28 {
			return max(1, int(float64(n)*float64(want)/float64(max(m.cpu, 1))))
		}
		grow := 100.0
		if m.cpu > want/100 {
			grow = float64(want) / float64(m.cpu)
		}
		n = int(float64(n)*grow) + 1
	}
}
