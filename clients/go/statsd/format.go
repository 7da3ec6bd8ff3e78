package statsd

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// kind is the type of a message. The first ones can be aggregated and index the tables below.
type kind uint8

const (
	kindCount kind = iota
	kindGauge
	kindSet
	kindHistogram
	kindDistribution
	kindTiming
	kindFloatCount
	kindGaugeDelta
	kindEvent
	kindServiceCheck
	kindLimit
)

// isPacked says whether several values of the kind may share a message.
func (k kind) isPacked() bool { return k == kindHistogram || k == kindDistribution || k == kindTiming }

// kindMiddle is the text between the last value and the sections of a line.
var kindMiddle = [kindLimit]string{
	kindCount: "|c", kindGauge: "|g", kindSet: "|s", kindHistogram: "|h",
	kindDistribution: "|d", kindTiming: "|ms", kindFloatCount: "|c", kindGaugeDelta: "|g",
}

var kindName = [kindLimit]string{
	kindCount: "count", kindGauge: "gauge", kindSet: "set", kindHistogram: "histogram",
	kindDistribution: "distribution", kindTiming: "timing", kindFloatCount: "count", kindGaugeDelta: "gauge",
	kindEvent: "event", kindServiceCheck: "service_check",
}

// Powers used by the float formatting; 1e9 keeps value*1e6 below 2^53, where every integer is exact.
const (
	floatScale    = 1e6
	floatFastMax  = 1e9
	floatIntMax   = 1e15
	fixedTieGuard = 1.0 / 256
)

// appendFloat writes the shortest decimal that parses back to v, without an exponent: the text of
// strconv.AppendFloat(b, v, 'f', -1, 64).
//
// Most values of an application are integers or have few decimals, and for those the general algorithm is most of the
// cost of a message. Both short cuts are exact: a decimal of at most 15 significant digits that converts to v is the
// only one of that length, so it is also the shortest one.
func appendFloat(b []byte, v float64) []byte {
	if v > -floatIntMax && v < floatIntMax {
		if i := int64(v); float64(i) == v && (i != 0 || !math.Signbit(v)) {
			return appendInt(b, i)
		}
		if v > -floatFastMax && v < floatFastMax {
			a := math.Abs(v)
			r := uint64(a*floatScale + 0.5)
			if r != 0 && float64(r)/floatScale == a {
				return appendMicros(b, v < 0, r, true)
			}
		}
	}
	return strconv.AppendFloat(b, v, 'f', -1, 64)
}

// appendFixed6 writes v with six decimals: the text of strconv.AppendFloat(b, v, 'f', 6, 64).
//
// The product v*1e6 is off by less than 2^-10 here, so rounding it is right unless it lies that close to a tie.
func appendFixed6(b []byte, v float64) []byte {
	a := math.Abs(v)
	if a < floatFastMax {
		scaled := a * floatScale
		r := uint64(scaled)
		rest := scaled - float64(r)
		if rest < 0.5-fixedTieGuard || rest > 0.5+fixedTieGuard {
			if rest > 0.5 {
				r++
			}
			return appendMicros(b, math.Signbit(v), r, false)
		}
	}
	return strconv.AppendFloat(b, v, 'f', 6, 64)
}

// pairs holds the digits of 0 to 99.
const pairs = "0001020304050607080910111213141516171819202122232425262728293031323334353637383940414243444546474849" +
	"5051525354555657585960616263646566676869707172737475767778798081828384858687888990919293949596979899"

// numberRoom is the longest text of appendInt and appendMicros.
const numberRoom = 24

// appendInt writes a decimal integer. Small numbers, which most are, are written where they belong at once; strconv
// builds them elsewhere and copies.
func appendInt(b []byte, v int64) []byte {
	if uint64(v) < 1e6 {
		b = growFor(b, numberRoom)
		n := len(b)
		return b[:n+putSmall((*[6]byte)(b[n:n+6]), uint32(v))]
	}
	return strconv.AppendInt(b, v, 10)
}

// growFor makes sure there are n bytes of room after the text.
func growFor(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = slices.Grow(b, n)
	}
	return b
}

