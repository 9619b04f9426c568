// Package torch binds libtorch: tensors with deterministic memory, every ATen operator, autograd, files of weights.
// It is the only package that uses cgo, and it knows nothing of models or of reinforcement learning.
//
// All tensor work runs inside [Do], which opens a [Scope]; operators are methods of scopes, and a result lives until its scope
// closes. Inside, errors of operators are panics of type [*Error], which Do returns as errors.
package torch

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "molt.h"
const char* molt_open(const char* path, const char* abi, int* opened);
*/
import "C"

import (
	"crypto/sha256"
	"debug/elf"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"unsafe"
)

// Version is the version of this module; libmolt is cached under it.
const Version = "0.1.0"

//go:embed molt.h
var header []byte

// Load opens libmolt once: $MOLT_LIB where that is set, else the first that can be opened of build/lib in the checkout that the
// program was built from, beside the executable, the user's cache by version (where `make lib` keeps a copy), and /usr/local/lib
// (where `cmake --install build` puts one). [Do] calls it; call it yourself to learn early that the library is missing.
// The error names every place tried and the command that builds the library.
func Load() error { return load() }

var load = sync.OnceValue(func() error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("torch: libtorch is bound on linux/amd64 only, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	sum := sha256.Sum256(header)
	abi := C.CString(hex.EncodeToString(sum[:]))
	defer C.free(unsafe.Pointer(abi))
	path, tried := search(candidates(), func(path *C.char) (string, bool) {
		var opened C.int // its operators are registered then, and another libmolt would register them again
		msg := C.molt_open(path, abi, &opened)
		return C.GoString(msg), opened != 0
	})
	if path == "" {
		return errors.New("torch: libmolt.so cannot be opened; run `make lib` in a checkout of molt, or set MOLT_LIB to its path. Tried:" +
			tried)
	}
	libmolt = path
	return nil
})

// libmolt is the path of the library that was opened.
var libmolt string

// search returns the first of paths that open has nothing against, or what is wrong with each. Open may say that it was the last.
func search(paths []string, open func(path *C.char) (msg string, last bool)) (path, tried string) {
	for _, path := range paths {
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			tried += "\n  " + path + ": not there, or no file"
			continue
		}
		if err := whole(path); err != nil {
			tried += "\n  " + path + ": unreadable or damaged: " + err.Error()
			continue
		}
		c := C.CString(path)
		msg, last := open(c)
		C.free(unsafe.Pointer(c))
		if msg == "" {
			return path, ""
		}
		tried += "\n  " + path + ": " + msg
		if last {
			break
		}
	}
	return "", tried
}

// whole checks that the file holds what its ELF headers announce: dlopen maps a truncated library without a check and dies of SIGBUS.
func whole(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if _, err := p.ReadAt(make([]byte, 1), int64(p.Filesz)-1); err != nil && p.Filesz > 0 {
			return err
		}
	}
	return nil
}

// candidates lists where libmolt may lie, in order: $MOLT_LIB alone when it is set.
func candidates() []string {
	if path := os.Getenv("MOLT_LIB"); path != "" {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs // dlopen looks for a bare name elsewhere than here
		}
		return []string{path}
	}
	var paths []string
	// With -trimpath the caller's file is no absolute path, and there is no checkout to look into.
	if _, file, _, ok := runtime.Caller(0); ok && filepath.IsAbs(file) {
		paths = append(paths, filepath.Join(filepath.Dir(file), "..", "build", "lib", "libmolt.so"))
	}
	if exe, err := os.Executable(); err == nil {
		paths = append(paths, filepath.Join(filepath.Dir(exe), "libmolt.so"))
	}
	if cache, err := os.UserCacheDir(); err == nil {
		paths = append(paths, filepath.Join(cache, "molt", Version, "libmolt.so"))
	}
	return append(paths, "/usr/local/lib/libmolt.so")
}
