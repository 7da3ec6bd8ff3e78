package main

import (
	"runtime"
	"syscall"
	"time"
)

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
