package main

import "testing"

// TestBenchmarksRun runs every case briefly, so that a table can be trusted to come from calls that work: what our side
// accepts in these runs must be written.
func TestBenchmarksRun(t *testing.T) {
	for _, x := range benchmarks() {
		t.Run(x.name, func(t *testing.T) { briefly(t, x) })
	}
	for name, list := range map[string][]benchmark{"aggregator": aggregatorBenchmarks(), "format": formatBenchmarks()} {
		for _, x := range list {
			t.Run(name+"/"+x.name, func(t *testing.T) { briefly(t, x) })
		}
	}
}

func briefly(t *testing.T, x benchmark) {
	if m := run(x.ours, 3); m.lost != 0 {
		t.Errorf("our side lost %d of %d", m.lost, m.calls)
	}
	run(x.theirs, 3)
}
