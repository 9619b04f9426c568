package torch

/*
#cgo noescape mt_map
#include "molt.h"
*/
import "C"

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"math/bits"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A safetensors file is an 8-byte little-endian header length, a JSON header and the data of the tensors, end to
// end. The format allows headers of 100 MB; 16 MiB holds 100,000 tensors and is read in well under a second.
const maxSafeTensorsHeader = 16 << 20

var safeTensorsDTypes = map[string]DType{
	"U8": Uint8, "I8": Int8, "I16": Int16, "I32": Int32, "I64": Int64,
	"F16": Float16, "F32": Float32, "F64": Float64, "BOOL": Bool, "BF16": BFloat16,
}

// Entry is one tensor of a safetensors file.
type Entry struct {
	Name  string
	DType DType
	Shape []int // empty for a scalar
	// Data holds the elements in row-major, little-endian order. That of an opened file is mapped: writing to it, or
	// reading it after Close, is a fault. Files of other writers may not align it to the size of an element.
	Data []byte
	// Write, where set, gives the data to WriteSafeTensors in place of Data. It is called when the entry's turn
	// comes, so that converted or copied tensors need not all be in memory at once.
	Write func(w io.Writer) error
}

// size returns the bytes that shape and dtype ask for. A dimension of 0 counts as 1 in the check for overflow,
// because strides are computed so.
func (e Entry) size() (int, error) {
	bound, size := uint64(e.DType.Size()), e.DType.Size()
	for _, d := range e.Shape {
		hi, lo := bits.Mul64(bound, uint64(max(d, 1)))
		if d < 0 || hi != 0 || lo > math.MaxInt || len(e.Shape) > 64 {
			return 0, fmt.Errorf("shape of %d dimensions: more than 64, or negative or too large at %d", len(e.Shape), d)
		}
		bound, size = lo, size*d
	}
	return size, nil
}

// SafeTensors is a read-only view of a checkpoint in safetensors files. It is safe for concurrent use until Close.
type SafeTensors struct {
	entries map[string]Entry
	places  map[string]place
	mapped  [][]byte
	files   []*os.File
}

// place is where a tensor's data begins.
type place struct {
	file   *os.File
	mapped []byte // the whole file
	offset int
}

// OpenSafeTensors maps a checkpoint into memory without reading its data. The path is a .safetensors file, an index
// (.safetensors.index.json) whose shards lie beside it, or a folder with model.safetensors or
// model.safetensors.index.json. Headers are checked in full: data that overlaps, leaves a hole, ends beyond the file or
// does not fit its shape, and a dtype that this package lacks, are errors naming file and tensor. A mapped file must not
// be truncated in place; WriteSafeTensors replaces it, which is safe.
func OpenSafeTensors(path string) (*SafeTensors, error) {
	s := &SafeTensors{entries: map[string]Entry{}, places: map[string]place{}}
	path, err := findSafeTensors(path)
	switch {
	case err != nil:
	case strings.HasSuffix(path, ".index.json"):
		err = s.openShards(path)
	default:
		_, err = s.openFile(path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("safetensors %s: %w", path, err), s.Close())
	}
	return s, nil
}

// Names returns the names of all tensors, sorted.
func (s *SafeTensors) Names() []string { return slices.Sorted(maps.Keys(s.entries)) }

// Lookup returns the tensor of that name; its Data is valid until Close.
func (s *SafeTensors) Lookup(name string) (Entry, bool) {
	e, ok := s.entries[name]
	return e, ok
}

// Close unmaps the files. No Data of this checkpoint may be used afterwards. A second Close does nothing.
func (s *SafeTensors) Close() error {
	var err error
	for _, m := range s.mapped {
		err = errors.Join(err, unix.Munmap(m))
	}
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	*s = SafeTensors{}
	return err
}

// Tensor is the tensor of that name on its file's own pages, which are read when they are first used. Writing to it changes memory,
// never the file. It may outlive Close. Data that is not aligned to its element's size is copied. The error names an absent one.
func (s *SafeTensors) Tensor(scope *Scope, name string) (Tensor, error) {
	e, ok := s.entries[name]
	if !ok {
		return Tensor{}, fmt.Errorf("safetensors: no tensor %q", name)
	}
	at := s.places[name]
	if len(e.Data) == 0 || at.offset%e.DType.Size() != 0 {
		t := scope.Empty(e.DType, e.Shape...)
		WriteBytes(t, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data)), t.Numel())
		return t, nil
	}
	var err *C.char
	h := C.mt_map(scope.h, C.int32_t(at.file.Fd()), C.int64_t(at.offset), C.int64_t(len(e.Data)), C.int32_t(e.DType), dims(e.Shape),
		C.int32_t(len(e.Shape)), &err)
	runtime.KeepAlive(at.file)
	check("SafeTensors.Tensor", err)
	return Tensor{h}, nil
}

