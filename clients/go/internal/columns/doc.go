// Package columns has the tests that read the client's columns with the message that Datadog publishes. It is a module
// of its own, so that the client has no dependencies.
package columns
