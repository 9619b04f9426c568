package torch

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var sameBytes = cmp.Comparer(bytes.Equal)

// referenceFiles returns every file of that name under the reference models.
func referenceFiles(t *testing.T, name string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", "testdata", "reference", "models", "*", name))
	if err != nil || len(files) == 0 {
		t.Fatalf("no %s among the reference models (%v)", name, err)
	}
	return files
}

func openAll(t *testing.T, path string) (*SafeTensors, []Entry) {
	t.Helper()
	s, err := OpenSafeTensors(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	var entries []Entry
	for _, name := range s.Names() {
		e, _ := s.Lookup(name)
		entries = append(entries, e)
	}
	return s, entries
}

func TestSafeTensorsNamesAndShapesOfReferenceModels(t *testing.T) {
	for _, file := range referenceFiles(t, "model.safetensors") {
		var want struct{ Tensors map[string][]int }
		text, err := os.ReadFile(filepath.Join(filepath.Dir(file), "ref.json"))
		if err = errors.Join(err, json.Unmarshal(text, &want)); err != nil {
			t.Fatal(err)
		}
		got := map[string][]int{}
		_, entries := openAll(t, filepath.Dir(file))
		for _, e := range entries {
			got[e.Name] = e.Shape
			if e.DType != Float32 {
				t.Errorf("%s: %s is %v", file, e.Name, e.DType)
			}
		}
		if diff := cmp.Diff(want.Tensors, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", file, diff)
		}
	}
}

// The reference writer sorts by falling size of the dtype, then by name.
func TestSafeTensorsRewriteIsByteIdenticalToReferenceWriter(t *testing.T) {
	for name, metadata := range map[string]map[string]string{"model.safetensors": {"format": "pt"}, "ref.safetensors": nil} {
		for _, file := range referenceFiles(t, name) {
			_, entries := openAll(t, file)
			slices.SortStableFunc(entries, func(a, b Entry) int { return b.DType.Size() - a.DType.Size() })
			path := filepath.Join(t.TempDir(), "copy.safetensors")
			if err := WriteSafeTensors(path, entries, metadata); err != nil {
				t.Fatal(err)
			}
			want, err1 := os.ReadFile(file)
			got, err2 := os.ReadFile(path)
			if err := errors.Join(err1, err2); err != nil || !bytes.Equal(want, got) {
				t.Errorf("%s: %d bytes rewritten as %d, or other ones (%v)", file, len(want), len(got), err)
			}
		}
	}
}

func smallEntries() []Entry {
	return []Entry{
		{Name: "scalar", DType: Float64, Shape: []int{}, Data: []byte("8 bytes.")},
		{Name: "empty", DType: Float32, Shape: []int{3, 0}, Data: []byte{}},
		{Name: "größe/<&>\"\n", DType: BFloat16, Shape: []int{2, 1}, Data: []byte("bf16")},
		{Name: "flags", DType: Bool, Shape: []int{3}, Data: []byte{1, 0, 1}},
	}
}

func TestSafeTensorsRoundTripKeepsScalarsEmptyOnesAndOddNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.safetensors")
	want := smallEntries()
	if err := WriteSafeTensors(path, want, map[string]string{"a": "ü", "": "\x00"}); err != nil {
		t.Fatal(err)
	}
	s, got := openAll(t, path)
	slices.SortFunc(want, func(a, b Entry) int { return strings.Compare(a.Name, b.Name) })
	if diff := cmp.Diff(want, got, sameBytes); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, ok := s.Lookup("absent"); ok {
		t.Error("Lookup found a tensor that is not there")
	}
	file, err := os.ReadFile(path)
	if n := binary.LittleEndian.Uint64(file); err != nil || n%8 != 0 {
		t.Errorf("header of %d bytes is not padded to 8 (%v)", n, err)
	}
	if err := s.Close(); err != nil || len(s.Names()) != 0 { // and once more at the end of the test
		t.Errorf("names after Close: %q, %v", s.Names(), err)
	}
}

