package statsdtest

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// The kinds of messages.
const (
	Metric       = "metric"
	Event        = "event"
	ServiceCheck = "check"
)

// Message is a message as an agent reads it. Which fields are set depends on Kind.
type Message struct {
	// Kind is [Metric], [Event] or [ServiceCheck].
	Kind string `json:"kind"`
	// Name is the name of a metric or service check.
	Name string `json:"name,omitempty"`
	// Type of a metric is "c", "g", "h", "d", "s" or "ms".
	Type string `json:"type,omitempty"`
	// Values are the values of a metric that is not a set. Its rate has not been applied.
	Values []float64 `json:"values,omitempty"`
	// Member is the value of a set.
	Member string `json:"set,omitempty"`
	// Rate is the sample rate of a metric, 1 if it has none.
	Rate float64 `json:"rate,omitempty"`
	// Tags are in the order of the message; empty ones are left out.
	Tags []string `json:"tags,omitempty"`
	// Timestamp is in seconds since 1970, 0 if there is none.
	Timestamp int64 `json:"ts,omitempty"`

	Title          string `json:"title,omitempty"`
	Text           string `json:"text,omitempty"`
	Priority       string `json:"priority,omitempty"`
	AlertType      string `json:"alert_type,omitempty"`
	Hostname       string `json:"host,omitempty"`
	AggregationKey string `json:"agg_key,omitempty"`
	SourceTypeName string `json:"source,omitempty"`
	// Status is the status of a service check.
	Status int `json:"status,omitempty"`
	// Message is the message of a service check, escaped as on the wire.
	Message string `json:"message,omitempty"`

	// Container and External are the sections c: and e:, Cardinality is card:.
	Container   string `json:"-"`
	External    string `json:"-"`
	Cardinality string `json:"card,omitempty"`

	// Line is the whole message, without the newline.
	Line string `json:"-"`
}

// Total is the sum of a counter with its sample rate applied, the value of a gauge, and the number of values
// otherwise, with the rate applied.
func (m Message) Total() float64 {
	switch {
	case m.Kind != Metric || m.Type == "s":
		return 1
	case m.Type == "g" && len(m.Values) > 0:
		return m.Values[len(m.Values)-1]
	case m.Type == "c":
		sum := 0.0
		for _, v := range m.Values {
			sum += v / m.Rate
		}
		return sum
	default:
		return float64(len(m.Values)) / m.Rate
	}
}

// HasTags reports whether the message has all these tags.
func (m Message) HasTags(tags ...string) bool {
	for _, want := range tags {
		found := false
		for _, t := range m.Tags {
			found = found || t == want
		}
		if !found {
			return false
		}
	}
	return true
}

// Parse reads one line of a packet. It refuses what an agent refuses.
func Parse(line string) (Message, error) {
	line = strings.TrimSuffix(line, "\r")
	var m Message
	var err error
	switch {
	case strings.HasPrefix(line, "_e{"):
		m, err = parseEvent(line)
	case strings.HasPrefix(line, "_sc|"):
		m, err = parseCheck(line)
	default:
		m, err = parseMetric(line)
	}
	if err != nil {
		return Message{}, fmt.Errorf("%w: %q", err, line)
	}
	m.Line = line
	return m, nil
}

func valid(texts ...string) error {
	for _, t := range texts {
		if !utf8.ValidString(t) {
			return errors.New("invalid UTF-8")
		}
	}
	return nil
}

func parseMetric(line string) (Message, error) {
	m := Message{Kind: Metric, Rate: 1}
	sections := strings.Split(line, "|")
	if len(sections) < 2 {
		return m, errors.New("no separator")
	}
	name, text, found := strings.Cut(sections[0], ":")
	if found && name == "" {
		return m, errors.New("empty name")
	}
	if !found || text == "" {
		return m, errors.New("no value")
	}
	m.Name, m.Type = name, sections[1]
	switch m.Type {
	case "s":
		m.Member = text
	case "c", "g", "h", "d", "ms":
		any := false
		for _, item := range strings.Split(text, ":") {
			if item == "" {
				continue
			}
			any = true
			v, err := parseNumber(item)
			if err != nil {
				return m, err
			}
			if !math.IsNaN(v) && !math.IsInf(v, 0) {
				m.Values = append(m.Values, v)
			}
		}
		if !any {
			return m, errors.New("no value")
		}
		if len(m.Values) == 0 {
			return m, errors.New("no finite value")
		}
	default:
		return m, errors.New("bad type")
	}
	for _, s := range sections[2:] {
		switch {
		case strings.HasPrefix(s, "@"):
			rate, err := parseNumber(s[1:])
			if err != nil {
				return m, errors.New("bad sample rate")
			}
			m.Rate = usableRate(rate)
		case strings.HasPrefix(s, "T"):
			at, err := strconv.ParseInt(s[1:], 10, 64)
			if err != nil || at <= 0 {
				return m, errors.New("bad timestamp")
			}
			m.Timestamp = at
		default:
			m.section(s)
		}
	}
	return m, valid(append([]string{m.Name, m.Member}, m.Tags...)...)
}

