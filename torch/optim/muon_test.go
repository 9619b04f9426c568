package optim

import (
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/molt-go/molt/torch"
)

// dionNote tells how dion's cases update what is no matrix.
const dionNote = "bias and norm: the adamw group lr 1e-3, wd 0.05, betas 0.9 0.95, eps 1e-8"

// noise is the reference's tolerance for an entry of an orthogonalised matrix: kernels for bfloat16 differ.
var noise = map[string]float64{"muon": 0.03, "dion": 0.2, "dion_newton_schulz": 0.2}

func TestMuonEqualsTheReference(t *testing.T) {
	ref := readOptimizers(t)
	for _, name := range ref.names(t, "muon/") {
		t.Run(name, func(t *testing.T) {
			do(t, func(s *torch.Scope) {
				c := ref.Results[name]
				config := MuonConfig{Variant: "muon", Momentum: c.Args.Momentum + c.Args.Mu, Nesterov: c.Args.Nesterov,
					MatchRMS: c.Args.AdjustTorch == "match_rms_adamw" || c.Args.AdjustDion == "rms_norm", WeightDecay: c.Args.WeightDecay,
					AdamW: AdamWConfig{0.9, 0.95, 1e-8, 0.05}, AdamWRate: 1e-3 / c.Args.LR}
				if strings.HasPrefix(name, "muon/dion_") {
					config.Variant = "dion"
					if c.Args.Polar != nil && !*c.Args.Polar {
						config.Variant = "dion_newton_schulz"
					}
				}
				var matrices, rest []Named
				for _, p := range ref.Initial.named(s) {
					switch _, given := c.Params["1"][p.Name]; {
					case len(p.Tensor.Shape()) == 2:
						matrices = append(matrices, p)
					case given:
						rest = append(rest, p)
					}
				}
				o, err := NewMuon(s, matrices, rest, config)
				if err != nil {
					t.Fatal(err)
				}
				ref.replay(t, s, c, slices.Concat(matrices, rest), o, func(p Named, step int) float64 {
					shape := p.Tensor.Shape()
					if len(shape) == 1 {
						return 1e-6
					}
					rows, columns := float64(shape[0]), float64(shape[1])
					scale := math.Sqrt(rows / columns)
					if config.MatchRMS {
						scale = 0.2 * math.Sqrt(max(rows, columns))
					} else if config.Variant == "muon" {
						scale = max(1, scale)
					}
					return float64(step) * c.Args.LR * scale * noise[config.Variant]
				})
			})
		})
	}
}

func TestOrthogonalisedMatricesEqualTheReference(t *testing.T) {
	for _, c := range readOptimizers(t).Orthogonalise {
		do(t, func(s *torch.Scope) {
			x := c.Matrix.tensor(s)
			twice := s.Call("aten::stack", []torch.Tensor{s.MulScalar(x, -3), x})[0] // each matrix on its own, of any scale
			for variant, want := range map[string]array{"muon": c.Muon, "dion": c.Dion, "dion_newton_schulz": c.Older} {
				y := variants[variant].orthogonalise(s, twice)
				for i, sign := range []float64{-1, 1} {
					got := s.MulScalar(s.Reshape(s.Narrow(y, 0, i, 1), x.Shape()...), sign)
					tol := func(Named) float64 { return noise[variant] }
					arrays{variant: want}.equal(t, c.Param, []Named{{variant, got}}, tol)
				}
			}
		})
	}
}

