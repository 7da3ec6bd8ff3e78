// Package compat compares the client with a pinned client of Datadog: every exported symbol, and the bytes of every
// message.
//
// It is a module of its own, so that the client has no dependencies.
package compat
