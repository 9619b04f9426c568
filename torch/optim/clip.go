package optim

import (
	"fmt"
	"math"
	"strings"

	"github.com/molt-go/molt/torch"
)

// ClipGradNorm scales grads in place so that their global norm is at most maxNorm, by maxNorm/(norm + 1e-6) as torch does, and
// returns the norm before. maxNorm 0 only measures. Absent gradients count as 0. A norm that is not finite is an error that
// names the tensors; nothing is scaled then.
func ClipGradNorm(s *torch.Scope, grads []Named, maxNorm float64) (norm float64, err error) {
	var tensors []torch.Tensor
	var names []string
	for _, g := range grads {
		if g.Tensor != (torch.Tensor{}) {
			tensors, names = append(tensors, g.Tensor), append(names, g.Name)
		}
	}
	if len(tensors) == 0 {
		return 0, nil
	}
	s.NoGrad(func(s *torch.Scope) torch.Tensor {
		var faults []string
		for i, n := range torch.Values[float64](s.Call("aten::stack", s.Call("aten::_foreach_norm.Scalar", tensors, 2))[0]) {
			if math.IsNaN(n) || math.IsInf(n, 0) {
				faults = append(faults, fmt.Sprintf("%s (norm %v)", names[i], n))
			}
			norm = math.Hypot(norm, n)
		}
		if faults != nil {
			err = fmt.Errorf("optim: gradients are not finite: %s", strings.Join(faults, ", "))
		} else if coef := maxNorm / (norm + 1e-6); maxNorm > 0 && coef < 1 {
			s.Call("aten::_foreach_mul_.Scalar", tensors, coef)
		}
		return torch.Tensor{}
	})
	return norm, err
}
