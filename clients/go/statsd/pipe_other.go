//go:build !windows

package statsd

import (
	"errors"
	"time"
)

func newPipeTransport(string, time.Duration) (Transport, error) {
	return nil, errors.New("statsd: named pipes exist on Windows only")
}
