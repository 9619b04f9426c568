package torch

// Operators in use, one line each; [Scope.Call] reaches the rest. Names and meanings are ATen's. Shapes in comments are rows first.

func (s *Scope) Add(x, y Tensor) Tensor { return s.one(&opAdd, nil, tensor(x), tensor(y)) }
func (s *Scope) Sub(x, y Tensor) Tensor { return s.one(&opSub, nil, tensor(x), tensor(y)) }
func (s *Scope) Mul(x, y Tensor) Tensor { return s.one(&opMul, nil, tensor(x), tensor(y)) }
func (s *Scope) Div(x, y Tensor) Tensor { return s.one(&opDiv, nil, tensor(x), tensor(y)) }
func (s *Scope) AddScalar(x Tensor, k float64) Tensor {
	return s.one(&opAddScalar, nil, tensor(x), float(k))
}
func (s *Scope) MulScalar(x Tensor, k float64) Tensor {
	return s.one(&opMulScalar, nil, tensor(x), float(k))
}
func (s *Scope) Neg(x Tensor) Tensor        { return s.one(&opNeg, nil, tensor(x)) }
func (s *Scope) Exp(x Tensor) Tensor        { return s.one(&opExp, nil, tensor(x)) }
func (s *Scope) Minimum(x, y Tensor) Tensor { return s.one(&opMinimum, nil, tensor(x), tensor(y)) }
func (s *Scope) Maximum(x, y Tensor) Tensor { return s.one(&opMaximum, nil, tensor(x), tensor(y)) }
func (s *Scope) Clamp(x Tensor, low, high float64) Tensor {
	return s.one(&opClamp, nil, tensor(x), float(low), float(high))
}
func (s *Scope) Sum(x Tensor) Tensor  { return s.one(&opSum, nil, tensor(x)) }
func (s *Scope) Mean(x Tensor) Tensor { return s.one(&opMean, nil, tensor(x)) }
func (s *Scope) Where(c, x, y Tensor) Tensor {
	return s.one(&opWhere, nil, tensor(c), tensor(x), tensor(y))
}
func (s *Scope) Less(x, y Tensor) Tensor   { return s.one(&opLess, nil, tensor(x), tensor(y)) }
func (s *Scope) IsFinite(x Tensor) Tensor  { return s.one(&opIsFinite, nil, tensor(x)) }
func (s *Scope) All(x Tensor) Tensor       { return s.one(&opAll, nil, tensor(x)) }
func (s *Scope) MatMul(x, y Tensor) Tensor { return s.one(&opMatMul, nil, tensor(x), tensor(y)) }
func (s *Scope) Embedding(w, ids Tensor) Tensor {
	return s.one(&opEmbedding, nil, tensor(w), tensor(ids))
}
func (s *Scope) LogSoftmax(x Tensor, dim int) Tensor {
	return s.one(&opLogSoftmax, nil, tensor(x), num(dim))
}
func (s *Scope) Norm(x Tensor) Tensor { return s.one(&opNorm, nil, tensor(x)) }

// LayerNorm norms the rows of x [N,H] to mean 0 and variance 1, times w [H] plus b [H].
func (s *Scope) LayerNorm(x, w, b Tensor, eps float64) Tensor {
	return s.one(&opLayerNorm, []int{x.Dim(-1)}, tensor(x), list(0, 1), tensor(w), tensor(b), float(eps))
}
func (s *Scope) GELU(x Tensor) Tensor { return s.one(&opGELU, nil, tensor(x)) } // the exact one

// Linear is x·wᵀ + b: x [N,in], w [out,in], b [out] or none.
func (s *Scope) Linear(x, w, b Tensor) Tensor {
	return s.one(&opLinear, nil, tensor(x), tensor(w), tensor(b))
}
func (s *Scope) Reshape(x Tensor, shape ...int) Tensor {
	return s.one(&opReshape, shape, tensor(x), list(0, len(shape)))
}
func (s *Scope) Transpose(x Tensor, a, b int) Tensor {
	return s.one(&opTranspose, nil, tensor(x), num(a), num(b))
}

