// What the files that register operators share: the kernels of this processor, checks, and rows shared out to threads.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include <algorithm>
#include <cstdlib>
#include "kernels.h"

namespace molt {

using at::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// 0: any x86-64, 1: AVX2, 2: AVX-512, 3: with bfloat16 products, 4: AMX. MOLT_ISA, one of these numbers, goes no further than that.
inline int instruction_set() {
  static const int best = [] {
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    const char* limit = getenv("MOLT_ISA");
    TORCH_CHECK(!limit || !*limit || (*limit >= '0' && *limit <= '4' && !limit[1]), "MOLT_ISA must be 0 to 4, not '", limit, "'");
    const int most = limit && *limit ? *limit - '0' : 4;
    return std::min(most, bf16 ? most > 3 && at::cpu::init_amx() ? 4 : 3 : avx512 ? 2 : int(avx2));
  }();
  return best;
}
inline const AttentionKernels& attention_kernels(bool half) {
  static const AttentionKernels* const all[] = {attention_base, attention_avx2, attention_avx512};
  return all[std::min(instruction_set(), 2)][half];
}
inline const RowKernels& row_kernels(bool half) {
  static const RowKernels* const all[] = {rows_base, rows_avx2, rows_avx512};
  return all[std::min(instruction_set(), 2)][half];
}

inline bool is_half(const Tensor& t, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, name, " must be float32 or bfloat16, not ",
              t.scalar_type());
  return t.scalar_type() == at::kBFloat16;
}
inline void check_like(const Tensor& t, const Tensor& model, const char* name) {
  TORCH_CHECK(t.scalar_type() == model.scalar_type() && t.sizes() == model.sizes(), name, " must be ", model.scalar_type(), model.sizes(),
              ", not ", t.scalar_type(), t.sizes());
}
// The address of t's element i in memory order; null for no tensor.
inline void* element(const Tensor& t, int64_t i) {
  return t.defined() ? static_cast<char*>(t.data_ptr()) + i * t.element_size() : nullptr;
}

// x [rows, in] · wᵀ, w [out, in]: a row of the result depends on no other row of x.
Tensor linear_cpu(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b);

// a·b, for gradients: libtorch gives float32 products to MKL, which has no AVX-512 for AMD; through oneDNN they are twice as fast there.
Tensor product(const Tensor& a, const Tensor& b);

// No graph is made when no gradient is wanted.
template <class... T>
bool wants_grad(const T&... t) {
  return at::GradMode::is_enabled() && (... || (t.defined() && t.requires_grad()));
}

}  // namespace molt
