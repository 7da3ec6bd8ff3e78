package statsd

import "context"

// FlushContext is [Client.Flush] that returns the error of ctx if that ends first. What was accepted before is sent all
// the same.
func (c *Client) FlushContext(ctx context.Context) error { return within(ctx, c.Flush) }

// CloseContext is [Client.Close] that returns the error of ctx if that ends first. The client goes on closing, for as
// long as Close would.
func (c *Client) CloseContext(ctx context.Context) error { return within(ctx, c.Close) }

// within waits for work, but not longer than ctx allows.
func within(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}
