package statsd

import (
	"os/exec"
	"strings"
	"testing"
)

// TestBuildWithoutUnsafe asks the compiler's own list: with the build tag purego the package does not import unsafe, on
// any system.
func TestBuildWithoutUnsafe(t *testing.T) {
	imports := func(goos string, args ...string) string {
		cmd := exec.Command("go", append([]string{"list", "-f", "{{join .Imports \" \"}}"}, args...)...)
		cmd.Env = append(cmd.Environ(), "GOOS="+goos, "GOARCH=amd64", "CGO_ENABLED=0")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go list: %v\n%s", err, out)
		}
		return " " + strings.TrimSpace(string(out)) + " "
	}
	for _, goos := range []string{"linux", "darwin", "windows"} {
		if list := imports(goos, "-tags", "purego", "."); strings.Contains(list, " unsafe ") || !strings.Contains(list,
			" sync ") {
			t.Errorf("%s: the package imports%s", goos, list)
		}
		if list := imports(goos, "."); !strings.Contains(list, " unsafe ") {
			t.Errorf("%s: without the tag unsafe is not imported, so this test shows nothing:%s", goos, list)
		}
	}
}
