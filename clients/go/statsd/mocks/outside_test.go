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
	client = "github.com/weir-dev/weir/clients/go"
	mocks  = client + "/statsd/mocks"
)

// TestUseFromOutside builds a program that requires both modules at the version of this tree, as users do: from a
// module proxy, where what go.mod replaces for our own use has no effect.
func TestUseFromOutside(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	telemetry, err := os.ReadFile(filepath.Join(root, "statsd", "telemetry.go"))
	if err != nil {
		t.Skip("the module of the client is not beside this one")
	}
	version := "v" + regexp.MustCompile(`const version = "(.*)"`).FindStringSubmatch(string(telemetry))[1]
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
	downloads, err := exec.Command("go", "env", "GOMODCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	// A module cache of its own, because what is published here must not stay; the other modules come from the one in
	// use.
	cache := t.TempDir()
	cmd := exec.Command("go", "test", "./...")
	cmd.Dir = program
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod -modcacherw", "GONOSUMDB=*", "GOWORK=off", "GOMODCACHE="+cache,
		"GOSUMDB=off", "GOPROXY=file://"+proxy+",file://"+filepath.Join(strings.TrimSpace(string(downloads)), "cache",
			"download"))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
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
