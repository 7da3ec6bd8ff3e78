//go:build gc && !purego && !race

// This file lets the compiler accept functions without a body; see lanes_amd64.go.
