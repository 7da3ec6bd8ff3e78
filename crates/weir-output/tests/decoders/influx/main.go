// Decodes requests of InfluxDB's line protocol with the parser of InfluxDB 1 and with that of the protocol's own library, and prints what
// they understood as JSON.
//
// Input: one request per line, its uncompressed body in hex.
// Output: one JSON array per line; its elements have "measurement", "tags", "fields" (integers as texts with an i) and "time" in
// nanoseconds. A request that one of them refuses, or that they understand differently, ends the program with a message and status 1.
package main

import (
	"bufio"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"time"

	"github.com/influxdata/influxdb1-client/models"
	"github.com/influxdata/line-protocol/v2/lineprotocol"
)

type point struct {
	Measurement string            `json:"measurement"`
	Tags        map[string]string `json:"tags"`
	Fields      map[string]any    `json:"fields"`
	Time        int64             `json:"time"`
}

func main() {
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 64<<20)
	out := bufio.NewWriter(os.Stdout)
	for in.Scan() {
		body, err := hex.DecodeString(in.Text())
		fail(err)
		first, second := ofInfluxDB(body), ofLibrary(body)
		if len(first) != len(second) {
			fail(fmt.Errorf("%d points, or %d", len(first), len(second)))
		}
		for at := range first {
			if !reflect.DeepEqual(first[at], second[at]) {
				fail(fmt.Errorf("%#v, or %#v", first[at], second[at]))
			}
		}
		fail(json.NewEncoder(out).Encode(first))
	}
	fail(in.Err())
	fail(out.Flush())
}

func ofInfluxDB(body []byte) []point {
	parsed, err := models.ParsePointsWithPrecision(body, time.Unix(0, 0), "ns")
	fail(err)
	points := []point{}
	for _, one := range parsed {
		fields, err := one.Fields()
		fail(err)
		points = append(points, point{string(one.Name()), one.Tags().Map(), shown(fields), one.UnixNano()})
	}
	return points
}

func ofLibrary(body []byte) []point {
	decoder := lineprotocol.NewDecoderWithBytes(body)
	points := []point{}
	for decoder.Next() {
		measurement, err := decoder.Measurement()
		fail(err)
		one := point{string(measurement), map[string]string{}, map[string]any{}, 0}
		for {
			key, value, err := decoder.NextTag()
			fail(err)
			if key == nil {
				break
			}
			if _, known := one.Tags[string(key)]; known {
				fail(errors.New("a tag twice: " + string(key)))
			}
			one.Tags[string(key)] = string(value)
		}
		for {
			key, value, err := decoder.NextField()
			fail(err)
			if key == nil {
				break
			}
			one.Fields[string(key)] = value.Interface()
		}
		one.Fields = shown(one.Fields)
		at, err := decoder.Time(lineprotocol.Nanosecond, time.Time{})
		fail(err)
		one.Time = at.UnixNano()
		points = append(points, one)
	}
	return points
}

func shown(fields map[string]any) map[string]any {
	for key, value := range fields {
		if integer, is := value.(int64); is {
			fields[key] = fmt.Sprintf("%di", integer)
		}
	}
	return fields
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
