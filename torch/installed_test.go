package torch_test

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/molt-go/molt/torch"
)

// program prints a sum, or why there is none, and then what a tensor says where no library is open.
const program = `package main

import (
	"fmt"
	"os"

	"github.com/molt-go/molt/torch"
)

func main() {
	err := torch.Do(1, func(s *torch.Scope) error {
		x := torch.New(s, []float32{1, 2})
		fmt.Println(torch.Values[float32](s.Add(x, x)))
		return nil
	})
	if err == nil {
		return
	}
	fmt.Println(err)
	defer os.Exit(1)
	defer func() { fmt.Println(err) }()
	defer torch.Catch(&err)
	torch.Tensor{}.Shape()
}
`

// foreign makes a module elsewhere whose program imports package torch, and builds it in three ways: "plain", "trimpath", "vendored".
func foreign(t *testing.T, root string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(folder, "go.sum"), sums)
	write(t, filepath.Join(folder, "main.go"), []byte(program))
	write(t, filepath.Join(folder, "go.mod"), fmt.Appendf(nil, "module example.com/elsewhere\n\ngo 1.26.0\n\n"+
		"require github.com/molt-go/molt v%s\n\nreplace github.com/molt-go/molt => %q\n", Version, root))
	for _, args := range []string{"build -mod=mod -o plain", "build -trimpath -o trimpath", "mod vendor", "build -o vendored"} {
		args := strings.Fields(args)
		cmd := exec.Command("go", args...)
		cmd.Dir = folder
		cmd.Env = append(os.Environ(), "GOFLAGS=", "GOPROXY=off", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	return folder
}

func write(t *testing.T, path string, data []byte) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o666); err != nil {
		t.Fatal(err)
	}
	return path
}

// libraries makes what lies about as libmolt.so, by name: installed, and everything that can be wrong with it.
func libraries(t *testing.T, root string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	install := exec.Command("cmake", "--install", filepath.Join(root, "build"), "--prefix", dir)
	if out, err := install.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", install, err, out)
	}
	libs := map[string]string{"nowhere": "/nowhere/libmolt.so", "installed": filepath.Join(dir, "lib", "libmolt.so")}
	whole, err := os.ReadFile(libs["installed"])
	if err != nil {
		t.Fatal(err)
	}
	add := func(name string, data []byte) { libs[name] = write(t, filepath.Join(dir, name, "libmolt.so"), data) }
	add("empty", nil)
	add("text", []byte("this is no library\n"))
	for _, n := range []int{1, 64, 200, 1000, 4096, 100_000, len(whole) / 2, len(whole) - 4096, len(whole) - 1} {
		add(fmt.Sprint("cut at ", n), whole[:n])
	}
	stripped := bytes.Clone(whole[:100_000]) // cut, and without the section headers that would tell
	clear(stripped[0x28:0x30])
	clear(stripped[0x3c:0x40])
	add("stripped", stripped)

	// Its libtorch is gone: the folders that it was linked against are nowhere. In "pack", libtorch lies beside it.
	f, err := elf.NewFile(bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	rpath, err := f.DynString(elf.DT_RPATH)
	if err != nil || len(rpath) != 1 {
		t.Fatal("the library's RPATH:", rpath, err)
	}
	folders, _ := strings.CutSuffix(rpath[0], ":$ORIGIN")
	orphan := bytes.ReplaceAll(whole, []byte(rpath[0]), []byte("/"+strings.Repeat("x", len(folders)-1)+":$ORIGIN"))
	add("orphan", orphan)
	add("pack", orphan)
	for _, folder := range filepath.SplitList(folders) {
		parts, _ := filepath.Glob(filepath.Join(folder, "*.so*"))
		for _, part := range parts {
			if err := os.Symlink(part, filepath.Join(dir, "pack", filepath.Base(part))); err != nil && !errors.Is(err, os.ErrExist) {
				t.Fatal(err)
			}
		}
	}

	// Libraries with every function of molt.h: of another version, and without the one that tells.
	header, err := os.ReadFile("molt.h")
	if err != nil {
		t.Fatal(err)
	}
	code := `const char* mt_abi(void) { return "another"; }`
	functions := regexp.MustCompile(`(?m)^  X\([^,]*, (mt_\w+),`).FindAllSubmatch(header, -1)
	if len(functions) < 10 || string(functions[0][1]) != "mt_abi" {
		t.Fatalf("functions of molt.h: %s", functions)
	}
	for _, f := range functions[1:] {
		code += fmt.Sprintf("\nvoid %s(void) {}", f[1])
	}
	for name, code := range map[string]string{"other": code, "lacking": strings.Replace(code, "mt_abi", "mt_abj", 1)} {
		add(name, nil)
		cc := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-o", libs[name], "-")
		cc.Stdin = strings.NewReader(code)
		if out, err := cc.CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cc, err, out)
		}
	}
	return libs
}

