package optim

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/torch"
)

// array is a nested list of numbers.
type array struct {
	data  []float32
	shape []int
}

func (a *array) UnmarshalJSON(text []byte) error {
	var rows []array
	if err := json.Unmarshal(text, &a.data); err == nil {
		a.shape = []int{len(a.data)}
		return nil
	}
	if err := json.Unmarshal(text, &rows); err != nil {
		return err
	}
	a.data = nil
	for _, row := range rows {
		a.data, a.shape = append(a.data, row.data...), append([]int{len(rows)}, row.shape...)
	}
	return nil
}

func (a array) tensor(s *torch.Scope) torch.Tensor { return torch.New(s, a.data, a.shape...) }

type arrays map[string]array

func (a arrays) named(s *torch.Scope) []Named {
	var list []Named
	for _, name := range slices.Sorted(maps.Keys(a)) {
		list = append(list, Named{name, a[name].tensor(s)})
	}
	return list
}

// equal allows the reference's tolerance for AdamW.
func (a arrays) equal(t *testing.T, what string, got []Named) {
	t.Helper()
	if len(a) == 0 || len(got) != len(a) {
		t.Errorf("%s: %d tensors, want %d", what, len(got), len(a))
	}
	for _, g := range got {
		if diff := cmp.Diff(a[g.Name].data, torch.Values[float32](g.Tensor), cmpopts.EquateApprox(1e-6, 1e-6)); diff != "" {
			t.Errorf("%s, %s: %s", what, g.Name, diff)
		}
	}
}

type args struct {
	LR          float64
	Betas       [2]float64
	Eps         float64
	WeightDecay float64 `json:"weight_decay"`
}

func (a args) config() AdamWConfig { return AdamWConfig{a.Betas[0], a.Betas[1], a.Eps, a.WeightDecay} }

type optimizerReference struct {
	Initial arrays             `json:"initial_params"`
	Grads   map[string][]array `json:"grads_20_steps"`
	Results map[string]struct {
		Args   args
		Note   string
		Clip   float64
		Params map[string]arrays           `json:"params_after_step"`
		State  map[string]map[string]array `json:"final_state"`
		Norms  []float64                   `json:"grad_norm_before_clip"`
		LRs    []float64                   `json:"lr_used"`
	}
	Quadratic struct {
		A, B, X0 array
		AdamW    args
		Loss     []float64 `json:"loss_before_step"`
		X        []array   `json:"x_after_step"`
	}
	Clipping []struct {
		Name    string
		Max     float64 `json:"max_norm"`
		Grads   arrays
		Norm    float64 `json:"total_norm"`
		Clipped arrays
	}
}

func readOptimizers(t *testing.T) optimizerReference {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "testdata", "reference", "optimizers.json"))
	if err != nil {
		t.Fatal(err)
	}
	var ref optimizerReference
	if err := json.Unmarshal(text, &ref); err != nil {
		t.Fatal(err)
	}
	if len(ref.Results) == 0 || len(ref.Quadratic.X) == 0 || len(ref.Clipping) == 0 {
		t.Fatal("the reference has an empty list of cases")
	}
	return ref
}