func TestWriteSafeTensorsAsksForDataWhenItsTurnComes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.safetensors")
	calls := ""
	entry := func(name string) Entry {
		return Entry{Name: name, DType: Int16, Shape: []int{2}, Write: func(w io.Writer) error {
			calls += name
			_, err := io.WriteString(w, calls)
			return err
		}}
	}
	entries := []Entry{{Name: "data", DType: Int16, Shape: []int{1}, Data: []byte("zz")}, entry("beta"), {Name: "a", Shape: []int{0}}}
	if err := WriteSafeTensors(path, entries, nil); err != nil {
		t.Fatal(err)
	}
	_, got := openAll(t, path)
	if got := string(got[1].Data) + string(got[2].Data); got != "betazz" || calls != "beta" {
		t.Errorf("data %q, calls %q", got, calls)
	}
}

func TestWriteSafeTensorsFailureLeavesTheOldFileAndNoOther(t *testing.T) {
	broken := errors.New("no more data")
	good := Entry{Name: "a", DType: Uint8, Shape: []int{1}, Data: []byte{1}}
	for name, test := range map[string]struct {
		entry Entry
		want  string
	}{
		"short data":    {Entry{Name: "b", DType: Float32, Shape: []int{2}, Data: make([]byte, 7)}, `"b": 7 bytes given`},
		"long data":     {Entry{Name: "b", DType: Float32, Shape: []int{2}, Data: make([]byte, 9)}, `"b": 9 bytes given`},
		"failing write": {Entry{Name: "b", Shape: []int{}, Write: func(io.Writer) error { return broken }}, "no more data"},
		"duplicate":     {good, "duplicate"},
		"reserved name": {Entry{Name: "__metadata__", Shape: []int{0}}, "reserved"},
		"invalid UTF-8": {Entry{Name: "\xff", Shape: []int{0}}, "UTF-8"},
		"dtype":         {Entry{Name: "b", DType: 9, Shape: []int{0}}, "dtype"},
		"negative":      {Entry{Name: "b", Shape: []int{-1}}, "negative"},
		"overflow":      {Entry{Name: "b", DType: Int64, Shape: []int{1 << 31, 1 << 31}}, "too large"},
		"long header":   {Entry{Name: strings.Repeat("b", maxSafeTensorsHeader), Shape: []int{0}}, "limit"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			path := filepath.Join(folder, "t.safetensors")
			if err := WriteSafeTensors(path, []Entry{good}, nil); err != nil {
				t.Fatal(err)
			}
			_, old := openAll(t, path)
			err := WriteSafeTensors(path, []Entry{good, test.entry}, nil)
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v does not name %q and the file", err, test.want)
			}
			_, after := openAll(t, path)
			if diff := cmp.Diff(old, after, sameBytes); diff != "" {
				t.Errorf("old file changed (-want +got):\n%s", diff)
			}
			if files, _ := os.ReadDir(folder); len(files) != 1 {
				t.Errorf("left behind: %v", files)
			}
		})
	}
}

func TestWriteSafeTensorsOverAMappedFileKeepsTheMapping(t *testing.T) {
	path := filepath.Join(t.TempDir(), "t.safetensors")
	var opened []Entry
	for _, data := range []string{"the old one", "new"} {
		if err := WriteSafeTensors(path, []Entry{{Name: "a", Shape: []int{len(data)}, Data: []byte(data)}}, nil); err != nil {
			t.Fatal(err)
		}
		_, entries := openAll(t, path)
		opened = append(opened, entries...)
	}
	if string(opened[0].Data) != "the old one" || string(opened[1].Data) != "new" {
		t.Errorf("mapped %q, reopened %q", opened[0].Data, opened[1].Data)
	}
}

// safeTensorsFile is a file with the given header and data, the length as it should be.
func safeTensorsFile(header string, data int) []byte {
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(file, header...), make([]byte, data)...)
}

