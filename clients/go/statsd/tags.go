package statsd

import (
	"strconv"
	"time"
)

// Tag is one tag whose value is not text yet. It is written into the packet, or compared with known tags, without
// becoming a string of its own. A comma in its key or value becomes '_'.
type Tag struct {
	key  string
	text string
	// number is the value if typ is not tagText.
	number int64
	typ    tagType
}

type tagType uint8

const (
	tagText tagType = iota
	tagInt
	tagBool
)

// StringTag is the tag KEY:VALUE.
func StringTag(key, value string) Tag { return Tag{key: key, text: value} }

// IntTag is the tag KEY:VALUE.
func IntTag(key string, value int) Tag { return Tag{key: key, number: int64(value), typ: tagInt} }

// Int64Tag is the tag KEY:VALUE.
func Int64Tag(key string, value int64) Tag { return Tag{key: key, number: value, typ: tagInt} }

// BoolTag is the tag KEY:true or KEY:false.
func BoolTag(key string, value bool) Tag {
	t := Tag{key: key, typ: tagBool}
	if value {
		t.number = 1
	}
	return t
}

// String returns the tag as it is written.
func (t Tag) String() string { return string(t.append(nil)) }

func (t Tag) append(b []byte) []byte {
	b = appendTagPart(b, t.key)
	b = append(b, ':')
	switch t.typ {
	case tagInt:
		return strconv.AppendInt(b, t.number, 10)
	case tagBool:
		return strconv.AppendBool(b, t.number != 0)
	default:
		return appendTagPart(b, t.text)
	}
}

// appendTagPart writes the key or the value of one tag. A comma would begin another one.
func appendTagPart(b []byte, text string) []byte {
	start := len(b)
	b = append(b, text...)
	for i := start; i < len(b); i++ {
		if b[i] == ',' {
			b[i] = '_'
		}
	}
	return b
}

// Strings returns tags as the methods that take strings want them.
func Strings(tags ...Tag) []string {
	out := make([]string, len(tags))
	for i, t := range tags {
		out[i] = t.String()
	}
	return out
}

// typed makes a call with typed tags. Their text lives in this function's frame, which is why the calls are made from
// here and why nothing they reach may keep a tag.
func (c *Client) typed(k kind, name string, count int64, value float64, member string, tags []Tag) error {
	if c == nil {
		return ErrNoClient
	}
	var room [256]byte
	var list [16]string
	var ends [len(list)]int
	var all []string
	if len(tags) > len(list) {
		all = Strings(tags...)
	} else {
		b := room[:0]
		for i, t := range tags {
			b = t.append(b)
			ends[i] = len(b)
		}
		start := 0
		for i := range tags {
			list[i] = textOf(b[start:ends[i]])
			start = ends[i]
		}
		all = list[:len(tags)]
	}
	x := c.clientEx
	switch card := x.scope.card; k {
	case kindCount:
		return x.count(name, count, all, 1, card)
	case kindGauge:
		return x.gauge(name, value, all, 1, card)
	case kindSet:
		return x.set(name, member, all, 1, card)
	default:
		return x.sample(k, name, value, all, 1, card)
	}
}

// CountWith is [Client.Count] with typed tags.
func (c *Client) CountWith(name string, value int64, tags ...Tag) error {
	return c.typed(kindCount, name, value, 0, "", tags)
}

// GaugeWith is [Client.Gauge] with typed tags.
func (c *Client) GaugeWith(name string, value float64, tags ...Tag) error {
	return c.typed(kindGauge, name, 0, value, "", tags)
}

// HistogramWith is [Client.Histogram] with typed tags.
func (c *Client) HistogramWith(name string, value float64, tags ...Tag) error {
	return c.typed(kindHistogram, name, 0, value, "", tags)
}

// DistributionWith is [Client.Distribution] with typed tags.
func (c *Client) DistributionWith(name string, value float64, tags ...Tag) error {
	return c.typed(kindDistribution, name, 0, value, "", tags)
}

// TimingWith is [Client.Timing] with typed tags.
func (c *Client) TimingWith(name string, value time.Duration, tags ...Tag) error {
	return c.typed(kindTiming, name, 0, milliseconds(value), "", tags)
}

// SetWith is [Client.Set] with typed tags.
func (c *Client) SetWith(name string, value string, tags ...Tag) error {
	return c.typed(kindSet, name, 0, 0, value, tags)
}
