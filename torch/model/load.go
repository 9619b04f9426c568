package model

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/molt-go/molt/torch"
)

// Load reads a model into s, in dtype d: path is a Hugging Face folder (config.json and safetensors) or a .gguf file.
// A missing, extra or misshapen tensor is an error that lists all of them. A million weights or so are converted at a time, and the
// file's pages are let go behind them.
func Load(s *torch.Scope, path string, d torch.DType) (*Model, error) {
	w, err := open(path)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	m := New(s, w.Config, d)
	if err := m.fill(s, w); err != nil {
		return nil, fmt.Errorf("model %s: %w", path, err)
	}
	return m, nil
}

// Read is Load into the weights that m has, whose shapes must be those of the files; otherwise it reads nothing.
func (m *Model) Read(s *torch.Scope, path string) error {
	w, err := open(path)
	if err != nil {
		return err
	}
	defer w.Close()
	if err := m.fill(s, w); err != nil {
		return fmt.Errorf("model %s: %w", path, err)
	}
	m.filled = false // a later CopyFrom takes the Frozen ones too
	return nil
}

// PeekConfig reads the shape of the model at path without its weights, and all ids that end its texts.
func PeekConfig(path string) (Config, error) {
	w, err := open(path)
	if err != nil {
		return Config{}, err
	}
	w.EOS = slices.Concat(w.EOS, w.ends)
	return w.Config, w.Close()
}

func open(path string) (*weights, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("model: %w; the model must be a folder with config.json or a .gguf file", err)
	}
	read := openGGUF
	if info.IsDir() {
		read = openFolder
	}
	w, err := read(path)
	if err == nil {
		if err = w.room(); err == nil {
			return w, nil
		}
		err = fmt.Errorf("model %s: %w", path, errors.Join(err, w.Close()))
	}
	return nil, err
}

// weights are the tensors of an open file.
type weights struct {
	Config
	io.Closer
	ends   idList // by generation_config.json
	shapes map[string][]int
	find   func(Param) stored
	// read fills rows of p with the numbers of a tensor from number at on.
	read func(p Param, rows torch.Tensor, name string, at int) error
}

// stored tells where a file has a parameter: in the tensor of this name and shape, from number at on.
type stored struct {
	name  string
	shape []int
	at    int
}

// room refuses a config that the file cannot hold by far, before its parameters are made and missed one by one.
func (w *weights) room() error {
	room := len(w.shapes)
	for _, shape := range w.shapes {
		if len(shape) == 3 { // experts together
			room += shape[0]
		}
	}
	sparse := w.MoE.NumSparse(len(w.MoE.Layers))
	if w.Layers > room || sparse*w.MoE.Experts > room {
		return fmt.Errorf("a config of %d layers, %d with %d experts, for %d tensors", w.Layers, sparse, w.MoE.Experts, len(w.shapes))
	}
	return nil
}

// chunk numbers are converted at a time, or as many as a head has where those are more.
const chunk = 1 << 20

func (m *Model) fill(s *torch.Scope, w *weights) error {
	want := map[string][]int{}
	for _, p := range m.params {
		from := w.find(p)
		want[from.name] = from.shape // several experts may be in one
	}
	if err := fit(want, w.shapes); err != nil {
		return err
	}
	for _, p := range m.params {
		from, columns := w.find(p), p.Tensor.Numel()/p.rows
		step := max(1, chunk/columns/m.HeadDim) * m.HeadDim
		for first := 0; first < p.rows; first += step {
			var err error
			s.Block(func(s *torch.Scope) torch.Tensor {
				rows := s.Narrow(p.Tensor, 0, first, min(step, p.rows-first))
				err = w.read(p, rows, from.name, from.at+first*columns)
				return torch.Tensor{}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// plainNames makes one name of those that a weight has had in Hugging Face folders: transformers 4 and 5 root language models and vision
// towers differently, and Mixtral calls its experts' weights by numbers.
var plainNames = strings.NewReplacer("model.language_model.", "model.", "model.visual.", "visual.",
	".block_sparse_moe.", ".mlp.", ".w1.", ".gate_proj.", ".w2.", ".down_proj.", ".w3.", ".up_proj.")

// expert matches the plain name of an expert's weight: its layer's experts, its number, and which weight it is.
var expert = regexp.MustCompile(`^(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight$`)

// together is where one tensor holds the weight p of every expert of its layer: parts weights of each expert, of which p is behind before.
func (c Config) together(p Param, number, name string, before, parts int) stored {
	rows, columns := p.Tensor.Dim(0), p.Tensor.Dim(1)
	e, _ := strconv.Atoi(number) // digits, of a name that New made
	return stored{name, []int{c.MoE.Experts, parts * rows, columns}, (e*parts + before) * rows * columns}
}

func openFolder(dir string) (*weights, error) {
	c, err := ReadConfig(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	var more struct {
		EOS idList `json:"eos_token_id"`
	}
	if err := readJSON(filepath.Join(dir, "generation_config.json"), &more); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("model %s: generation_config.json: %w", dir, err)
	}
	f, err := torch.OpenSafeTensors(dir)
	if err != nil {
		return nil, err
	}
	w := &weights{Config: c, Closer: f, ends: more.EOS, shapes: map[string][]int{}}
	names := map[string]string{}
	for _, name := range f.Names() {
		if e, _ := f.Lookup(name); !strings.HasSuffix(name, "rotary_emb.inv_freq") {
			w.shapes[name], names[plainNames.Replace(name)] = e.Shape, name
		}
	}
	if head, ok := f.Lookup("lm_head.weight"); ok && c.Tied {
		if embed, _ := f.Lookup(names["model.embed_tokens.weight"]); head.DType != embed.DType || !bytes.Equal(head.Data, embed.Data) {
			err := fmt.Errorf("model %s: lm_head.weight is not the embedding, but tie_word_embeddings is set", dir)
			return nil, errors.Join(err, f.Close())
		}
		delete(w.shapes, "lm_head.weight")
	}
	w.find = func(p Param) stored {
		of := plainNames.Replace(p.Name)
		if e := expert.FindStringSubmatch(of); e != nil && names[of] == "" { // perhaps as transformers 5 has experts in memory
			down := names[e[1]+".down_proj"]
			both := strings.TrimSuffix(down, "down_proj") + "gate_up_proj"
			switch {
			case down == "":
			case e[3] == "gate":
				return c.together(p, e[2], both, 0, 2)
			case e[3] == "up":
				return c.together(p, e[2], both, 1, 2)
			default:
				return c.together(p, e[2], down, 0, 1)
			}
		}
		return stored{cmp.Or(names[of], p.Name), p.Tensor.Shape(), 0}
	}
	w.read = func(_ Param, rows torch.Tensor, name string, at int) error { return f.Read(rows, name, at) }
	return w, nil
}

// fit lists in one error every tensor that want or given lacks, or that they have in different shapes.
func fit(want, given map[string][]int) error {
	var faults []string
	for name, shape := range want {
		if got, ok := given[name]; !ok {
			faults = append(faults, name+" is missing")
		} else if !slices.Equal(shape, got) {
			faults = append(faults, fmt.Sprintf("%s must be %v, not %v", name, shape, got))
		}
	}
	for name := range given {
		if _, ok := want[name]; !ok {
			faults = append(faults, name+" is not a parameter of this model")
		}
	}
	if len(faults) == 0 {
		return nil
	}
	slices.Sort(faults)
	return fmt.Errorf("%d tensors do not fit:\n  %s", len(faults), strings.Join(faults, "\n  "))
}
