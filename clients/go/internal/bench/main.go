// Command bench measures the client against pinned clients of others in one process and writes the table of the README.
//
// Each case runs in turns, ours and theirs, theirs and ours, so that a change of the machine's speed meets both. The figures are
// medians; the ratio is the median of the ratios of neighbouring runs, with their range.
package main

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"runtime"
	"sort"
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
	flag.Parse()
	runtime.GOMAXPROCS(*cpu)
	pattern := regexp.MustCompile(*only)
	fmt.Printf("| case | ours | datadog-go | ratio (range) | allocs, bytes ours | theirs |\n|---|---|---|---|---|---|\n")
	for _, x := range benchmarks() {
		if !pattern.MatchString(x.name) {
			continue
		}
		a, b, ratio := measure(x.ours, x.theirs, *rounds, *duration)
		fmt.Printf("| %s | %s | %s | %s | %s | %s |\n", x.name, text(median(a.ns))+dropped(a), text(median(b.ns))+dropped(b), ratio, allocations(a), allocations(b))
	}
	os.Exit(0)
}

func measure(ours, theirs side, rounds int, want time.Duration) (a, b figures, ratio string) {
	na, nb := operations(ours, want), operations(theirs, want)
	var ratios []float64
	for i := 0; i < rounds; i++ {
		if i%2 == 0 {
			a.add(run(ours, na))
			b.add(run(theirs, nb))
		} else {
			b.add(run(theirs, nb))
			a.add(run(ours, na))
		}
		ratios = append(ratios, b.ns[i]/a.ns[i])
	}
	sort.Float64s(ratios)
	return a, b, fmt.Sprintf("%.1f (%.1f to %.1f)", median(ratios), ratios[0], ratios[len(ratios)-1])
}

// allocations are rounded down as in package testing: what the client does now and then is not in every operation.
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

// dropped says how much of its input a client lost, if any.
func dropped(f figures) string {
	if f.lost == 0 {
		return ""
	}
	return fmt.Sprintf(", drops %.0f %%", 100*f.lost)
}
