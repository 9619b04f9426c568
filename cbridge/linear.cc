// molt::linear, the product of rows and weights, with its gradient. The arithmetic is in kernels_product.cc.
#include "ops.h"

#include <algorithm>
#include <atomic>
#include <vector>

namespace molt {
namespace {

const ProductKernels& product_kernels(bool half, int64_t n, int64_t k) {
  static const ProductKernels* const all[] = {product_base, product_avx2, product_avx512, product_avx512bf16, product_amx};
  const bool tiles = half && k % 32 == 0 && n % 16 == 0;
  return all[std::min(instruction_set(), tiles ? 4 : half ? 3 : 2)][half];
}

// Weights in blocks that stay in a core's own cache while the rows pass by; whoever is free takes the next.
void multiply(const Tensor& x, const Tensor& w, const Tensor& b, const Tensor& y) {
  const int64_t m = x.size(0), n = w.size(0), k = x.size(1);
  const ProductKernels& kernels = product_kernels(x.scalar_type() == at::kBFloat16, n, k);
  const int64_t threads = std::clamp<int64_t>(m * n * k >> 16, 1, at::get_num_threads()), packs = (m + kPack - 1) / kPack;
  const int64_t row = packed_row(kernels.unit, k);
  Tensor packed = at::empty({packs * kPack, row}, x.options().dtype(at::kFloat));
  float* rows = packed.data_ptr<float>();
  at::parallel_for(0, packs, 4, [&](int64_t i, int64_t e) {
    for (; i < e; i++)
      kernels.pack(element(x, i * kPack * k), std::min<int64_t>(kPack, m - i * kPack), k, rows + i * kPack * row);
  });
  int64_t columns = std::min((256 << 10) / (k * x.element_size()), n / (4 * threads));
  columns = std::max<int64_t>(96, columns / 96 * 96);
  std::atomic<int64_t> next{0};
  at::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    thread_local std::vector<float> scratch;
    scratch.resize(std::max<size_t>(scratch.size(), kProductScratch * row));
    for (int64_t j; (j = columns * next++) < n;)
      kernels.product(rows, element(w, j * k), element(b, j), m, std::min(columns, n - j), k, element(y, j), n, scratch.data());
  });
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& w, const std::optional<Tensor>& b) {
    ctx->save_for_backward({x, w});
    ctx->saved_data["bias"] = b.has_value();
    return linear_cpu(x, w, b);
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    auto s = ctx->get_saved_variables();
    Tensor dy = g[0].contiguous(), dx, dw, db;
    if (ctx->needs_input_grad(0)) dx = product(dy, s[1]);
    if (ctx->needs_input_grad(1)) dw = product(dy.t(), s[0]);
    if (ctx->saved_data["bias"].toBool()) db = dy.sum(0);
    return {dx, dw, db};
  }
};

Tensor linear_autograd(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b) {
  if (wants_grad(x, w, b.value_or(Tensor()))) return LinearFunction::apply(x, w, b);
  at::AutoDispatchBelowADInplaceOrView below;  // the views that it takes on its way need no record
  return linear_cpu(x, w, b);
}

}  // namespace

// Whatever the kernels do not take is libtorch's.
Tensor linear_cpu(const Tensor& x, const Tensor& w, const std::optional<Tensor>& b) {
  TORCH_CHECK(x.dim() == 2 && w.dim() == 2, "x must be [rows, in] and w [out, in], not ", x.sizes(), " and ", w.sizes());
  const bool same = x.scalar_type() == w.scalar_type() && x.size(1) == w.size(1) &&
                    (!b || (b->scalar_type() == w.scalar_type() && b->dim() == 1 && b->size(0) == w.size(0) && b->is_contiguous()));
  if (!same || (x.scalar_type() != at::kFloat && x.scalar_type() != at::kBFloat16) || !w.is_contiguous() || x.numel() == 0 ||
      w.numel() == 0)
    return at::linear(x, w, b);
  Tensor y = at::empty({x.size(0), w.size(0)}, x.options());
  multiply(x.contiguous(), w, b.value_or(Tensor()), y);
  return y;
}

Tensor product(const Tensor& a, const Tensor& b) {
  static auto op = c10::Dispatcher::singleton().findSchema({"mkldnn::_linear_pointwise", ""});
  if (a.scalar_type() != at::kFloat || !op || a.numel() == 0 || b.numel() == 0) return at::mm(a, b);
  torch::jit::Stack stack{a, b.t(), c10::IValue(), std::string("none"), c10::List<std::optional<at::Scalar>>(), std::string()};
  op->callBoxed(stack);
  return stack[0].toTensor();
}

void register_linear_cpu(torch::Library& m) { m.impl("linear", linear_cpu); }
void register_linear_autograd(torch::Library& m) { m.impl("linear", linear_autograd); }

}  // namespace molt
