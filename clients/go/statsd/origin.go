package statsd

import (
	"os"
	"strconv"
	"strings"
	"unicode"
)

// originEnabled reports whether the client adds the detected facts about its container.
func originEnabled(o *Options) bool {
	if !o.originDetection {
		return false
	}
	enabled, err := strconv.ParseBool(os.Getenv("DD_ORIGIN_DETECTION_ENABLED"))
	return err != nil || enabled
}

// originSections returns the sections c: and e: of this client's messages.
func originSections(o *Options) (container, external string) {
	enabled := originEnabled(o)
	id := o.containerID
	if id == "" && enabled {
		id = detectContainerID()
	}
	if id != "" {
		container = string(appendField(nil, "|c:", id))
	}
	if enabled {
		if text := printable(os.Getenv("DD_EXTERNAL_ENV")); text != "" {
			external = "|e:" + text
		}
	}
	return container, external
}

// printable removes what cannot stand in a section.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '|' || r == unicode.ReplacementChar || !unicode.IsPrint(r) {
			return -1
		}
		return r
	}, text)
}

// environmentTags returns the global tags from the environment, in the order they are written.
func environmentTags(o *Options) []string {
	var tags []string
	for _, x := range []struct{ variable, key string }{
		{"DD_ENTITY_ID", "dd.internal.entity_id"}, {"DD_ENV", "env"}, {"DD_SERVICE", "service"}, {"DD_VERSION",
			"version"},
	} {
		if value := os.Getenv(x.variable); value != "" {
			tags = append(tags, x.key+":"+value)
		}
	}
	if o.envTags {
		// Both separators are in use; with a comma anywhere, spaces belong to the tags.
		list := os.Getenv("DD_TAGS")
		split := func(r rune) bool { return r == ',' }
		if !strings.Contains(list, ",") {
			split = unicode.IsSpace
		}
		for _, tag := range strings.FieldsFunc(list, split) {
			if tag = strings.TrimSpace(tag); tag != "" {
				tags = append(tags, tag)
			}
		}
	}
	return tags
}