// Narrow is a view of n entries of dimension dim from start on.
func (s *Scope) Narrow(x Tensor, dim, start, n int) Tensor {
	return s.one(&opNarrow, nil, tensor(x), num(dim), num(start), num(n))
}
func (s *Scope) IndexSelect(x Tensor, dim int, ids Tensor) Tensor {
	return s.one(&opIndexSelect, nil, tensor(x), num(dim), tensor(ids))
}
func (s *Scope) Cat(dim int, xs ...Tensor) Tensor {
	var pool []int
	n := poolTensors(&pool, xs)
	return s.one(&opCat, pool, tensors(0, n), num(dim))
}
func (s *Scope) To(x Tensor, d DType) Tensor { return s.one(&opTo, nil, tensor(x), dtype(d)) }
func (s *Scope) Clone(x Tensor) Tensor       { return s.one(&opClone, nil, tensor(x)) }
func (s *Scope) Detach(x Tensor) Tensor      { return s.one(&opDetach, nil, tensor(x)) }
func (s *Scope) Zeros(d DType, shape ...int) Tensor {
	return s.one(&opZeros, shape, list(0, len(shape)), dtype(d))
}
func (s *Scope) Empty(d DType, shape ...int) Tensor {
	return s.one(&opEmpty, shape, list(0, len(shape)), dtype(d))
}
func (s *Scope) Randn(shape ...int) Tensor { return s.one(&opRandn, shape, list(0, len(shape))) }

// In place: these write to their first argument and return its handle.

func (s *Scope) Copy_(dst, src Tensor) Tensor { return s.one(&opCopy_, nil, tensor(dst), tensor(src)) }
func (s *Scope) Add_(x, y Tensor) Tensor      { return s.one(&opAdd_, nil, tensor(x), tensor(y)) }
func (s *Scope) Zero_(x Tensor) Tensor        { return s.one(&opZero_, nil, tensor(x)) }
func (s *Scope) IndexCopy_(x Tensor, dim int, ids, src Tensor) Tensor {
	return s.one(&opIndexCopy_, nil, tensor(x), num(dim), tensor(ids), tensor(src))
}

// Molt's own kernels.

// Attention of q [N,Hq,D] over keys and values [S,Hkv,D]: row n is (b, lo, hi) of rows int32 [N,3] and sees the logical keys
// lo ≤ j < hi of sequence b, which are the ranges [R,2] (first slot, length) from seqs[b] to seqs[b+1], end to end.
// Softcap 0 is off. The result is [N,Hq,D]; a row that sees no key gives 0.
func (s *Scope) Attention(q, k, v, rows, seqs, ranges Tensor, scale, softcap float64) Tensor {
	return s.one(&opAttention, nil, tensor(q), tensor(k), tensor(v), tensor(rows), tensor(seqs), tensor(ranges), float(scale),
		float(softcap))
}

// AddRMSNorm gives x + r and its RMS norm times w; x and r are [N,H], w is [H]. Without r the first result is x itself.
func (s *Scope) AddRMSNorm(x, r, w Tensor, eps float64) (total, y Tensor) {
	var out [2]handle
	s.call(&opAddRMSNorm, nil, out[:], tensor(x), tensor(r), tensor(w), float(eps))
	return Tensor{out[0]}, Tensor{out[1]}
}

// Rotary turns the pairs (i, i+D/2) of x [N,H,D] by the angles whose cos and sin are float32 [N,D/2].
func (s *Scope) Rotary(x, cos, sin Tensor) Tensor {
	return s.one(&opRotary, nil, tensor(x), tensor(cos), tensor(sin))
}

// SiLUMul is silu(gate)·up of gateUp [N,2I], gates first: [N,I].
func (s *Scope) SiLUMul(gateUp Tensor) Tensor {
	return s.one(&opActMul, nil, tensor(gateUp), truth(false))
}

// GELUMul is SiLUMul with GELU by its tanh formula.
func (s *Scope) GELUMul(gateUp Tensor) Tensor {
	return s.one(&opActMul, nil, tensor(gateUp), truth(true))
}

// SoftCap is limit·tanh(logits/limit), in float32, as LMLogP works with it. It has no gradient.
func (s *Scope) SoftCap(logits Tensor, limit float64) Tensor {
	return s.one(&opSoftCap, nil, tensor(logits), float(limit))
}