func TestHostileSafeTensorsIsAnErrorNamingFileAndFault(t *testing.T) {
	a := func(rest string) string { return `{"a":` + rest + `}` }
	tensor := func(dtype, shape, offsets string) string {
		return fmt.Sprintf(`{"dtype":%q,"shape":%s,"data_offsets":%s}`, dtype, shape, offsets)
	}
	byte1 := tensor("U8", "[1]", "[0,1]")
	many := strings.Builder{}
	for i := 0; many.Len() < maxSafeTensorsHeader-100; i++ {
		fmt.Fprintf(&many, `,"%d":%s`, i, tensor("U8", "[0]", "[0,0]"))
	}
	for name, test := range map[string]struct {
		file []byte
		want string
	}{
		"empty file":            {nil, "0 bytes"},
		"no header":             {[]byte("1234567"), "cut off"},
		"header cut off":        {safeTensorsFile(a(byte1), 0)[:20], "cut off"},
		"header of 2^64-1":      {bytes.Repeat([]byte{0xff}, 16), "cut off"},
		"header over the limit": {safeTensorsFile(strings.Repeat(" ", maxSafeTensorsHeader+1), 0), "limit"},
		"not an object":         {safeTensorsFile(`[]`, 0), "not a JSON object"},
		"not closed":            {safeTensorsFile(`{"a":`+byte1, 1), "EOF"},
		"comma at the end":      {safeTensorsFile(`{"a":`+byte1+`,}`, 1), "invalid character"},
		"text after it":         {safeTensorsFile(a(byte1)+`{}`, 1), "more text"},
		"not UTF-8":             {safeTensorsFile("{\"\xff\":"+byte1+"}", 1), "UTF-8"},
		"name twice":            {safeTensorsFile(`{"a":`+byte1+`,"\u0061":`+byte1+`}`, 1), `"a": duplicate`},
		"metadata of numbers":   {safeTensorsFile(`{"__metadata__":{"a":1}}`, 0), `"__metadata__"`},
		"null tensor":           {safeTensorsFile(a(`null`), 0), "unsupported dtype"},
		"deep nesting":          {safeTensorsFile(`{"a":`+strings.Repeat("[", 1<<20), 0), "depth"},
		"unsupported dtype":     {safeTensorsFile(a(tensor("F8_E4M3", "[1]", "[0,1]")), 1), `tensor "a": unsupported dtype "F8_E4M3"`},
		"no shape":              {safeTensorsFile(a(`{"dtype":"U8","data_offsets":[0,1]}`), 1), "missing"},
		"no offsets":            {safeTensorsFile(a(`{"dtype":"U8","shape":[1]}`), 1), "missing"},
		"one offset":            {safeTensorsFile(a(tensor("U8", "[1]", "[1]")), 1), "missing"},
		"negative dimension":    {safeTensorsFile(a(tensor("U8", "[-1,-1]", "[0,1]")), 1), "negative"},
		"product overflows":     {safeTensorsFile(a(tensor("F32", "[4294967296,4294967296]", "[0,0]")), 0), "too large"},
		"overflow beside 0":     {safeTensorsFile(a(tensor("F32", "[0,4294967296,4294967296]", "[0,0]")), 0), "too large"},
		"65 dimensions":         {safeTensorsFile(a(tensor("U8", "[1"+strings.Repeat(",1", 64)+"]", "[0,1]")), 1), "more than 64"},
		"shape needs more":      {safeTensorsFile(a(tensor("F32", "[2]", "[0,4]")), 4), "need"},
		"reversed offsets":      {safeTensorsFile(a(tensor("U8", "[1]", "[1,0]")), 1), "data_offsets"},
		"negative offset":       {safeTensorsFile(a(tensor("U8", "[1]", "[-1,0]")), 0), "begins at byte -1"},
		"offsets wrap around":   {safeTensorsFile(a(tensor("U8", "[0]", "[9223372036854775807,9223372036854775807]")), 1), "begins at"},
		"overlap":               {safeTensorsFile(`{"a":`+byte1+`,"b":`+byte1+`}`, 2), `tensor "b": begins at byte 0`},
		"hole at the start":     {safeTensorsFile(a(tensor("U8", "[1]", "[1,2]")), 2), "hole"},
		"hole between":          {safeTensorsFile(`{"a":`+byte1+`,"b":`+tensor("U8", "[1]", "[2,3]")+`}`, 3), `tensor "b": begins at byte 2`},
		"data cut off":          {safeTensorsFile(a(tensor("F64", "[2]", "[0,16]")), 15), "cut off"},
		"data left over":        {safeTensorsFile(a(byte1), 3), "last 2 bytes"},
		"300,000 empty tensors": {safeTensorsFile(`{"a":`+byte1+many.String()+`}`, 0), "there are 0"},
		"one long number":       {safeTensorsFile(a(tensor("U8", "["+strings.Repeat("1", 1<<20)+"]", "[0,1]")), 1), "cannot unmarshal number 1"},
		"one long name":         {safeTensorsFile(`{"`+strings.Repeat("a", maxSafeTensorsHeader-50)+`":{}}`, 0), "unsupported dtype"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "hostile.safetensors")
			if err := os.WriteFile(path, test.file, 0o600); err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, err := OpenSafeTensors(path)
			took, message := time.Since(start), fmt.Sprint(err)
			if !strings.Contains(message, path) || !strings.Contains(message, test.want) || len(message) > 1000 {
				t.Errorf("error %.1000s\ndoes not name %q and the file in under 1000 bytes", message, test.want)
			}
			if took > 5*time.Minute { // half a second, a few under the detectors; quadratic work would take hours
				t.Errorf("took %v", took)
			}
		})
	}
}

