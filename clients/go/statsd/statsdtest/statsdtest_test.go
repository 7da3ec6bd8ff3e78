package statsdtest

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/weir-dev/weir/clients/go/statsd"
)

func TestCapture(t *testing.T) {
	c := New(t, statsd.WithNamespace("app"), statsd.WithTags([]string{"g"}), statsd.WithExtendedClientSideAggregation())
	for i := 0; i < 3; i++ {
		_ = c.Client.Count("requests", 2, []string{"code:200"}, 1)
		_ = c.Client.Count("requests", 1, []string{"code:500"}, 1)
		_ = c.Client.Gauge("depth", float64(i), nil, 1)
		_ = c.Client.Distribution("size", float64(i), nil, 1)
		_ = c.Client.Set("users", fmt.Sprint(i%2), nil, 1)
	}
	_ = c.Client.SimpleEvent("deploy", "two\nlines")
	_ = c.Client.SimpleServiceCheck("db", statsd.Critical)
	if got := c.Total("app.requests"); got != 9 {
		t.Errorf("requests add up to %v", got)
	}
	if got := c.Total("app.requests", "code:500", "g"); got != 3 {
		t.Errorf("failed requests add up to %v", got)
	}
	if got := c.Total("app.depth"); got != 2 {
		t.Errorf("depth is %v", got)
	}
	if got := c.Values("app.size"); !reflect.DeepEqual(got, []float64{0, 1, 2}) {
		t.Errorf("sizes are %v", got)
	}
	if got := len(c.Find("app.users")); got != 2 {
		t.Errorf("%d users", got)
	}
	if got := c.Find("deploy"); len(got) != 1 || got[0].Text != "two\nlines" {
		t.Errorf("events are %+v", got)
	}
	if got := c.Find("db"); len(got) != 1 || got[0].Status != 2 {
		t.Errorf("checks are %+v", got)
	}
	c.Reset()
	if got := c.Messages(); len(got) != 0 {
		t.Errorf("after a reset there are %v", got)
	}
	_ = c.Client.Timing("t", time.Second, nil, 1)
	if got := c.Values("app.t"); len(got) != 1 || got[0] != 1000 {
		t.Errorf("timings are %v", got)
	}
}

// TestVectors reads the cases that all implementations of the repository share.
func TestVectors(t *testing.T) {
	if _, err := os.Stat("../../../../Cargo.toml"); err != nil {
		t.Skip("the client stands alone here, without the vectors")
	}
	f, err := os.Open("../../../../tests/vectors/protocol.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	n := 0
	for lines.Scan() {
		var v struct {
			ID       string           `json:"id"`
			Input    string           `json:"input"`
			InputB64 string           `json:"input_b64"`
			Config   map[string]bool  `json:"config"`
			Expect   []map[string]any `json:"expect"`
			Error    string           `json:"error"`
		}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		if v.Config != nil {
			// The parser has no switches; these cases are about them.
			continue
		}
		if v.InputB64 != "" {
			b, err := base64.StdEncoding.DecodeString(v.InputB64)
			if err != nil {
				t.Fatal(err)
			}
			v.Input = string(b)
		}
		if v.Error != "" {
			v.Expect = []map[string]any{{"error": v.Error}}
		}
		i := 0
		for _, line := range strings.Split(v.Input, "\n") {
			if strings.TrimSuffix(line, "\r") == "" {
				continue
			}
			if i >= len(v.Expect) {
				t.Errorf("%s: more lines than expected", v.ID)
				break
			}
			want := v.Expect[i]
			i++
			n++
			got, err := Parse(line)
			if _, refused := want["error"]; refused || err != nil {
				if refused != (err != nil) {
					t.Errorf("%s: %q gives %v, expected is %v", v.ID, line, err, want)
				}
				continue
			}
			if diff := difference(got, want); diff != "" {
				t.Errorf("%s: %q: %s", v.ID, line, diff)
			}
		}
	}
	if n < 200 {
		t.Errorf("only %d lines were read", n)
	}
}

// difference compares the fields of a message that the vectors have too.
func difference(got Message, want map[string]any) string {
	text, err := json.Marshal(got)
	if err != nil {
		return err.Error()
	}
	var have map[string]any
	if err := json.Unmarshal(text, &have); err != nil {
		return err.Error()
	}
	if have["rate"] == 1.0 {
		delete(have, "rate")
	}
	for _, k := range []string{"local", "external"} {
		delete(want, k)
	}
	if want["status"] == 0.0 {
		delete(want, "status")
	}
	for k, v := range want {
		if !reflect.DeepEqual(have[k], v) && !(have[k] == nil && fmt.Sprint(v) == "") && !(have[k] == nil &&
			fmt.Sprint(v) == "[]") {
			return fmt.Sprintf("%s is %v, expected is %v", k, have[k], v)
		}
	}
	for k := range have {
		if _, ok := want[k]; !ok {
			return fmt.Sprintf("%s is %v, expected is nothing", k, have[k])
		}
	}
	return ""
}