// LMLogP gives the log-probs [N,K] of ids int64 [N,K] and the entropy [N] under softmax(h·wᵀ·invT), for h [N,D], w [V,D] and
// invT float32 [N], with chunk rows of logits at a time. Softcap 0 is off.
func (s *Scope) LMLogP(h, w, ids, invT Tensor, softcap float64, chunk int) (logp, entropy Tensor) {
	var out [2]handle
	s.call(&opLMLogP, nil, out[:], tensor(h), tensor(w), tensor(ids), tensor(invT), float(softcap), num(chunk))
	return Tensor{out[0]}, Tensor{out[1]}
}

// Sample draws one id per row of logits [≥N,V] at quantile u float64 [N] of softmax(logits·invT), invT float32 [N]; invT 0 takes
// the first of the largest logits. Cuts, float64 [N,3] or the zero Tensor, are top-k, top-p and min-p, which leave a part of the
// distribution, in this order; 0 is off. It gives ids int64 [N], -1 where logits are NaN or infinite, their log-probs float32 [N]
// before cuts (greedy: at temperature 1), and stats float32 [N,2]: the largest logit, and log Σ exp((logit-largest)·invT).
func (s *Scope) Sample(logits, invT, u, cuts Tensor) (ids, logp, stats Tensor) {
	var out [3]handle
	s.call(&opSample, nil, out[:], tensor(logits), tensor(invT), tensor(u), tensor(cuts))
	return Tensor{out[0]}, Tensor{out[1]}, Tensor{out[2]}
}

var (
	opAdd         = op{name: "aten::add", overload: "Tensor"}
	opSub         = op{name: "aten::sub", overload: "Tensor"}
	opMul         = op{name: "aten::mul", overload: "Tensor"}
	opDiv         = op{name: "aten::div", overload: "Tensor"}
	opAddScalar   = op{name: "aten::add", overload: "Scalar"}
	opMulScalar   = op{name: "aten::mul", overload: "Scalar"}
	opNeg         = op{name: "aten::neg"}
	opExp         = op{name: "aten::exp"}
	opMinimum     = op{name: "aten::minimum"}
	opMaximum     = op{name: "aten::maximum"}
	opClamp       = op{name: "aten::clamp"}
	opSum         = op{name: "aten::sum"}
	opMean        = op{name: "aten::mean"}
	opWhere       = op{name: "aten::where", overload: "self"}
	opLess        = op{name: "aten::lt", overload: "Tensor"}
	opIsFinite    = op{name: "aten::isfinite"}
	opAll         = op{name: "aten::all"}
	opMatMul      = op{name: "aten::matmul"}
	opEmbedding   = op{name: "aten::embedding"}
	opLogSoftmax  = op{name: "aten::log_softmax", overload: "int"}
	opNorm        = op{name: "aten::linalg_vector_norm"}
	opLayerNorm   = op{name: "aten::layer_norm"}
	opGELU        = op{name: "aten::gelu"}
	opLinear      = op{name: "molt::linear"}
	opReshape     = op{name: "aten::reshape"}
	opTranspose   = op{name: "aten::transpose", overload: "int"}
	opNarrow      = op{name: "aten::narrow"}
	opIndexSelect = op{name: "aten::index_select"}
	opCat         = op{name: "aten::cat"}
	opTo          = op{name: "aten::to", overload: "dtype"}
	opClone       = op{name: "aten::clone"}
	opDetach      = op{name: "aten::detach"}
	opZeros       = op{name: "aten::zeros"}
	opEmpty       = op{name: "aten::empty", overload: "memory_format"}
	opRandn       = op{name: "aten::randn"}
	opCopy_       = op{name: "aten::copy_"}
	opAdd_        = op{name: "aten::add_", overload: "Tensor"}
	opZero_       = op{name: "aten::zero_"}
	opIndexCopy_  = op{name: "aten::index_copy_"}
	opAttention   = op{name: "molt::attention"}
	opAddRMSNorm  = op{name: "molt::add_rms_norm"}
	opRotary      = op{name: "molt::rotary"}
	opActMul      = op{name: "molt::act_mul"}
	opSoftCap     = op{name: "molt::softcap"}
	opLMLogP      = op{name: "molt::lm_logp"}
	opSample      = op{name: "molt::sample"}
)
