package torch

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"
)

// EntryOf is t under a name, for WriteSafeTensors. t must live until then.
func EntryOf(name string, t Tensor) Entry {
	return Entry{Name: name, DType: t.DType(), Shape: t.Shape(), Write: func(w io.Writer) error {
		_, err := w.Write(Bytes(t))
		return err
	}}
}

// WriteSafeTensors writes the entries in the given order; dtypes of falling size keep all data aligned. The header is
// padded to 8 bytes; metadata may be nil. The file appears under its name when it is complete and on disk: an
// earlier one, mapped or not, stays whole until then. An entry that gives more or fewer bytes than its shape and
// dtype need is an error.
func WriteSafeTensors(path string, entries []Entry, metadata map[string]string) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".safetensors-*")
	if err != nil {
		return fmt.Errorf("safetensors %s: %w", path, err)
	}
	defer os.Remove(f.Name()) // after an error or a panic of an entry's Write; else the name is gone
	defer f.Close()
	err = encodeSafeTensors(f, entries, metadata)
	err = errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("safetensors %s: %w", path, err)
	}
	return nil
}

// WriteShards writes the entries as the weights of a Hugging Face folder: model.safetensors or, where their data is over limit bytes,
// shards of at most that, or of one tensor, and the index that [OpenSafeTensors] reads. Earlier weights of the folder are replaced.
func WriteShards(dir string, entries []Entry, metadata map[string]string, limit int) error {
	single, index := filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "model.safetensors.index.json")
	var firsts []int // of each shard
	total, filled := 0, 0
	for i, e := range entries {
		size, err := e.size()
		if err != nil {
			return fmt.Errorf("safetensors %s: tensor %.200q: %w", dir, e.Name, err)
		}
		if filled += size; i == 0 || filled > limit {
			firsts, filled = append(firsts, i), size
		}
		total += size
	}
	if len(firsts) < 2 {
		if err := WriteSafeTensors(single, entries, metadata); err != nil {
			return err
		}
		return os.RemoveAll(index)
	}
	shardOf := map[string]string{}
	for k, first := range firsts {
		shard := entries[first:append(firsts, len(entries))[k+1]]
		name := fmt.Sprintf("model-%05d-of-%05d.safetensors", k+1, len(firsts))
		for _, e := range shard {
			shardOf[e.Name] = name
		}
		if err := WriteSafeTensors(filepath.Join(dir, name), shard, metadata); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(map[string]any{"metadata": map[string]int{"total_size": total}, "weight_map": shardOf}, "", "  ")
	if err == nil {
		err = os.WriteFile(index, append(text, '\n'), 0o644)
	}
	if err != nil {
		return err
	}
	return os.RemoveAll(single)
}

func encodeSafeTensors(file io.Writer, entries []Entry, metadata map[string]string) error {
	header, err := encodeHeader(entries, metadata)
	if err != nil {
		return err
	}
	buffer := bufio.NewWriterSize(file, 1<<20)
	buffer.Write(header) // Flush returns the first error
	for _, e := range entries {
		size, _ := e.size() // checked with the header
		w := &countingWriter{w: buffer}
		if e.Write != nil {
			err = e.Write(w)
		} else {
			_, err = w.Write(e.Data)
		}
		if err == nil && w.n != size {
			err = fmt.Errorf("%d bytes given, but shape and dtype need %d", w.n, size)
		}
		if err != nil {
			return fmt.Errorf("tensor %.200q: %w", e.Name, err)
		}
	}
	return buffer.Flush()
}

type countingWriter struct {
	w io.Writer
	n int
}

func (w *countingWriter) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	w.n += n
	return n, err
}

// encodeHeader returns the header with its length in front.
func encodeHeader(entries []Entry, metadata map[string]string) ([]byte, error) {
	header := append(make([]byte, 8), '{')
	separator := ""
	field := func(name string, value any) {
		key, _ := json.Marshal(name) // neither can fail: strings and numbers only
		text, _ := json.Marshal(value)
		header = fmt.Appendf(header, "%s%s:%s", separator, key, text)
		separator = ","
	}
	for k, v := range metadata {
		if !utf8.ValidString(k + v) {
			return nil, fmt.Errorf("metadata %q: %q is not UTF-8", k, v)
		}
	}
	if metadata != nil {
		field("__metadata__", metadata)
	}
	seen, at := map[string]bool{"__metadata__": true}, 0
	for _, e := range entries {
		h := tensorHeader{Shape: append([]int{}, e.Shape...)}
		for name, dtype := range safeTensorsDTypes {
			if dtype == e.DType {
				h.DType = name
			}
		}
		size, err := e.size()
		switch {
		case err != nil:
		case h.DType == "":
			err = fmt.Errorf("the format has no dtype %s", e.DType)
		case seen[e.Name] || !utf8.ValidString(e.Name):
			err = errors.New("the name is a duplicate, reserved or not UTF-8")
		}
		if err != nil {
			return nil, fmt.Errorf("tensor %.200q: %w", e.Name, err)
		}
		h.Offsets = []int{at, at + size}
		field(e.Name, h)
		seen[e.Name], at = true, at+size
	}
	header = append(header, '}')
	header = append(header, "       "[:-len(header)&7]...)
	if len(header)-8 > maxSafeTensorsHeader {
		return nil, fmt.Errorf("a header of %d bytes is over the limit of %d", len(header)-8, maxSafeTensorsHeader)
	}
	binary.LittleEndian.PutUint64(header, uint64(len(header)-8))
	return header, nil
}