func TestTruncatedReferenceModelIsAnErrorAtEveryLength(t *testing.T) {
	file, err := os.ReadFile(referenceFiles(t, "model.safetensors")[0])
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n < len(file); n += 1 + n/64 {
		if _, err := parseSafeTensors(file[:n:n]); err == nil {
			t.Errorf("the first %d of %d bytes were accepted", n, len(file))
		}
	}
}

func TestOpenSafeTensorsOfWhatIsNoCheckpointIsAnError(t *testing.T) {
	folder := t.TempDir()
	pipe := filepath.Join(folder, "pipe.safetensors")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(folder, "absent.safetensors"): "no such file",
		folder: "neither model.safetensors nor model.safetensors.index.json",
		pipe:   "cannot map",
	} {
		if _, err := OpenSafeTensors(path); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("error %v does not name %q and %s", err, want, path)
		}
	}
}

func TestShardsHoldWhatTheSingleFileHoldsAndEachTakesTheOthersPlace(t *testing.T) {
	for i, file := range referenceFiles(t, "model.safetensors") {
		folder := t.TempDir()
		_, want := openAll(t, file)
		total, largest := 0, 0
		for _, e := range want {
			total, largest = total+len(e.Data), max(largest, len(e.Data))
		}
		limits := []int{total, total / 3, total}
		if i == 0 {
			limits = append(limits, 1) // a shard a tensor
		}
		for _, limit := range limits {
			if err := WriteShards(folder, want, map[string]string{"format": "pt"}, limit); err != nil {
				t.Fatal(err)
			}
			_, got := openAll(t, folder)
			if diff := cmp.Diff(want, got, sameBytes); diff != "" {
				t.Errorf("%s (-single +sharded):\n%s", file, diff)
			}
			var index struct {
				Metadata  map[string]int
				WeightMap map[string]string `json:"weight_map"`
			}
			text, err := os.ReadFile(filepath.Join(folder, "model.safetensors.index.json"))
			if limit == total {
				if !errors.Is(err, os.ErrNotExist) {
					t.Error("an index beside the single file:", err)
				}
				continue
			}
			if err = errors.Join(err, json.Unmarshal(text, &index)); err != nil || index.Metadata["total_size"] != total {
				t.Errorf("index: %v, %v, want %d bytes", err, index.Metadata, total)
			}
			for _, shard := range index.WeightMap {
				if info, err := os.Stat(filepath.Join(folder, shard)); err != nil || info.Size() > int64(max(limit, largest)+1<<16) {
					t.Errorf("shard %s of at most %d bytes: %v, %v", shard, limit, info, err)
				}
			}
			if n := len(slices.Compact(slices.Sorted(maps.Values(index.WeightMap)))); limit == 1 && n != len(want) || limit > 1 && n < 3 {
				t.Errorf("%d shards of at most %d bytes", n, limit)
			}
		}
	}
}

