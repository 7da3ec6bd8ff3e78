//go:build !windows

package statsd

import (
	"errors"
	"time"
)

func newPipeTransport(string, time.Duration) (Transport, error) {
	return nil, errors.New("Windows Named Pipes are only supported on Windows")
}
