//go:build gc && !purego && !race

package statsd

import (
	"sync/atomic"
	"unsafe"
)

// pinning says that series can have lanes. The race detector cannot know that a pinned goroutine is alone.
const pinning = true

// pin keeps the goroutine on its processor, which nobody else gets meanwhile, and returns the number of that. Between
// pin and unpin nothing may wait, allocate or panic. It is what sync.Pool uses, and one of the functions that package
// runtime keeps for others because they are widely used.
//
//go:linkname pin runtime.procPin
func pin() int

//go:linkname unpin runtime.procUnpin
func unpin()

// storePlain stores a value without a locked instruction. A goroutine that reads or swaps the cell sees
// the value before it or this one. A store of one word is never seen in part.
func storePlain(cell *atomic.Uint64, value uint64) {
	// SAFETY: an atomic.Uint64 is one aligned word of 64 bits; the store is the one that atomic.Uint64.Store would make
	// on processors whose stores need no fence.
	*(*uint64)(unsafe.Pointer(cell)) = value
}