func TestBrokenSafeTensorsIndexIsAnErrorNamingFileAndFault(t *testing.T) {
	for index, want := range map[string]string{
		``:                                "cannot map",
		`[]`:                              "not a JSON object",
		`{}`:                              "weight_map is missing",
		`{"weight_map":{}}`:               "weight_map is missing",
		`{"weight_map":{"a":"gone"}}`:     `shard "gone"`,
		`{"weight_map":{"a":"../shard"}}`: "not the name of a file",
		`{"weight_map":{"a":"/shard"}}`:   "not the name of a file",
		`{"weight_map":{"a":""}}`:         "not the name of a file",
		`{"weight_map":{"a":"."}}`:        "shard",
		`{"weight_map":{"a":1}}`:          "weight_map",
		`{"weight_map":{"a":"shard"}}`:    `tensor "b" is in shard "shard", by the index in ""`,
		`{"weight_map":{"a":"shard","b":"shard","d":"shard","c":"shard"}}`: "its shard \"shard\"\n  tensor \"d\"",
		`{"weight_map":{"a":"shard","a":"shard"}}`:                         `"a": duplicate`,
		`{"weight_map":{"a":"index.json","b":"shard"}}`:                    `shard "index.json"`,
		`{"weight_map":{"a":"model.safetensors.index.json"}}`:              `shard "model.safetensors.index.json"`, // the index itself
		`{"weight_map":{"a":"circle"}}`:                                    "too many levels",
		`{"weight_map":` + strings.Repeat(`{"a":`, 1<<20):                  "depth",
		`{"metadata":` + strings.Repeat(`[`, 1<<20):                        "depth",
		`{"weight_map":{"` + strings.Repeat("a", maxSafeTensorsHeader):     "limit",
	} {
		folder := t.TempDir()
		path := filepath.Join(folder, "model.safetensors.index.json")
		shard := safeTensorsFile(`{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[],"data_offsets":[1,2]}}`, 2)
		err := errors.Join(os.WriteFile(path, []byte(index), 0o600), os.WriteFile(filepath.Join(folder, "shard"), shard, 0o600),
			os.Symlink("circle", filepath.Join(folder, "circle")))
		if err != nil {
			t.Fatal(err)
		}
		_, err = OpenSafeTensors(folder)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%.100s: error %.1000v does not name %q and the file", index, err, want)
		}
	}
}

// Whatever the bytes: an error, or tensors that cover the data exactly and survive a rewrite.
func FuzzSafeTensors(f *testing.F) {
	var small bytes.Buffer
	if err := encodeSafeTensors(&small, smallEntries(), map[string]string{"format": "pt"}); err != nil {
		f.Fatal(err)
	}
	f.Add(small.Bytes())
	f.Add(safeTensorsFile(`{"a":{"dtype":"F32","shape":[2,0],"data_offsets":[0,0]},"b":{"dtype":"I8","shape":[3],"data_offsets":[0,3]}}`, 3))
	f.Add(safeTensorsFile(`{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}`, 0))
	f.Fuzz(func(t *testing.T, file []byte) {
		entries, err := parseSafeTensors(file)
		if err != nil {
			return
		}
		total := 0
		for _, e := range entries {
			numel := 1
			for _, d := range e.Shape {
				numel *= d
			}
			if len(e.Data) != numel*e.DType.Size() {
				t.Fatalf("%q: %d bytes for %v of %v", e.Name, len(e.Data), e.Shape, e.DType)
			}
			total += len(e.Data)
		}
		if want := len(file) - 8 - int(binary.LittleEndian.Uint64(file)); total != want {
			t.Fatalf("tensors hold %d of %d bytes of data", total, want)
		}
		var again bytes.Buffer
		if err := encodeSafeTensors(&again, entries, nil); err != nil {
			t.Fatal(err)
		}
		reread, err := parseSafeTensors(again.Bytes())
		if diff := cmp.Diff(entries, reread, sameBytes); err != nil || diff != "" {
			t.Fatalf("reread: %v (-want +got):\n%s", err, diff)
		}
	})
}

// Whatever the bytes: an error, or names of files beside the index.
func FuzzSafeTensorsIndex(f *testing.F) {
	f.Add([]byte(`{"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"second"}}`))
	f.Add([]byte(`{"weight_map":{"a":"../x"}}`))
	f.Fuzz(func(t *testing.T, index []byte) {
		shardOf, err := parseIndex(index)
		if err == nil && len(shardOf) == 0 {
			t.Error("no shards and no error")
		}
		for name, shard := range shardOf {
			if err == nil && (strings.ContainsAny(shard, "/\x00") || shard == "" || shard == "..") {
				t.Errorf("%q may lie in %q", name, shard)
			}
		}
	})
}

func TestAWriteThatPanicsLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	func() {
		defer func() { _ = recover() }()
		e := Entry{Name: "a", DType: Uint8, Shape: []int{1}, Write: func(io.Writer) error { panic("no") }}
		err := WriteSafeTensors(filepath.Join(dir, "model.safetensors"), []Entry{e}, nil)
		t.Error("no panic:", err)
	}()
	if files, err := os.ReadDir(dir); err != nil || len(files) > 0 {
		t.Error(files, err)
	}
	err := WriteSafeTensors(filepath.Join(dir, "model.safetensors"), nil, map[string]string{"k": "\xff"})
	if err == nil || !strings.Contains(err.Error(), "not UTF-8") {
		t.Error(err)
	}
}
