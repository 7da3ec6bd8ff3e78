// Decodes remote write requests with the definitions their owners publish, and prints what it understood as JSON.
//
// Input: one request per line, its version (1 or 2), a space, and its uncompressed body in hex.
// Output: one JSON object per line: "series", each with "labels" (name, value, name, ...), "samples", "histograms" and, of
// version 2, "type" and "help"; "metadata" of version 1. A request that cannot be decoded ends the program with a message and
// status 1.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/prometheus/prometheus/prompb"
	writev2 "github.com/prometheus/prometheus/prompb/io/prometheus/write/v2"
)

type series struct {
	Labels     []string `json:"labels"`
	Samples    any      `json:"samples"`
	Histograms any      `json:"histograms"`
	Type       string   `json:"type,omitempty"`
	Help       string   `json:"help,omitempty"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		version, text, _ := strings.Cut(in.Text(), " ")
		body, err := hex.DecodeString(text)
		fail(err)
		var all []series
		var metadata any
		switch version {
		case "1":
			request := new(prompb.WriteRequest)
			fail(request.Unmarshal(body))
			for _, one := range request.Timeseries {
				var labels []string
				for _, label := range one.Labels {
					labels = append(labels, label.Name, label.Value)
				}
				all = append(all, series{Labels: labels, Samples: one.Samples, Histograms: one.Histograms})
			}
			metadata = request.Metadata
		case "2":
			request := new(writev2.Request)
			fail(request.Unmarshal(body))
			if len(request.Symbols) == 0 || request.Symbols[0] != "" {
				fail(fmt.Errorf("the first symbol is not the empty string: %q", request.Symbols))
			}
			seen := map[string]bool{}
			for _, symbol := range request.Symbols {
				if seen[symbol] {
					fail(fmt.Errorf("a symbol twice: %q", symbol))
				}
				seen[symbol] = true
			}
			for _, one := range request.Timeseries {
				var labels []string
				for _, ref := range one.LabelsRefs {
					labels = append(labels, request.Symbols[ref])
				}
				all = append(all, series{
					Labels: labels, Samples: one.Samples, Histograms: one.Histograms,
					Type: one.Metadata.Type.String(), Help: request.Symbols[one.Metadata.HelpRef],
				})
			}
		default:
			fail(fmt.Errorf("unknown version %q", version))
		}
		fail(json.NewEncoder(out).Encode(map[string]any{"series": all, "metadata": metadata}))
	}
	fail(in.Err())
	fail(out.Flush())
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
