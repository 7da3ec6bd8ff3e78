package mock_statsd

import (
	"archive/zip"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	client  = "github.com/weir-dev/weir/clients/go"
	mocks   = client + "/statsd/mocks"
	renamed = client + "/datadog-go-v5"
)

// TestUseFromOutside builds a program that requires both modules at the version of this tree, as users do: from a
// module proxy, where what go.mod replaces for our own use has no effect.
func TestUseFromOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "statsd", "telemetry.go")); err != nil {
		t.Skip("the module of the client is not beside this one")
	}
	version := "v" + versionOf(t, root)
	proxy := t.TempDir()
	publish(t, proxy, client, version, root)
	publish(t, proxy, mocks, version, filepath.Join(root, "statsd", "mocks"))

	program := t.TempDir()
	write(t, filepath.Join(program, "go.mod"), fmt.Sprintf("module example.test/shop\n\ngo 1.22\n\nrequire %s %s\n",
		mocks, version))
	write(t, filepath.Join(program, "shop_test.go"), fmt.Sprintf(`package shop

import (
	"testing"

	"github.com/golang/mock/gomock"
	"%s/statsd"
	mock_statsd "%s"
)

func TestOrders(t *testing.T) {
	double := mock_statsd.NewMockClientInterface(gomock.NewController(t))
	double.EXPECT().Incr("orders", gomock.Any(), 1.0)
	var c statsd.ClientInterface = double
	_ = c.Incr("orders", nil, 1)
}
`, client, mocks))
	outside(t, proxy, program, "test", "./...")
}

// TestGoGet begins a program as the README says, from a proxy that has nothing but the client, and runs it: it has no
// dependencies, and its build needs nothing but the module.
func TestGoGet(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Skip("the module of the client is not beside this one")
	}
	found := regexp.MustCompile("(?m)^go (get [^\n]+)$").FindStringSubmatch(string(readme))
	if found == nil || !strings.HasPrefix(found[1], "get "+client+"@") {
		t.Fatalf("the README's install line is %q", found)
	}
	proxy, program := t.TempDir(), t.TempDir()
	publish(t, proxy, client, "v"+versionOf(t, root), root)
	write(t, filepath.Join(program, "go.mod"), "module example.test/shop\n\ngo 1.22\n")
	write(t, filepath.Join(program, "main.go"), fmt.Sprintf(`package main

import (
	"fmt"
	"net"

	"%s/statsd"
)

func main() {
	agent, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	c, err := statsd.New(agent.LocalAddr().String(), statsd.WithoutTelemetry(), statsd.WithoutOriginDetection())
	if err != nil {
		panic(err)
	}
	h := c.NewCounter("orders", "country:ch")
	// Enough for the flush between them to change how the handle counts.
	for i := 0; i < 2; i++ {
		for j := 0; j < 10000; j++ {
			h.Inc()
		}
		_ = c.Flush()
		b := make([]byte, 1500)
		n, _, err := agent.ReadFrom(b)
		fmt.Printf("%%s%%v\n", b[:n], err)
	}
	_ = c.Close()
}
`, client))
	outside(t, proxy, program, strings.Fields(found[1])...)
	if mod, err := os.ReadFile(filepath.Join(program, "go.mod")); err != nil || strings.Count(string(mod), " v") != 1 {
		t.Errorf("%v, other than the client is required:\n%s", err, mod)
	}
	want := strings.Repeat("orders:10000|c|#country:ch\n<nil>\n", 2)
	if out := outside(t, proxy, program, "run", "."); out != want {
		t.Errorf("the program says %q instead of %q", out, want)
	}
}

