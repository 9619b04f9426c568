package model_test

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/molt-go/molt/torch"
	. "github.com/molt-go/molt/torch/model"
)

// entries are the tensors of a folder's weights, by name.
func entries(t *testing.T, dir string) []torch.Entry {
	t.Helper()
	f, err := torch.OpenSafeTensors(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	var all []torch.Entry
	for _, name := range f.Names() {
		e, _ := f.Lookup(name)
		all = append(all, e)
	}
	return all
}

// folderOf is a new folder with these weights, in shards, and the config of another.
func folderOf(t *testing.T, weights []torch.Entry, from string) string {
	t.Helper()
	dir := t.TempDir()
	config, err := os.ReadFile(filepath.Join(from, "config.json"))
	err = errors.Join(err, os.WriteFile(filepath.Join(dir, "config.json"), config, 0o644), torch.WriteShards(dir, weights, nil, 100_000))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

var ofExpert = regexp.MustCompile(`^(.*)\.(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)\.weight$`)

// together is how transformers 5 holds experts and writes them when asked to: gates and ups of a layer in one tensor, downs in another.
func together(weights []torch.Entry) (out []torch.Entry) {
	part := map[string]string{"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
	experts := map[string]torch.Entry{}
	for _, e := range weights {
		if m := ofExpert.FindStringSubmatch(e.Name); m == nil {
			out = append(out, e)
		} else {
			experts[m[1]+".mlp.experts."+m[2]+"."+cmp.Or(part[m[3]], m[3])] = e
		}
	}
	for name, first := range experts {
		layer, ok := strings.CutSuffix(name, ".0.down_proj")
		if !ok {
			continue
		}
		down := torch.Entry{Name: layer + ".down_proj", DType: first.DType, Shape: append([]int{0}, first.Shape...)}
		both := torch.Entry{Name: layer + ".gate_up_proj", DType: first.DType, Shape: []int{0, 2 * first.Shape[1], first.Shape[0]}}
		for {
			at := layer + "." + strconv.Itoa(down.Shape[0]) + "."
			if _, ok := experts[at+"down_proj"]; !ok {
				break
			}
			down.Data = append(down.Data, experts[at+"down_proj"].Data...)
			both.Data = append(append(both.Data, experts[at+"gate_proj"].Data...), experts[at+"up_proj"].Data...)
			down.Shape[0]++
			both.Shape[0]++
		}
		out = append(out, down, both)
	}
	return out
}

// otherRoot turns a name of transformers 4 into one of 5, and the other way about.
func otherRoot(name string) string {
	for _, roots := range [][2]string{{"model.visual.", "visual."}, {"model.language_model.", "model."}, {"visual.", "model.visual."},
		{"model.", "model.language_model."}} {
		if rest, ok := strings.CutPrefix(name, roots[0]); ok {
			return roots[1] + rest
		}
	}
	return name
}

func TestEitherNamingShardsAndAStoredTiedHeadLoadAlike(t *testing.T) {
	eachModel(t, torch.Float32, func(t *testing.T, s *torch.Scope, f folder, m *Model) {
		weights := entries(t, f.path)
		same(t, m, load(t, s, folderOf(t, weights, f.path), torch.Float32))
		renamed := together(weights)
		for i, e := range renamed {
			renamed[i].Name = otherRoot(strings.Replace(e.Name, ".block_sparse_moe.gate.", ".mlp.gate.", 1))
			if m.Tied && strings.HasSuffix(e.Name, "embed_tokens.weight") {
				e.Name = "lm_head.weight"
				renamed = append(renamed, e)
			}
		}
		same(t, m, load(t, s, folderOf(t, renamed, f.path), torch.Float32))
		if m.Tied {
			last := &renamed[len(renamed)-1]
			last.Data = bytes.Clone(last.Data)
			last.Data[7]++
			_, err := Load(s, folderOf(t, renamed, f.path), torch.Float32)
			if err == nil || !strings.Contains(err.Error(), "is not the embedding") {
				t.Error("a tied head of its own:", err)
			}
		}
	})
}

func TestEveryTensorThatDoesNotFitIsInOneError(t *testing.T) {
	check := func(path string, want ...string) {
		t.Helper()
		do(t, func(s *torch.Scope) {
			start := time.Now()
			_, err := Load(s, path, torch.Float32)
			for _, w := range append(want, fmt.Sprintf("%d tensors do not fit", len(want))) {
				if err == nil || !strings.Contains(err.Error(), w) {
					t.Errorf("%v\ndoes not say %q", err, w)
				}
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Error("took", d)
			}
		})
	}
	path := llama(t)
	weights := entries(t, path)
	var want []string
	for i, e := range weights {
		switch {
		case strings.HasSuffix(e.Name, "0.mlp.up_proj.weight"):
			weights[i].Shape = []int{e.Shape[1], e.Shape[0]}
			want = append(want, fmt.Sprintf("%s must be %v, not %v", e.Name, e.Shape, weights[i].Shape))
		case strings.HasSuffix(e.Name, "1.self_attn.q_proj.weight"):
			weights[i].Name = "stranger"
			want = append(want, e.Name+" is missing", "stranger is not a parameter of this model")
		}
	}
	check(folderOf(t, weights, path), want...)

	dir := t.TempDir()
	python(t, "write_gguf.py", dir, path)
	file := filepath.Join(dir, filepath.Base(path), "F32.gguf")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	data = bytes.Replace(data, []byte("blk.0.ffn_norm.weight\x01\x00\x00\x00\x40"), []byte("blk.0.ffn_norm.weight\x01\x00\x00\x00\x20"), 1)
	data = bytes.Replace(data, []byte("blk.1.attn_q.weight"), []byte("blk.1.stranger_q..."), 1)
	if err := os.WriteFile(file, data, 0o644); err != nil {
		t.Fatal(err)
	}
	check(file, "blk.0.ffn_norm.weight must be [64], not [32]", "blk.1.attn_q.weight is missing", "blk.1.stranger_q... is not a parameter")
}

func TestAConfigFarLargerThanItsFileIsRefusedAtOnce(t *testing.T) {
	for _, f := range models(t) {
		var config map[string]any
		readJSON(t, filepath.Join(f.path, "config.json"), &config)
		shape := config
		if text, ok := config["text_config"].(map[string]any); ok {
			shape = text
		}
		delete(shape, "layer_types")
		shape["num_hidden_layers"] = 4096
		if _, ok := shape["num_local_experts"]; ok {
			shape["num_local_experts"] = 1 << 15
		}
		text, err := json.Marshal(config)
		dir := folderOf(t, entries(t, f.path), f.path)
		if err = errors.Join(err, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)); err != nil {
			t.Fatal(err)
		}
		do(t, func(s *torch.Scope) {
			start := time.Now()
			if _, err := Load(s, dir, torch.Float32); err == nil || !strings.Contains(err.Error(), "a config of 4096 layers") {
				t.Errorf("%s: %v", f.path, err)
			}
			if d := time.Since(start); d > 5*time.Second {
				t.Errorf("%s took %v", f.path, d)
			}
		})
	}
}

// memory is a figure of /proc/self/status in bytes.
func memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(status[bytes.Index(status, []byte(name+":")):]))
	n, err := strconv.Atoi(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	return n << 10
}

func TestLoadingHoldsTheWeightsOnceAndSavingNoCopy(t *testing.T) {
	paths := []string{smollm(t), t.TempDir()}
	for _, path := range paths {
		do(t, func(s *torch.Scope) {
			peak := func(what string, limit int, f func()) {
				t.Helper()
				if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // the peak begins anew
					t.Fatal(err)
				}
				before, start := memory(t, "VmRSS"), time.Now()
				f()
				took, grown := time.Since(start), memory(t, "VmHWM")-before
				t.Logf("%s %s: %v, %d MB", what, path, took, grown>>20)
				if grown > limit {
					t.Errorf("%s %s took %d MB of memory, over %d", what, path, grown>>20, limit>>20)
				}
			}
			var m *Model
			const size, slack = 134515008 * 4, 64 << 20
			peak("loading", size+slack, func() { m = load(t, s, path, torch.Float32) })
			if path != paths[1] {
				peak("saving", size/2, func() {
					if err := m.Save(paths[1]); err != nil {
						t.Fatal(err)
					}
				})
			}
		})
	}
}
