//go:build !unix

package statsd

// socketFile is always none: files have no number to tell them apart by.
type socketFile struct{}

func socketFileAt(string) socketFile { return socketFile{} }