// TestReplaceDatadogGo builds a program whose library imports datadog-go. The program replaces that module, as
// docs/migrating.md says; the proxy has no datadog-go.
func TestReplaceDatadogGo(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	guide, err := os.ReadFile(filepath.Join(root, "docs", "migrating.md"))
	if err != nil {
		t.Skip("the module of the client is not beside this one")
	}
	version := "v" + versionOf(t, root)
	found := regexp.MustCompile("(?m)^go (mod edit -replace [^\n]+=" + renamed + "@latest)$").
		FindStringSubmatch(string(guide))
	if found == nil {
		t.Fatal("docs/migrating.md does not say how to replace datadog-go")
	}
	proxy, library, program := t.TempDir(), t.TempDir(), t.TempDir()
	publish(t, proxy, client, version, root)
	publish(t, proxy, mocks, version, filepath.Join(root, "statsd", "mocks"))
	publish(t, proxy, renamed, version, filepath.Join(root, "datadog-go-v5"))

	const theirs = "github.com/DataDog/datadog-go/v5"
	write(t, filepath.Join(library, "go.mod"), fmt.Sprintf(
		"module example.test/library\n\ngo 1.22\n\nrequire %s v5.5.0\n", theirs))
	write(t, filepath.Join(library, "library.go"), fmt.Sprintf(`package library

import "%s/statsd"

// Report counts with a client of the program.
func Report(c statsd.ClientInterface) error { return c.Count("reports", 7, []string{"from:library"}, 1) }
`, theirs))
	publish(t, proxy, "example.test/library", "v1.0.0", library)
	write(t, filepath.Join(program, "go.mod"), fmt.Sprintf(
		"module example.test/shop\n\ngo 1.22\n\nrequire (\n\texample.test/library v1.0.0\n\t%s %s\n)\n",
		client, version))
	write(t, filepath.Join(program, "shop_test.go"), fmt.Sprintf(`package shop

import (
	"testing"

	"%s/statsd"
	mock_statsd "%s/statsd/mocks"
	"%s/statsd/statsdtest"
	"example.test/library"
	"github.com/golang/mock/gomock"
)

func TestReport(t *testing.T) {
	capture := statsdtest.New(t)
	var c *statsd.Client = capture.Client
	if err := library.Report(c); err != nil {
		t.Error(err)
	}
	if n := capture.Total("reports", "from:library"); n != 7 {
		t.Errorf("%%v reports", n)
	}
	double := mock_statsd.NewMockClientInterface(gomock.NewController(t))
	double.EXPECT().Count("reports", int64(7), gomock.Any(), 1.0)
	_ = library.Report(double)
}
`, client, theirs, client))
	outside(t, proxy, program, strings.Fields(found[1])...)
	outside(t, proxy, program, "mod", "tidy")
	outside(t, proxy, program, "test", "./...")
	if used := outside(t, proxy, program, "list", "-m", theirs); !strings.Contains(used, " => "+renamed+" "+version) {
		t.Errorf("the module in use is %s", used)
	}
}

// outside runs the go command in a program with a proxy and returns its output. The module cache is its own, because
// modules published here must not stay; other modules come from the one in use.
func outside(t *testing.T, proxy, program string, arguments ...string) string {
	t.Helper()
	downloads, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", arguments...)
	cmd.Dir = program
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -modcacherw", "GONOSUMDB=*", "GOWORK=off",
		"GOMODCACHE="+filepath.Join(proxy, "cache"), "GOSUMDB=off",
		"GOPROXY=file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(downloads)), "cache", "download"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	return string(out)
}

func versionOf(t *testing.T, root string) string {
	t.Helper()
	telemetry, err := os.ReadFile(filepath.Join(root, "statsd", "telemetry.go"))
	if err != nil {
		t.Fatal(err)
	}
	return regexp.MustCompile(`const version = "(.*)"`).FindStringSubmatch(string(telemetry))[1]
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// publish puts a module into a folder that is laid out as a module proxy.
func publish(t *testing.T, proxy, module, version, root string) {
	t.Helper()
	base := filepath.Join(proxy, filepath.FromSlash(module), "@v")
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(base, "list"), version+"\n")
	write(t, filepath.Join(base, version+".info"), fmt.Sprintf("{\"Version\":%q}", version))
	write(t, filepath.Join(base, version+".mod"), string(mod))
	file, err := os.Create(filepath.Join(base, version+".zip"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	archive := zip.NewWriter(file)
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); path != root && err == nil {
				return filepath.SkipDir
			}
			return nil
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		entry, err := archive.Create(module + "@" + version + "/" + filepath.ToSlash(name))
		if err == nil {
			_, err = entry.Write(text)
		}
		return err
	})
	if err == nil {
		err = archive.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
}
