//go:build !unix

package statsd

// socketFile is always none: on this system files have no number that identifies them.
type socketFile struct{}

func socketFileAt(string) socketFile { return socketFile{} }
