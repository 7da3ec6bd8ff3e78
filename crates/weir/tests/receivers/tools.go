//go:build tools

// Receivers that tests build from their sources.
package receivers

import _ "github.com/prometheus/prometheus/cmd/prometheus"
