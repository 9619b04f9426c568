package trainer

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/molt-go/molt/rollout"
	"github.com/molt-go/molt/torch"
)

// Every test that makes tensors ends with none alive.
func TestMain(m *testing.M) {
	code := m.Run()
	if n := torch.Live(); n != 0 {
		println("tensors still alive after all tests:", n)
		code = 1
	}
	os.Exit(code)
}

func do(t *testing.T, f func(s *torch.Scope)) {
	t.Helper()
	if err := torch.Do(1, func(s *torch.Scope) error { f(s); return nil }); err != nil {
		t.Fatal(err)
	}
}

// number reads "NaN", "Infinity" and "-Infinity" too.
type number float64

func (n *number) UnmarshalJSON(text []byte) error {
	if s := strings.Trim(string(text), `"`); s == "null" {
		return nil
	} else if _, err := fmt.Sscan(strings.Replace(s, "Infinity", "Inf", 1), (*float64)(n)); err != nil {
		return err
	}
	return nil
}

// blank is n tokens of context.
func blank(n int) rollout.Tokens {
	t := rollout.Tokens{IDs: make([]int32, n), Versions: make([]int32, n), Mask: make([]bool, n),
		LogP: make([]float32, n), Temp: make([]float32, n)}
	for i := range n {
		t.Versions[i], t.Temp[i] = -1, 1
	}
	return t
}

// evaluated is a loss with its gradient by the log-prob of every slot, and by those of the sampler's most likely tokens there, the sum.
type evaluated struct {
	loss       float64
	grad, head [][]float64
	metrics    map[string]Metric
}

const noLimit = 1 << 20

// evaluate packs samples and runs the loss on given log-probs [sample][slot]; change, if given, edits the step's counts. With score
// centering the policy's log-probs of the most likely tokens are 1.1 times the sampler's.
func evaluate(t *testing.T, samples []Sample, logp [][]number, c LossConfig, budget int, change func(*Step)) (out evaluated, err error) {
	t.Helper()
	out.metrics = map[string]Metric{}
	plan, err := Pack(samples, budget)
	if err != nil {
		return out, err
	}
	for _, row := range logp {
		out.grad, out.head = append(out.grad, make([]float64, len(row))), append(out.head, make([]float64, len(row)))
	}
	k := c.ScoreCentering
	if err := plan.addTop(samples, k); k > 0 && err != nil {
		return out, err
	}
	if change != nil {
		change(&plan.Step)
	}
	do(t, func(s *torch.Scope) {
		for i := range plan.Micros {
			m := &plan.Micros[i]
			var values []float32
			for n, p := range m.Places {
				values = append(values, float32(logp[p.Sample][p.Token-1]))
				for _, top := range m.Top[n*k : (n+1)*k] {
					values = append(values, 1.1*top)
				}
			}
			x, entropy := torch.New(s, values, len(m.Places), 1+k), s.Zeros(torch.Float32, len(m.Places))
			if err = m.checkFinite("log-prob", x); err != nil {
				return
			}
			loss, metrics, grads, bad := m.leaves(s, x, entropy, plan.Step, c)
			if bad != nil {
				err = bad
				return
			}
			out.loss += loss
			for name, m := range metrics {
				out.metrics[name] = out.metrics[name].Add(m)
			}
			for i, g := range torch.Values[float64](grads[0]) {
				p, to := m.Places[i/(1+k)], out.head
				if i%(1+k) == 0 {
					to = out.grad
				}
				to[p.Sample][p.Token-1] += g
			}
		}
	})
	return out, err
}

func close64(tol, relative float64) cmp.Option { return cmpopts.EquateApprox(relative, tol) }