func TestModuleElsewhereFindsTheLibraryOrSaysWhyNot(t *testing.T) {
	root, err := filepath.Abs("..")
	if err != nil {
		t.Fatal(err)
	}
	programs, libs := foreign(t, root), libraries(t, root)

	// run puts the named libraries beside the program, into the cache and into $MOLT_LIB, and runs it from another folder.
	run := func(program, beside, cache, env string) (output string, dir string) {
		dir = t.TempDir()
		link := func(from string, to ...string) {
			to = append([]string{dir}, to...)
			os.MkdirAll(filepath.Join(to[:len(to)-1]...), 0o777)
			if err := os.Link(from, filepath.Join(to...)); err != nil {
				t.Fatal(err)
			}
		}
		link(filepath.Join(programs, program), program)
		if beside != "" {
			link(libs[beside], "libmolt.so")
		}
		if cache != "" {
			link(libs[cache], "cache", "molt", Version, "libmolt.so")
		}
		cmd := exec.Command(filepath.Join(dir, program))
		cmd.Dir = filepath.Dir(libs["installed"])
		cmd.Env = []string{"XDG_CACHE_HOME=" + filepath.Join(dir, "cache"), "MOLT_LIB=" + env}
		out, err := cmd.CombinedOutput()
		if ok := string(out) == "[2 4]\n"; !ok && (err == nil || err.Error() != "exit status 1") {
			t.Errorf("%s: %v, want a sum or exit status 1\n%s", program, err, out)
		}
		return string(out), dir
	}

	for _, tc := range []struct{ program, beside, cache, env string }{
		{"plain", "", "", ""},      // from the checkout
		{"plain", "other", "", ""}, // the checkout comes first
		{"trimpath", "installed", "", ""},
		{"trimpath", "installed", "other", ""},
		{"trimpath", "", "installed", ""},
		{"trimpath", "other", "other", libs["installed"]},
		{"trimpath", "", "", "libmolt.so"}, // a relative path
		{"trimpath", "", "", libs["pack"]},
		{"vendored", "installed", "", ""},
		{"vendored", "", "installed", ""},
		// What cannot be opened is passed over.
		{"vendored", "empty", "installed", ""},
		{"vendored", "text", "installed", ""},
		{"vendored", "cut at 4096", "installed", ""},
		{"vendored", "orphan", "installed", ""},
	} {
		if got, _ := run(tc.program, tc.beside, tc.cache, tc.env); got != "[2 4]\n" {
			t.Errorf("%+v prints %q", tc, got)
		}
	}

	fails := func(name, got string, want ...string) {
		t.Helper()
		for _, w := range append(want, "run `make lib` in a checkout of molt, or set MOLT_LIB", "libmolt is not open") {
			if !strings.Contains(got, w) {
				t.Errorf("%s: the error does not say %q:\n%s", name, w, got)
			}
		}
	}
	got, dir := run("trimpath", "", "", "")
	if _, err := os.Stat("/usr/local/lib/libmolt.so"); err != nil { // else that one is found
		fails("missing", got, dir+"/libmolt.so: not there", filepath.Join(dir, "cache/molt", Version, "libmolt.so: not there"),
			"/usr/local/lib/libmolt.so: not there")
	}
	for name, path := range libs {
		want := []string{path}
		switch name {
		case "installed", "pack":
			continue
		case "nowhere":
			want = append(want, "not there")
		case "other":
			want = append(want, "another version of torch/molt.h")
		case "lacking":
			want = append(want, "lacks the function mt_abi")
		case "orphan":
			want = append(want, "libtorch_cpu.so: cannot open shared object file")
		default:
			want = append(want, "unreadable or damaged")
		}
		got, _ := run("trimpath", "", "", path)
		fails(name, got, want...)
	}

	// A libmolt of another version was opened, and a second one may not be: the search ends, and says at which.
	got, dir = run("trimpath", "other", "installed", "")
	fails("other beside", got, dir+"/libmolt.so: it was built for another version")
	if strings.Contains(got, "cache") {
		t.Error("the search went on after it had opened a library:", got)
	}
}