func TestMatricesWithTheSameGradientMoveAlikeInWhateverBatch(t *testing.T) {
	do(t, func(s *torch.Scope) {
		const rows, columns = 2, batchSize / 10 * 2 // two in a batch
		var list, grads []Named
		g := torch.New(s, slices.Concat(slices.Repeat([]float32{1}, columns), slices.Repeat([]float32{-1, 1}, columns/2)), rows, columns)
		for _, name := range []string{"a", "b", "c", "d"} {
			list = append(list, Named{name, s.Zeros(torch.Float32, rows, columns)})
			if name != "b" {
				grads = append(grads, Named{name, g})
			}
		}
		o, err := NewMuon(s, list, nil, MuonConfig{Variant: "muon", AdamW: AdamWConfig{Eps: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := o.Step(s, grads, 1); err != nil {
			t.Fatal(err)
		}
		for i, want := range []float64{1.4, 0, 1.4, 1.4} { // √2 where both singular values are 1
			if got := s.Norm(list[i].Tensor).Item(); math.Abs(got-want) > 0.4*want {
				t.Errorf("%s moved by %v", list[i].Name, got)
			}
			if i > 1 && s.Norm(s.Sub(list[i].Tensor, list[0].Tensor)).Item() > 1e-3 {
				t.Errorf("%s and a moved apart", list[i].Name)
			}
		}
	})
}

func TestMuonsStateSurvivesACheckpointOfItsOwnKindOnly(t *testing.T) {
	do(t, func(s *torch.Scope) {
		fresh := func(variant string) (*Muon, torch.Tensor, torch.Tensor) {
			w, b := torch.New(s, []float32{1, 2, 3, 4, 5, 6}, 2, 3), torch.New(s, []float32{1, 2})
			o, err := NewMuon(s, []Named{{"w", w}}, []Named{{"b", b}}, MuonConfig{Variant: variant, Momentum: 0.9, Nesterov: true,
				AdamW: AdamWConfig{0.9, 0.95, 1e-8, 0}, AdamWRate: 0.1})
			if err != nil {
				t.Fatal(err)
			}
			return o, w, b
		}
		o, w, b := fresh("muon")
		step := func(o *Muon, sign float64) {
			g := []Named{{"b", s.MulScalar(torch.New(s, []float32{1, -1}), sign)}, {"w", s.MulScalar(torch.New(s, []float32{1, 0, -2, 1, 1, 0}, 2, 3), sign)}}
			if err := o.Step(s, g, 0.1); err != nil {
				t.Fatal(err)
			}
		}
		step(o, 1)
		o2, w2, b2 := fresh("muon")
		s.Copy_(w2, w)
		s.Copy_(b2, b)
		path := filepath.Join(t.TempDir(), "optimizer.safetensors")
		if err := Save(path, o); err != nil {
			t.Fatal(err)
		}
		if err := Load(path, o2); err != nil {
			t.Fatal(err)
		}
		step(o, -0.5)
		step(o2, -0.5)
		if diff := cmp.Diff([][]float32{torch.Values[float32](w), torch.Values[float32](b)},
			[][]float32{torch.Values[float32](w2), torch.Values[float32](b2)}); diff != "" {
			t.Error(diff)
		}
		dion, _, _ := fresh("dion")
		err := Load(path, dion)
		if err == nil || !strings.Contains(err.Error(), "momentum.w is missing, momentum_buffer.w is of no parameter") {
			t.Error(err)
		}
	})
}

func TestHostileMuonInputIsRefused(t *testing.T) {
	do(t, func(s *torch.Scope) {
		w, b := torch.New(s, []float32{1, 2}, 2, 1), torch.New(s, []float32{1})
		good := MuonConfig{Variant: "muon", Momentum: 0.9, AdamW: AdamWConfig{0.9, 0.95, 1e-8, 0}}
		for want, change := range map[string]func(*MuonConfig, *[]Named, *[]Named){
			`unknown variant of Muon "moun"; known: dion, dion_newton_schulz, muon`: func(c *MuonConfig, _, _ *[]Named) { c.Variant = "moun" },
			"Momentum:-0.1":               func(c *MuonConfig, _, _ *[]Named) { c.Momentum = -0.1 },
			"Momentum:1":                  func(c *MuonConfig, _, _ *[]Named) { c.Momentum = 1 },
			"Momentum:NaN":                func(c *MuonConfig, _, _ *[]Named) { c.Momentum = math.NaN() },
			"WeightDecay:-1":              func(c *MuonConfig, _, _ *[]Named) { c.WeightDecay = -1 },
			"AdamWRate:+Inf":              func(c *MuonConfig, _, _ *[]Named) { c.AdamWRate = math.Inf(1) },
			"betas must be":               func(c *MuonConfig, _, _ *[]Named) { c.AdamW.Beta1 = 1 },
			`"w" is float32[0,1]`:         func(_ *MuonConfig, m, _ *[]Named) { *m = []Named{{"w", s.Zeros(torch.Float32, 0, 1)}} },
			`"w" is float32[1]`:           func(_ *MuonConfig, m, _ *[]Named) { *m = []Named{{"w", b}} },
			`"w" is bfloat16[2,1]`:        func(_ *MuonConfig, m, _ *[]Named) { *m = []Named{{"w", s.To(w, torch.BFloat16)}} },
			`parameter "w"`:               func(_ *MuonConfig, m, _ *[]Named) { *m = []Named{{"w", w}, {"w", w}} },
			`parameter "w" is float32[1]`: func(_ *MuonConfig, _, r *[]Named) { *r = []Named{{"w", b}} },
		} {
			c, matrices, rest := good, []Named{{"w", w}}, []Named{{"b", b}}
			change(&c, &matrices, &rest)
			if _, err := NewMuon(s, matrices, rest, c); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
		o, err := NewMuon(s, []Named{{"w", w}}, []Named{{"b", b}}, good)
		if err != nil {
			t.Fatal(err)
		}
		before := torch.Values[float32](w)
		for want, grads := range map[string][]Named{
			`"v" is for no parameter`: {{"w", w}, {"b", b}, {"v", w}}, `"w" is for no parameter or there twice`: {{"w", w}, {"w", w}},
			`"b" is for no parameter or there twice`: {{"w", w}, {"b", b}, {"b", b}},
			`"w" is float32[1,2]`:                    {{"b", b}, {"w", s.Transpose(w, 0, 1)}}, `"b" is float32[2,1]`: {{"w", w}, {"b", w}},
		} {
			if err := o.Step(s, grads, 1); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("error %v, want one with %q", err, want)
			}
		}
		if err := o.Step(s, []Named{{"w", w}}, math.NaN()); err == nil {
			t.Error("learning rate NaN accepted")
		}
		if err := o.Step(s, []Named{{"w", s.Zeros(torch.Float32, 2, 1)}, {Name: "b"}}, 1); err != nil { // a gradient of zeros is no direction
			t.Error(err)
		}
		if diff := cmp.Diff([][]float32{before, {1}}, [][]float32{torch.Values[float32](w), torch.Values[float32](b)}); diff != "" {
			t.Error("refused steps and a gradient of zeros moved the weights:", diff)
		}
	})
}
