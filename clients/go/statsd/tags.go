package statsd

import (
	"strconv"
	"time"
	"unsafe"
)

// Tag is a tag whose value is not text yet. It is written into the packet, or compared with what is known, without becoming a string
// of its own.
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
	b = append(b, t.key...)
	b = append(b, ':')
	switch t.typ {
	case tagInt:
		return strconv.AppendInt(b, t.number, 10)
	case tagBool:
		return strconv.AppendBool(b, t.number != 0)
	default:
		return append(b, t.text...)
	}
}

// Strings returns tags as the methods that take strings want them.
func Strings(tags ...Tag) []string {
	out := make([]string, len(tags))
	for i, t := range tags {
		out[i] = t.String()
	}
	return out
}

// typedRoom holds the text of typed tags for the time of a call.
type typedRoom struct {
	text [256]byte
	tags [16]string
}

// strings writes tags into the room. The strings share its memory, so nothing may keep them; nothing called from here does.
func (r *typedRoom) strings(tags []Tag) []string {
	b := r.text[:0]
	var ends [len(r.tags)]int
	if len(tags) > len(ends) {
		return Strings(tags...)
	}
	for i, t := range tags {
		b = t.append(b)
		ends[i] = len(b)
	}
	start := 0
	for i, end := range ends[:len(tags)] {
		r.tags[i] = unsafe.String(unsafe.SliceData(b[start:]), end-start)
		start = end
	}
	return r.tags[:len(tags)]
}

// CountWith is [Client.Count] with typed tags.
func (c *Client) CountWith(name string, value int64, tags ...Tag) error {
	var room typedRoom
	return c.Count(name, value, room.strings(tags), 1)
}

// GaugeWith is [Client.Gauge] with typed tags.
func (c *Client) GaugeWith(name string, value float64, tags ...Tag) error {
	var room typedRoom
	return c.Gauge(name, value, room.strings(tags), 1)
}

// HistogramWith is [Client.Histogram] with typed tags.
func (c *Client) HistogramWith(name string, value float64, tags ...Tag) error {
	var room typedRoom
	return c.Histogram(name, value, room.strings(tags), 1)
}

// DistributionWith is [Client.Distribution] with typed tags.
func (c *Client) DistributionWith(name string, value float64, tags ...Tag) error {
	var room typedRoom
	return c.Distribution(name, value, room.strings(tags), 1)
}

// TimingWith is [Client.Timing] with typed tags.
func (c *Client) TimingWith(name string, value time.Duration, tags ...Tag) error {
	var room typedRoom
	return c.Timing(name, value, room.strings(tags), 1)
}

// SetWith is [Client.Set] with typed tags.
func (c *Client) SetWith(name string, value string, tags ...Tag) error {
	var room typedRoom
	return c.Set(name, value, room.strings(tags), 1)
}
