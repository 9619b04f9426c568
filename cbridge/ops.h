// What the files that register operators share: the kernels of this processor, checks, and rows shared out to threads.
#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>
#include "kernels.h"

namespace molt {

inline int instruction_set() {  // 0: any x86-64, 1: AVX2, 2: AVX-512
  static const int set = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                                 __builtin_cpu_supports("avx512vl")
                             ? 2
                         : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1
                                                                                           : 0;
  return set;
}
inline const AttentionKernels& attention_kernels() {
  static const AttentionKernels* const all[] = {&attention_base, &attention_avx2, &attention_avx512};
  return *all[instruction_set()];
}
inline const RowKernels& row_kernels() {
  static const RowKernels* const all[] = {&rows_base, &rows_avx2, &rows_avx512};
  return *all[instruction_set()];
}

inline bool is_half(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kFloat || t.scalar_type() == at::kBFloat16, name, " must be float32 or bfloat16, not ", t.scalar_type());
  return t.scalar_type() == at::kBFloat16;
}
inline void check_like(const at::Tensor& t, const at::Tensor& model, const char* name) {
  TORCH_CHECK(t.scalar_type() == model.scalar_type() && t.sizes() == model.sizes(), name, " must be ", model.scalar_type(), model.sizes(), ", not ",
              t.scalar_type(), t.sizes());
}
inline const char* at_row(const void* p, int64_t elements, bool half) { return static_cast<const char*>(p) + elements * (half ? 2 : 4); }
inline char* at_row(void* p, int64_t elements, bool half) { return static_cast<char*>(p) + elements * (half ? 2 : 4); }

// Registers a differentiable operator: forward runs below autograd, and no graph is made when no gradient is wanted.
template <class... T>
bool wants_grad(const T&... t) {
  return at::GradMode::is_enabled() && (... || (t.defined() && t.requires_grad()));
}

}  // namespace molt
