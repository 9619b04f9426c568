// Package gotorch shares tensors between package torch and github.com/wangkuiyi/gotorch, so that code written for the one can be
// mixed with, or ported to, the other. Both sides see the same memory, gradient and graph; nothing is copied.
package gotorch

import (
	"runtime"

	"github.com/molt-go/molt/torch"
	"github.com/wangkuiyi/gotorch"
)

// From is t as a tensor of s. It stays valid until s closes, whatever becomes of t. A t without a tensor gives the zero Tensor.
func From(s *torch.Scope, t gotorch.Tensor) torch.Tensor {
	if t.T == nil {
		return torch.Tensor{}
	}
	defer runtime.KeepAlive(t.T) // or its finalizer might free it before it is shared
	return s.FromATen(*t.T)
}

// To is t as a tensor of gotorch, whose finalizer frees it. It outlives t's scope.
func To(t torch.Tensor) gotorch.Tensor {
	p := t.ATen()
	gotorch.SetTensorFinalizer(&p)
	return gotorch.Tensor{T: &p}
}
