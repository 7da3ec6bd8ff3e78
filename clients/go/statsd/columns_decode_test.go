package statsd

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
)

// columnRow is a point of a payload, decoded.
type columnRow struct {
	Name     string
	Tags     []string
	Type     int
	Interval uint64
	Time     int64
	// Value is that of a count or a gauge.
	Value float64
	// The rest is that of a sketch. Bins are pairs of key and count.
	Sum, Min, Max float64
	Count         int64
	Bins          [][2]int64
}

// columnReader reads one column.
type columnReader struct {
	b      []byte
	before int64
}

func (r *columnReader) unsigned() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		panic("a short column")
	}
	r.b = r.b[n:]
	return v
}

func (r *columnReader) signed() int64 {
	u := r.unsigned()
	return int64(u>>1) ^ -int64(u&1)
}

func (r *columnReader) delta() int64 {
	r.before += r.signed()
	return r.before
}

func (r *columnReader) bytes(n int) []byte {
	if len(r.b) < n {
		panic("a short column")
	}
	b := r.b[:n]
	r.b = r.b[n:]
	return b
}

func (r *columnReader) texts() (all []string) {
	for all = []string{""}; len(r.b) > 0; {
		all = append(all, string(r.bytes(int(r.unsigned()))))
	}
	return all
}

// fields reads the fields of a message; all are bytes.
func fields(b []byte) map[uint64]*columnReader {
	all := map[uint64]*columnReader{}
	for r := (&columnReader{b: b}); len(r.b) > 0; {
		tag := r.unsigned()
		if tag&7 != 2 || all[tag>>3] != nil {
			panic(fmt.Sprintf("field %d of type %d", tag>>3, tag&7))
		}
		all[tag>>3] = &columnReader{b: r.bytes(int(r.unsigned()))}
	}
	return all
}

// decodeColumns reads a payload, written from the description of the format alone. It knows all that clients send, and
// refuses a payload that has something left over.
func decodeColumns(body []byte) (rows []columnRow, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
	}()
	if len(body) == 0 {
		return nil, nil
	}
	outer := fields(body)
	if outer[3] == nil || len(outer) != 1 {
		return nil, fmt.Errorf("the payload has the fields %v", outer)
	}
	f := fields(outer[3].b)
	column := func(n uint64) *columnReader {
		if f[n] == nil {
			f[n] = &columnReader{}
		}
		return f[n]
	}
	names, tags := column(1).texts(), column(2).texts()
	sets := [][]string{nil}
	for r := column(3); len(r.b) > 0; {
		set, at := []string{}, int64(0)
		for n := r.signed(); n > 0; n-- {
			step := r.signed()
			if at += step; step <= 0 {
				panic("tags of a set do not ascend")
			}
			set = append(set, tags[at])
		}
		sets = append(sets, set)
	}
	for types := column(10); len(types.b) > 0; {
		typ := types.unsigned()
		row := columnRow{Type: int(typ & 15), Name: names[column(11).delta()], Tags: sets[column(12).delta()],
			Interval: column(14).unsigned()}
		if column(13).delta() != 0 || column(23).delta() != 0 || column(24).delta() != 0 {
			panic("a reference to what is not there")
		}
		if points := column(15).unsigned(); points != 1 {
			panic(fmt.Sprintf("%d points", points))
		}
		row.Time = column(16).delta()
		value := func() float64 {
			switch typ & 0xf0 {
			case 0:
				return 0
			case 0x10:
				return float64(column(17).signed())
			case 0x20:
				return float64(math.Float32frombits(binary.LittleEndian.Uint32(column(18).bytes(4))))
			case 0x30:
				return math.Float64frombits(binary.LittleEndian.Uint64(column(19).bytes(8)))
			}
			panic(fmt.Sprintf("type %#x", typ))
		}
		if row.Type != 4 {
			row.Value = value()
		} else {
			row.Sum, row.Min, row.Max, row.Count = value(), value(), value(), column(17).signed()
			key, total := int64(0), int64(0)
			for n := column(20).unsigned(); n > 0; n-- {
				key += column(21).signed()
				count := int64(column(22).unsigned())
				row.Bins = append(row.Bins, [2]int64{key, count})
				total += count
			}
			if total != row.Count {
				panic(fmt.Sprintf("%s: a count of %d, and bins of %d", row.Name, row.Count, total))
			}
		}
		rows = append(rows, row)
	}
	for n, r := range f {
		if len(r.b) > 0 {
			return nil, fmt.Errorf("column %d has %d bytes left over", n, len(r.b))
		}
	}
	return rows, nil
}

// key names a row in the tests: "name|tag,tag".
func (r *columnRow) key() string { return r.Name + "|" + strings.Join(r.Tags, ",") }
