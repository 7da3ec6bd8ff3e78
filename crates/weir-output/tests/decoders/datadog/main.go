// Decodes Datadog payloads with the definitions their owner publishes, and prints what it understood as JSON.
//
// Input: one payload per line, its kind (series, sketches, and both of the third version: series3, sketches3), a space, and its
// uncompressed body in hex. Payloads of columns are printed as the same series would be in the older form.
// Output: one JSON object per line. A payload that cannot be decoded ends the program with a message and status 1.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	"github.com/DataDog/agent-payload/v5/gogen"
)

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		kind, text, _ := strings.Cut(in.Text(), " ")
		body, err := hex.DecodeString(text)
		fail(err)
		var decoded any
		switch kind {
		case "series":
			payload := new(gogen.MetricPayload)
			fail(payload.Unmarshal(body))
			decoded = payload
		case "sketches":
			payload := new(gogen.SketchPayload)
			fail(payload.Unmarshal(body))
			decoded = payload
		case "series3":
			decoded = read(body).seriesPayload()
		case "sketches3":
			decoded = read(body).sketchPayload()
		default:
			fail(fmt.Errorf("unknown kind %q", kind))
		}
		fail(json.NewEncoder(out).Encode(decoded))
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