// Read fills t, converting, with the numbers of the tensor of that name from number at on, in row-major order. Then it lets go of the
// pages that they lie on, so that reading a file does not hold a copy of it.
func (s *SafeTensors) Read(t Tensor, name string, at int) error {
	e, ok := s.entries[name]
	if !ok {
		return fmt.Errorf("safetensors: no tensor %q", name)
	}
	n, size := t.Numel(), e.DType.Size()
	if at < 0 || at > len(e.Data)/size-n {
		return fmt.Errorf("safetensors: tensor %q has %d numbers, too few for %v from %d on", name, len(e.Data)/size, t, at)
	}
	WriteBytes(t, e.DType, unsafe.Pointer(unsafe.SliceData(e.Data[at*size:])), n)
	p := s.places[name]
	first := (p.offset + at*size) &^ (os.Getpagesize() - 1)
	_ = unix.Madvise(p.mapped[first:p.offset+(at+n)*size], unix.MADV_DONTNEED) // only saves memory
	return nil
}

func findSafeTensors(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil || !info.IsDir() {
		return path, err
	}
	for _, name := range []string{"model.safetensors", "model.safetensors.index.json"} {
		file := filepath.Join(path, name)
		if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
			return file, err
		}
	}
	return path, errors.New("the folder has neither model.safetensors nor model.safetensors.index.json")
}

// openShards wants index and shards to agree: the tensors that only one of them knows are an error that lists them.
func (s *SafeTensors) openShards(path string) error {
	index, err := s.mapFile(path)
	if err != nil {
		return err
	}
	shardOf, err := parseIndex(index)
	if err != nil {
		return err
	}
	var faults []string
	for _, shard := range slices.Compact(slices.Sorted(maps.Values(shardOf))) {
		entries, err := s.openFile(filepath.Join(filepath.Dir(path), shard))
		if err != nil {
			return fmt.Errorf("shard %.200q: %w", shard, err)
		}
		for _, e := range entries {
			if want := shardOf[e.Name]; want != shard {
				faults = append(faults, fmt.Sprintf("tensor %.200q is in shard %.200q, by the index in %.200q", e.Name, shard, want))
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(shardOf)) {
		if _, ok := s.entries[name]; !ok {
			faults = append(faults, fmt.Sprintf("tensor %.200q of the index is not in its shard %.200q", name, shardOf[name]))
		}
	}
	if len(faults) > 0 {
		return errors.New(strings.Join(faults, "\n  "))
	}
	return nil
}

// openFile adds a file's tensors.
func (s *SafeTensors) openFile(path string) ([]Entry, error) {
	mapped, err := s.mapFile(path)
	if err != nil {
		return nil, err
	}
	entries, err := parseSafeTensors(mapped)
	at := len(mapped) // the data of all entries ends the file
	for _, e := range slices.Backward(entries) {
		at -= len(e.Data)
		s.entries[e.Name] = e
		s.places[e.Name] = place{s.files[len(s.files)-1], mapped, at}
	}
	return entries, err
}

func (s *SafeTensors) mapFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0) // a pipe must not block
	if err != nil {
		return nil, err
	}
	s.files = append(s.files, f)
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() == 0) {
		err = fmt.Errorf("cannot map a file of mode %s and %d bytes", info.Mode(), info.Size())
	}
	if err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err == nil {
		s.mapped = append(s.mapped, m)
	}
	return m, err
}

// tensorHeader is a tensor's object in the header; offsets count from the header's end.
type tensorHeader struct {
	name    string
	DType   string `json:"dtype"`
	Shape   []int  `json:"shape"`
	Offsets []int  `json:"data_offsets"` // begin, end
}

