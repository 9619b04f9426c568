package molt

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/molt-go/molt"

// mayImport names, for every package, the packages of this module that its files may import, tests excepted: imports
// run downwards only. A package that is not here has no place yet; "*" is everything.
var mayImport = map[string][]string{
	".":                {"*"},
	"bench":            {"*"},
	"cmd/molt":         {"."},
	"estimators":       {},
	"multimodal":       {"multimodal/jinja", "torch/model/gguf"},
	"multimodal/jinja": {},
	"rollout":          {"multimodal"},
	"rollout/agent":    {"rollout", "rollout/agent/grade", "multimodal"},
	"rollout/engine":   {"rollout", "torch", "torch/model"},
	"torch":            {},
	"torch/model":      {"torch", "torch/model/gguf"},
	"torch/model/gguf": {},
	"torch/optim":      {"torch"},
	"torch/shard":      {"torch", "torch/model", "torch/optim"},
	"trainer":          {"estimators", "multimodal", "rollout", "torch", "torch/model", "torch/optim", "torch/shard"},

	"rollout/agent/grade": {"rollout", "multimodal"},
	"rollout/agent/tool":  {},
}

// rlAndText is what the tensor packages must not know.
var rlAndText = []string{"estimators", "multimodal", "rollout", "trainer"}

// mustNotKnow names what a package must not reach on any path of imports, with everything below it; torch/model/gguf,
// pure Go that tokenizers are read with too, does not count as torch.
var mustNotKnow = map[string][]string{
	"estimators":       {"multimodal", "rollout", "torch", "trainer"},
	"multimodal":       {"estimators", "rollout", "torch", "trainer"},
	"multimodal/jinja": {"estimators", "rollout", "torch", "trainer"},
	"rollout":          {"torch", "trainer"},
	"rollout/agent":    {"torch", "trainer", "rollout/engine"},
	"rollout/engine":   {"trainer", "rollout/agent"},
	"torch":            rlAndText,
	"torch/model":      rlAndText,
	"torch/model/gguf": append([]string{"torch"}, rlAndText...),
	"torch/optim":      rlAndText,
	"torch/shard":      rlAndText,
	"trainer":          {"rollout/engine", "rollout/agent"},

	"rollout/agent/grade": {"torch", "trainer", "rollout/engine"},
	"rollout/agent/tool":  {"torch", "trainer", "rollout/engine"},
}

// mayMint lists the files, or folders of files, that may refer to rollout.Mint: a token that anything else could mint
// would be trained on without the policy having generated it.
var mayMint = []string{
	"rollout/engine",    // the policy itself
	"rollout/client.go", // tokens of a remote worker
	"rollout/script.go", // the scripted generator
	"rollout/dump.go",   // reads dumped batches, whose files carry a digest
}

// source is one Go file of the module, whatever its build tags.
type source struct {
	path string // from the module root, with slashes
	ast  *ast.File
}

func (s source) dir() string  { return path.Dir(s.path) }
func (s source) isTest() bool { return strings.HasSuffix(s.path, "_test.go") }

// imports gives the import paths of the file with the local name of each: the last element where none is given.
func (s source) imports() map[string]string {
	names := map[string]string{}
	for _, spec := range s.ast.Imports {
		p, _ := strconv.Unquote(spec.Path.Value)
		names[p] = path.Base(p)
		if spec.Name != nil {
			names[p] = spec.Name.Name
		}
	}
	return names
}

// sources parses every Go file of the module; nested modules and what the go command ignores are no part of it.
func sources(t *testing.T) []source {
	t.Helper()
	var files []source
	err := filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			ignored := p != "." && strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_") || d.Name() == "testdata"
			if nested, _ := filepath.Glob(filepath.Join(p, "go.mod")); ignored || p != "." && nested != nil {
				return fs.SkipDir
			}
			return nil
		}
		if filepath.Ext(p) != ".go" {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), p, nil, 0)
		files = append(files, source{filepath.ToSlash(p), f})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// inModule turns an import path into a folder of this module.
