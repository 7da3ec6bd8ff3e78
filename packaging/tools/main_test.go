package main

import (
	"strings"
	"testing"
)

func TestWhatTheAPIDoesNotKnowIsRefused(t *testing.T) {
	for _, c := range []struct{ name, document, want string }{
		{"a valid object", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n", ""},
		{"an unknown field", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndatta: {k: v}\n", "datta"},
		{"a value of another type", "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec: {ports: [{port: x}]}\n", "Service/a"},
		{"a field twice", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\ndata: {}\n", "data"},
		{"an unknown kind", "apiVersion: v1\nkind: Potato\nmetadata: {name: a}\n", "Potato"},
		{"an operator's object with an unknown field",
			"apiVersion: monitoring.coreos.com/v1\nkind: ServiceMonitor\nmetadata: {name: a}\nspec: {endpoint: []}\n", "endpoint"},
		{"no kind", "a: b\n", "without a kind"},
		{"nothing but a comment", "# Source: x\n", ""},
	} {
		_, err := check(strings.NewReader(c.document))
		switch {
		case c.want == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
			t.Errorf("%s: %v, not %q", c.name, err, c.want)
		}
	}
}
