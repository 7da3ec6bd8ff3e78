package main

import (
	"fmt"

	"github.com/DataDog/agent-payload/v5/gogen"
	"github.com/DataDog/agent-payload/v5/metrics/intake_v3"
	"google.golang.org/protobuf/proto"
)

// columns is a payload of columns whose series are read in sequence. A structural error panics.
type columns struct {
	data                                              *intake_v3.MetricData
	names, tags, resources, sources, units            []string
	sets                                              [][]string
	lists                                             [][]*gogen.MetricPayload_Resource
	name, set, list, source, origin, unit, time       int64
	row, units_at, point, integer, float, double, bin int
	bins                                              int
}

func read(body []byte) *columns {
	payload := new(intake_v3.Payload)
	fail(proto.Unmarshal(body, payload))
	data := payload.GetMetricData()
	c := &columns{data: data}
	c.names, c.tags = texts(data.DictNameStr), texts(data.DictTagStr)
	c.resources, c.sources, c.units = texts(data.DictResourceStr), texts(data.DictSourceTypeName), texts(data.DictUnitStr)
	for at := 0; at < len(data.DictTagsets); {
		count, last := int(data.DictTagsets[at]), int64(0)
		var set []string
		for _, delta := range data.DictTagsets[at+1 : at+1+count] {
			last += delta
			if last < 0 {
				set = append(set, c.sets[-last-1]...)
			} else {
				set = append(set, c.tags[last-1])
			}
		}
		c.sets = append(c.sets, set)
		at += 1 + count
	}
	at := 0
	for _, length := range data.DictResourceLen {
		var kind, name int64
		var list []*gogen.MetricPayload_Resource
		for range length {
			kind += data.DictResourceType[at]
			name += data.DictResourceName[at]
			at++
			list = append(list, &gogen.MetricPayload_Resource{Type: text(c.resources, kind), Name: text(c.resources, name)})
		}
		c.lists = append(c.lists, list)
	}
	return c
}

func texts(bytes []byte) (all []string) {
	for len(bytes) > 0 {
		length, n := varint(bytes)
		all = append(all, string(bytes[n:n+length]))
		bytes = bytes[n+length:]
	}
	return all
}

func varint(bytes []byte) (value, n int) {
	for ; bytes[n] >= 0x80; n++ {
		value |= int(bytes[n]&0x7f) << (7 * n)
	}
	return value | int(bytes[n])<<(7*n), n + 1
}

func text(dictionary []string, at int64) string {
	if at == 0 {
		return ""
	}
	return dictionary[at-1]
}

// head reads what every type has: the type, and the common fields.
func (c *columns) head() (kind uint64, series *gogen.MetricPayload_MetricSeries) {
	data, row := c.data, c.row
	c.row++
	c.name += data.NameRefs[row]
	c.set += data.TagsetRefs[row]
	c.list += data.ResourcesRefs[row]
	c.source += data.SourceTypeNameRefs[row]
	c.origin += data.OriginInfoRefs[row]
	series = &gogen.MetricPayload_MetricSeries{
		Metric:         text(c.names, c.name),
		Interval:       int64(data.Intervals[row]),
		SourceTypeName: text(c.sources, c.source),
	}
	if c.set > 0 {
		series.Tags = c.sets[c.set-1]
	}
	if c.list > 0 {
		series.Resources = c.lists[c.list-1]
	}
	if c.origin > 0 {
		numbers := data.DictOriginInfo[3*(c.origin-1):]
		series.Metadata = &gogen.Metadata{Origin: &gogen.Origin{
			OriginProduct: uint32(numbers[0]), OriginCategory: uint32(numbers[1]), OriginService: uint32(numbers[2]),
		}}
	}
	kind = data.Types[row]
	if kind&uint64(intake_v3.MetricFlags_flagHasUnit) != 0 {
		c.unit += data.UnitRefs[c.units_at]
		c.units_at++
		series.Unit = text(c.units, c.unit)
	}
	return kind, series
}

func (c *columns) timestamp() int64 {
	c.time += c.data.Timestamps[c.point]
	c.point++
	return c.time
}

func (c *columns) value(kind uint64) float64 {
	switch intake_v3.ValueType(kind & 0xf0) {
	case intake_v3.ValueType_Zero:
		return 0
	case intake_v3.ValueType_Sint64:
		return float64(c.whole())
	case intake_v3.ValueType_Float32:
		c.float++
		return float64(c.data.ValsFloat32[c.float-1])
	case intake_v3.ValueType_Float64:
		c.double++
		return c.data.ValsFloat64[c.double-1]
	}
	panic(fmt.Sprintf("value type %#x", kind))
}

func (c *columns) whole() int64 {
	c.integer++
	return c.data.ValsSint64[c.integer-1]
}

// end checks that every column was read to its end.
func (c *columns) end() {
	data := c.data
	for name, left := range map[string]int{
		"names": len(data.NameRefs) - c.row, "sets": len(data.TagsetRefs) - c.row, "points": len(data.NumPoints) - c.row,
		"timestamps": len(data.Timestamps) - c.point, "integers": len(data.ValsSint64) - c.integer,
		"floats": len(data.ValsFloat32) - c.float, "doubles": len(data.ValsFloat64) - c.double,
		"bins": len(data.BinKeys) - c.bin, "samples": len(data.BinCnts) - c.bin, "counts": len(data.NumBins) - c.bins,
		"units": len(data.UnitRefs) - c.units_at,
	} {
		if left != 0 {
			panic(fmt.Sprintf("%d entries of %s are left", left, name))
		}
	}
}

func (c *columns) seriesPayload() *gogen.MetricPayload {
	payload := new(gogen.MetricPayload)
	for c.row < len(c.data.Types) {
		points := c.data.NumPoints[c.row]
		kind, series := c.head()
		series.Type = gogen.MetricPayload_MetricType(kind & 0x0f)
		for range points {
			at := c.timestamp()
			series.Points = append(series.Points, &gogen.MetricPayload_MetricPoint{Timestamp: at, Value: c.value(kind)})
		}
		payload.Series = append(payload.Series, series)
	}
	c.end()
	return payload
}

func (c *columns) sketchPayload() *gogen.SketchPayload {
	payload := new(gogen.SketchPayload)
	for c.row < len(c.data.Types) {
		points := c.data.NumPoints[c.row]
		kind, series := c.head()
		if kind&0x0f != uint64(intake_v3.MetricType_DDSketch) || len(series.Resources) > 1 {
			panic("not a sketch")
		}
		sketch := gogen.SketchPayload_Sketch{Metric: series.Metric, Tags: series.Tags, Metadata: series.Metadata}
		for _, resource := range series.Resources {
			sketch.Host = resource.Name
		}
		for range points {
			point := gogen.SketchPayload_Sketch_Dogsketch{Ts: c.timestamp()}
			point.Sum, point.Min, point.Max = c.value(kind), c.value(kind), c.value(kind)
			point.Cnt = c.whole()
			point.Avg = point.Sum / float64(point.Cnt)
			key := int32(0)
			for range c.data.NumBins[c.bins] {
				key += c.data.BinKeys[c.bin]
				point.K = append(point.K, key)
				point.N = append(point.N, uint32(c.data.BinCnts[c.bin]))
				c.bin++
			}
			c.bins++
			sketch.Dogsketches = append(sketch.Dogsketches, point)
		}
		payload.Sketches = append(payload.Sketches, sketch)
	}
	c.end()
	return payload
}