// parseNumber accepts decimal numbers, infinities and NaN, and no number that is too large for a float.
func parseNumber(text string) (float64, error) {
	bare := strings.ToLower(strings.TrimLeft(text, "+-"))
	if bare != "nan" && bare != "inf" && bare != "infinity" && strings.Trim(bare, "0123456789.e+-") != "" {
		return 0, errors.New("bad value")
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, errors.New("bad value")
	}
	return v, nil
}

// usableRate treats a rate that makes no sense as 1, and bounds the weight of one sample.
func usableRate(rate float64) float64 {
	const least = 3.845e-9
	if !(rate > 0 && rate <= 1) {
		return 1
	}
	return math.Max(rate, least)
}

// section reads a section that every kind of message may have.
func (m *Message) section(s string) {
	switch {
	case strings.HasPrefix(s, "#"):
		m.Tags = nil
		for _, t := range strings.Split(s[1:], ",") {
			if t != "" {
				m.Tags = append(m.Tags, t)
			}
		}
	case strings.HasPrefix(s, "c:"):
		m.Container = s[2:]
	case strings.HasPrefix(s, "e:"):
		m.External = s[2:]
	case strings.HasPrefix(s, "card:"):
		m.Cardinality = s[5:]
	}
}

func parseEvent(line string) (Message, error) {
	m := Message{Kind: Event, Priority: "normal", AlertType: "info"}
	head, rest, found := strings.Cut(line[len("_e{"):], "}:")
	title, text, comma := strings.Cut(head, ",")
	n, err1 := strconv.Atoi(title)
	k, err2 := strconv.Atoi(text)
	if !found || !comma || err1 != nil || err2 != nil || n < 0 || k < 0 {
		return m, errors.New("bad event header")
	}
	if n == 0 {
		return m, errors.New("empty title")
	}
	if n+1+k > len(rest) || rest[n] != '|' || len(rest) > n+1+k && rest[n+1+k] != '|' {
		return m, errors.New("event too short")
	}
	m.Title = strings.ReplaceAll(rest[:n], `\n`, "\n")
	m.Text = strings.ReplaceAll(rest[n+1:n+1+k], `\n`, "\n")
	for _, s := range strings.Split(rest[n+1+k:], "|") {
		if len(s) > 1 && s[1] == ':' && strings.IndexByte("dhkpst", s[0]) >= 0 {
			m.eventField(s[0], s[2:])
		} else {
			m.section(s)
		}
	}
	return m, valid(append([]string{m.Title, m.Text, m.Hostname, m.AggregationKey, m.SourceTypeName}, m.Tags...)...)
}

func (m *Message) eventField(key byte, text string) {
	switch key {
	case 'd':
		if at, err := strconv.ParseInt(text, 10, 64); err == nil {
			m.Timestamp = at
		}
	case 'h':
		m.Hostname = text
	case 'k':
		m.AggregationKey = text
	case 'p':
		if text == "normal" || text == "low" {
			m.Priority = text
		}
	case 's':
		m.SourceTypeName = text
	case 't':
		if text == "error" || text == "warning" || text == "info" || text == "success" {
			m.AlertType = text
		}
	}
}

func parseCheck(line string) (Message, error) {
	m := Message{Kind: ServiceCheck}
	sections := strings.Split(line, "|")
	if len(sections) < 3 {
		return m, errors.New("bad check format")
	}
	if m.Name = sections[1]; m.Name == "" {
		return m, errors.New("empty check name")
	}
	status := sections[2]
	if len(status) != 1 || status[0] < '0' || status[0] > '3' {
		return m, errors.New("bad check status")
	}
	m.Status = int(status[0] - '0')
	for _, s := range sections[3:] {
		switch {
		case strings.HasPrefix(s, "d:"):
			if at, err := strconv.ParseInt(s[2:], 10, 64); err == nil {
				m.Timestamp = at
			}
		case strings.HasPrefix(s, "h:"):
			m.Hostname = s[2:]
		case strings.HasPrefix(s, "m:"):
			m.Message = s[2:]
		default:
			m.section(s)
		}
	}
	return m, valid(append([]string{m.Name, m.Hostname, m.Message}, m.Tags...)...)
}