// putSmall writes a number below a million and returns its length.
func putSmall(d *[6]byte, v uint32) int {
	switch {
	case v < 10:
		d[0] = byte('0' + v)
		return 1
	case v < 100:
		d[0], d[1] = pairs[2*v], pairs[2*v+1]
		return 2
	case v < 1000:
		h := v / 100
		d[0] = byte('0' + h)
		v -= 100 * h
		d[1], d[2] = pairs[2*v], pairs[2*v+1]
		return 3
	case v < 10000:
		h := v / 100
		v -= 100 * h
		d[0], d[1], d[2], d[3] = pairs[2*h], pairs[2*h+1], pairs[2*v], pairs[2*v+1]
		return 4
	case v < 100000:
		h := v / 10000
		d[0] = byte('0' + h)
		v -= 10000 * h
		m := v / 100
		v -= 100 * m
		d[1], d[2], d[3], d[4] = pairs[2*m], pairs[2*m+1], pairs[2*v], pairs[2*v+1]
		return 5
	default:
		putSix(d, v)
		return 6
	}
}

// putSix writes a number below a million with leading zeros.
func putSix(d *[6]byte, v uint32) {
	h := v / 10000
	v -= 10000 * h
	m := v / 100
	v -= 100 * m
	d[0], d[1], d[2], d[3], d[4], d[5] = pairs[2*h], pairs[2*h+1], pairs[2*m], pairs[2*m+1], pairs[2*v], pairs[2*v+1]
}

// appendMicros writes millionths with six decimals, or without the trailing zeros. The number is below 1e15.
func appendMicros(b []byte, negative bool, micros uint64, trim bool) []byte {
	b = growFor(b, numberRoom)
	n := len(b)
	d := b[n : n+numberRoom]
	if negative {
		d[0] = '-'
		d, n = d[1:], n+1
	}
	whole := micros / 1e6
	rest := uint32(micros - whole*1e6)
	k := 0
	if whole < 1e6 {
		k = putSmall((*[6]byte)(d), uint32(whole))
	} else {
		k = len(strconv.AppendUint(d[:0], whole, 10))
	}
	if trim && rest == 0 {
		return b[:n+k]
	}
	d[k] = '.'
	d = d[k+1 : k+7]
	putSix((*[6]byte)(d), rest)
	n += k + 7
	if trim {
		for i := 5; d[i] == '0'; i-- {
			n--
		}
	}
	return b[:n]
}

// appendRate writes the section of a sample rate below one.
func appendRate(b []byte, rate float64) []byte {
	if rate < 1 {
		b = append(b, "|@"...)
		b = appendFloat(b, rate)
	}
	return b
}

// appendName writes a metric name. The bytes that would end it early become '_'.
func appendName(b []byte, name string) []byte {
	start := len(b)
	b = append(b, name...)
	if nameIsClean(name) {
		return b
	}
	return appendCleanName(b[:start], name)
}

func nameIsClean(name string) bool {
	if strings.IndexByte(name, ':') >= 0 || strings.IndexByte(name, '|') >= 0 || strings.IndexByte(name, '\n') >= 0 {
		return false
	}
	// A line that starts so is an event for the agent.
	if len(name) >= 3 && name[0] == '_' && name[:3] == "_e{" {
		return false
	}
	return utf8.ValidString(name)
}

func appendCleanName(b []byte, name string) []byte {
	start := len(b)
	for _, r := range strings.ToValidUTF8(name, "_") {
		switch r {
		case ':', '|', '\n':
			b = append(b, '_')
		default:
			b = utf8.AppendRune(b, r)
		}
	}
	if strings.HasPrefix(string(b[start:]), "_e{") {
		b[start+2] = '_'
	}
	return b
}

// appendTags writes the tags section: the text of the global tags (already clean), then the tags of the call.
func appendTags(b []byte, hasGlobal bool, global string, tags []string) []byte {
	if !hasGlobal && len(tags) == 0 {
		return b
	}
	b = append(b, "|#"...)
	if hasGlobal {
		b = append(b, global...)
		if len(tags) > 0 {
			b = append(b, ',')
		}
	}
	return appendTagList(b, tags)
}

// appendTagList writes tags separated by commas. All of them are copied first and checked in one pass over the copy,
// because that is cheaper than one check for each.
func appendTagList(b []byte, tags []string) []byte {
	start := len(b)
	for i, t := range tags {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, t...)
	}
	if textIsClean(b[start:]) {
		return b
	}
	return cleanText(b, start)
}

func textIsClean(text []byte) bool {
	return indexByte(text, '\n') < 0 && indexByte(text, '|') < 0 && utf8.Valid(text)
}