// entry wants the tensor to begin at the given byte of data, where the one before ended.
func (h tensorHeader) entry(data []byte, at int) (e Entry, err error) {
	dtype, known := safeTensorsDTypes[h.DType]
	e = Entry{Name: h.name, DType: dtype, Shape: h.Shape}
	size, err := e.size()
	switch begin, end := at, at+size; {
	case !known:
		err = fmt.Errorf("unsupported dtype %.20q, none of %v", h.DType, slices.Sorted(maps.Keys(safeTensorsDTypes)))
	case h.Shape == nil || len(h.Offsets) != 2:
		err = errors.New("shape or data_offsets (begin, end) missing")
	case err != nil:
	case h.Offsets[1]-h.Offsets[0] != size:
		err = fmt.Errorf("data_offsets %d do not hold the %d bytes of shape and dtype", h.Offsets, size)
	case h.Offsets[0] != begin:
		err = fmt.Errorf("begins at byte %d, but the one before ends at %d: overlap or hole", h.Offsets[0], begin)
	case size > len(data)-begin:
		err = fmt.Errorf("ends at byte %d of data, but there are %d: is the file cut off?", h.Offsets[1], len(data))
	default:
		e.Data = data[begin:end:end]
	}
	return e, err
}

// parseSafeTensors returns the tensors of a file in the order of their data.
func parseSafeTensors(file []byte) ([]Entry, error) {
	if len(file) < 8 || binary.LittleEndian.Uint64(file) > uint64(len(file)-8) {
		return nil, fmt.Errorf("the header is cut off: the file has only %d bytes", len(file))
	}
	length := binary.LittleEndian.Uint64(file)
	var headers []tensorHeader
	err := parseObject(file[8:8+length], func(name string, value *json.Decoder) error {
		if name == "__metadata__" {
			return value.Decode(&map[string]string{})
		}
		headers = append(headers, tensorHeader{name: name})
		return value.Decode(&headers[len(headers)-1])
	})
	if err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	slices.SortStableFunc(headers, func(a, b tensorHeader) int { return slices.Compare(a.Offsets, b.Offsets) })

	data, at := file[8+length:], 0
	entries := make([]Entry, 0, len(headers))
	for _, h := range headers {
		e, err := h.entry(data, at)
		if err != nil {
			return nil, fmt.Errorf("tensor %.200q: %w", h.name, err)
		}
		entries, at = append(entries, e), h.Offsets[1]
	}
	if at != len(data) {
		return nil, fmt.Errorf("the last %d bytes belong to no tensor", len(data)-at)
	}
	return entries, nil
}

// parseIndex returns the file name of each tensor's shard.
func parseIndex(index []byte) (map[string]string, error) {
	shardOf := map[string]string{}
	err := parseObject(index, func(key string, value *json.Decoder) error {
		var text json.RawMessage
		if err := value.Decode(&text); err != nil || key != "weight_map" {
			return err
		}
		return parseObject(text, func(name string, value *json.Decoder) error {
			var shard string
			err := value.Decode(&shard)
			if err == nil && (!filepath.IsLocal(shard) || filepath.Base(shard) != shard) {
				err = fmt.Errorf("shard %.200q is not the name of a file beside the index", shard)
			}
			shardOf[name] = shard
			return err
		})
	})
	if err == nil && len(shardOf) == 0 {
		err = errors.New("weight_map is missing or empty")
	}
	return shardOf, err
}

// parseObject reads text as one JSON object, in which visit decodes the value of each name. Of two equal names
// json.Unmarshal would silently take the last.
func parseObject(text []byte, visit func(name string, value *json.Decoder) error) error {
	if len(text) > maxSafeTensorsHeader || !utf8.Valid(text) {
		return fmt.Errorf("%d bytes of JSON are over the limit of %d or not UTF-8", len(text), maxSafeTensorsHeader)
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return errors.Join(errors.New("not a JSON object"), err)
	}
	seen := map[string]bool{}
	for dec.More() {
		token, err := dec.Token()
		name, _ := token.(string)
		if err == nil && seen[name] {
			err = errors.New("duplicate name")
		}
		if err == nil {
			seen[name], err = true, visit(name, dec)
		}
		if err != nil {
			return fmt.Errorf("%.200q: %.500v", name, err) // the decoder may quote megabytes
		}
	}
	if _, err := dec.Token(); err != nil {
		return fmt.Errorf("end of the JSON object: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("more text after the JSON object")
	}
	return nil
}
