package statsd

import (
	"errors"
	"os"
	"runtime"
	"time"
)

// pipeTransport writes to a named pipe. It connects at the first packet and again after an error. Only the sender's
// goroutine writes.
type pipeTransport struct {
	path    string
	timeout time.Duration
	file    *os.File
	// busy holds the outcome of a write that ran into the timeout, until there is one.
	busy chan error
}

func newPipeTransport(path string, timeout time.Duration) (Transport, error) {
	if runtime.GOOS != "windows" {
		return nil, errors.New("Windows Named Pipes are only supported on Windows")
	}
	return &pipeTransport{path: path, timeout: timeout}, nil
}

type pipeTimeoutError struct{}

func (pipeTimeoutError) Error() string { return "statsd: write to the named pipe timed out" }
func (pipeTimeoutError) Timeout() bool { return true }

// Write gives each packet the write timeout. A handle opened without overlapped I/O has no deadlines, so the write runs
// in a goroutine of its own. While one hangs, packets are dropped; its copy of the data keeps the buffer free for
// reuse.
func (t *pipeTransport) Write(b []byte) (int, error) {
	if t.busy != nil {
		select {
		case err := <-t.busy:
			t.busy = nil
			if err != nil {
				t.disconnect()
			}
		default:
			return 0, pipeTimeoutError{}
		}
	}
	if t.file == nil {
		file, err := os.OpenFile(t.path, os.O_RDWR, 0)
		if err != nil {
			return 0, err
		}
		t.file = file
	}
	done := make(chan error, 1)
	file, data := t.file, append([]byte(nil), b...)
	go func() {
		_, err := file.Write(data)
		done <- err
	}()
	timer := time.NewTimer(t.timeout)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			t.disconnect()
			return 0, err
		}
		return len(b), nil
	case <-timer.C:
		t.busy = done
		return 0, pipeTimeoutError{}
	}
}

func (t *pipeTransport) disconnect() {
	if t.file != nil {
		t.file.Close()
		t.file = nil
	}
}

func (t *pipeTransport) Close() error {
	t.disconnect()
	return nil
}

func (t *pipeTransport) GetTransportName() string { return transportPipe }
