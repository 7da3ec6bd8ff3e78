//go:build !amd64 || !gc || purego || race

package statsd

import "sync/atomic"

// pinning says that series can have lanes.
const pinning = false

func pin() int { return 0 }

func unpin() {}

func storePlain(cell *atomic.Uint64, value uint64) { cell.Store(value) }