// cleanText makes the text from start on what may stand in a section: newlines are deleted, as the other clients do,
// what would end the section becomes '_', and so does each run of bytes that are not UTF-8. It never grows, so it is
// done in place.
func cleanText(b []byte, start int) []byte {
	out, invalid := start, false
	for at := start; at < len(b); {
		r, size := utf8.DecodeRune(b[at:])
		bad := r == utf8.RuneError && size == 1
		switch {
		case bad && invalid, r == '\n':
		case bad, r == '|':
			b[out] = '_'
			out++
		default:
			out += copy(b[out:], b[at:at+size])
		}
		invalid = bad
		at += size
	}
	return b[:out]
}

// appendField writes one section whose text comes from the caller.
func appendField(b []byte, key, text string) []byte {
	b = append(b, key...)
	start := len(b)
	b = append(b, text...)
	if textIsClean(b[start:]) {
		return b
	}
	return cleanText(b, start)
}

// appendSetValue writes a set member. A newline is a byte of the value here, not of a list, so it becomes '_' too.
func appendSetValue(b []byte, value string) []byte {
	start := len(b)
	b = append(b, value...)
	if textIsClean(b[start:]) {
		return b
	}
	b = b[:start]
	for _, r := range strings.ToValidUTF8(value, "_") {
		if r == '\n' || r == '|' {
			r = '_'
		}
		b = utf8.AppendRune(b, r)
	}
	return b
}

func appendCardinality(b []byte, card Cardinality) []byte {
	if card != CardinalityNotSet {
		b = append(b, "|card:"...)
		b = append(b, card.String()...)
	}
	return b
}

// cardinalitySize is the length of that text.
func cardinalitySize(card Cardinality) int {
	if card == CardinalityNotSet {
		return 0
	}
	return len("|card:") + len(card.String())
}

// appendEvent writes an event up to its tags.
func appendEvent(b []byte, e *Event) []byte {
	title := escapeEventText(e.Title)
	text := escapeEventText(e.Text)
	b = append(b, "_e{"...)
	b = strconv.AppendInt(b, int64(len(title)), 10)
	b = append(b, ',')
	b = strconv.AppendInt(b, int64(len(text)), 10)
	b = append(b, "}:"...)
	b = append(b, title...)
	b = append(b, '|')
	b = append(b, text...)
	if !e.Timestamp.IsZero() {
		b = append(b, "|d:"...)
		b = strconv.AppendInt(b, e.Timestamp.Unix(), 10)
	}
	if e.Hostname != "" {
		b = appendField(b, "|h:", e.Hostname)
	}
	if e.AggregationKey != "" {
		b = appendField(b, "|k:", e.AggregationKey)
	}
	priority := string(e.Priority)
	if priority == "" && strings.HasSuffix(text, "\r") {
		// At the end of the line the agent would take it for a part of the line's end, and find the text too short.
		priority = string(Normal)
	}
	if priority != "" {
		b = appendField(b, "|p:", priority)
	}
	if e.SourceTypeName != "" {
		b = appendField(b, "|s:", e.SourceTypeName)
	}
	if e.AlertType != "" {
		b = appendField(b, "|t:", string(e.AlertType))
	}
	return b
}

// escapeEventText turns newlines into the two characters the agent turns back.
func escapeEventText(text string) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "_")
	}
	if strings.IndexByte(text, '\n') < 0 {
		return text
	}
	return strings.ReplaceAll(text, "\n", `\n`)
}

// appendServiceCheckHead writes a service check up to its tags; the message comes after them.
func appendServiceCheckHead(b []byte, sc *ServiceCheck) []byte {
	b = append(b, "_sc|"...)
	start := len(b)
	b = append(b, sc.Name...)
	if !textIsClean(b[start:]) {
		b = appendSetValue(b[:start], sc.Name)
	}
	b = append(b, '|')
	b = strconv.AppendInt(b, int64(sc.Status), 10)
	if !sc.Timestamp.IsZero() {
		b = append(b, "|d:"...)
		b = strconv.AppendInt(b, sc.Timestamp.Unix(), 10)
	}
	if sc.Hostname != "" {
		b = appendField(b, "|h:", sc.Hostname)
	}
	return b
}

func appendServiceCheckMessage(b []byte, message string) []byte {
	if message == "" {
		return b
	}
	b = append(b, "|m:"...)
	if !utf8.ValidString(message) {
		message = strings.ToValidUTF8(message, "_")
	}
	for i := 0; i < len(message); i++ {
		switch ch := message[i]; {
		case ch == '\n':
			b = append(b, `\n`...)
		case ch == '|':
			b = append(b, '_')
		case ch == ':' && i > 0 && message[i-1] == 'm':
			b = append(b, `\:`...)
		default:
			b = append(b, ch)
		}
	}
	return b
}