func inModule(importPath string) (string, bool) {
	if importPath == module {
		return ".", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// under tells whether p is one of the folders or files, or lies below one.
func under(p string, folders []string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return p == f || strings.HasPrefix(p, f+"/") })
}

func TestLayoutImportsRunDownwards(t *testing.T) {
	for _, s := range sources(t) {
		allowed, known := mayImport[s.dir()]
		if !known {
			t.Errorf("%s: package %s is not in mayImport: give it a place there, or move the file", s.path, s.dir())
			continue
		}
		for p := range s.imports() {
			dir, ours := inModule(p)
			if ours && !s.isTest() && !slices.Contains(allowed, "*") && !slices.Contains(allowed, dir) {
				t.Errorf("%s imports %s; package %s may import only %q", s.path, p, s.dir(), allowed)
			}
		}
	}
}

func TestLayoutPackagesReachNothingAboveThem(t *testing.T) {
	list := exec.Command("go", "list", "-json=ImportPath,Deps", "./...")
	var stderr strings.Builder
	list.Stderr = &stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", list, err, &stderr)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		dir, _ := inModule(pkg.ImportPath)
		for _, dep := range pkg.Deps {
			d, ours := inModule(dep)
			if ours && under(d, mustNotKnow[dir]) && d != "torch/model/gguf" {
				t.Errorf("%s reaches %s; it must not know %q", dir, d, mustNotKnow[dir])
			}
		}
	}
}

func TestLayoutOnlyTorchUsesCgo(t *testing.T) {
	for _, s := range sources(t) {
		if s.dir() == "cbridge" {
			t.Errorf("%s: cgo would compile every .cc beside a Go file; cbridge is built by CMake", s.path)
		}
		if _, cgo := s.imports()["C"]; cgo && s.dir() != "torch" {
			t.Errorf(`%s imports "C"; only package torch may`, s.path)
		}
	}
}

func TestLayoutOnlyGeneratorsMint(t *testing.T) {
	for _, s := range sources(t) {
		if !s.isTest() && !under(s.path, mayMint) && refersToMint(s) {
			t.Errorf("%s refers to rollout.Mint; only %q may", s.path, mayMint)
		}
	}
}

// refersToMint tells whether the file names rollout.Mint, called or not; a dot import, which hides it, counts too.
func refersToMint(s source) (found bool) {
	local, imported := s.imports()[module+"/rollout"]
	ast.Inspect(s.ast, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl: // its own name is no reference
			return n.Recv != nil || n.Name.Name != "Mint" || s.dir() != "rollout"
		case *ast.Ident:
			found = found || n.Name == "Mint" && s.dir() == "rollout"
		case *ast.SelectorExpr:
			x, ok := n.X.(*ast.Ident)
			found = found || ok && imported && x.Name == local && n.Sel.Name == "Mint"
		}
		return true
	})
	return found || local == "."
}

func TestLayoutSeesEveryWayToMint(t *testing.T) {
	for _, tc := range []struct {
		path, code string
		want       bool
	}{
		{"trainer/a.go", `import "github.com/molt-go/molt/rollout"; var _, _ = rollout.Mint(1, 0, 0, 1, true)`, true},
		{"trainer/a.go", `import r "github.com/molt-go/molt/rollout"; var mint = r.Mint`, true},
		{"trainer/a.go", `import . "github.com/molt-go/molt/rollout"`, true},
		{"trainer/a.go", `import "example.com/coins"; var _ = coins.Mint()`, false},
		{"rollout/a.go", `func f() { Mint(1, 0, 0, 1, true) }`, true},
		{"rollout/a.go", `func Mint(id int32) {}`, false},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), tc.path, "package p; "+tc.code, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := refersToMint(source{tc.path, f}); got != tc.want {
			t.Errorf("%s: %s: refers to Mint: %t, want %t", tc.path, tc.code, got, tc.want)
		}
	}
}
