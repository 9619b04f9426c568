// molt::add_rms_norm, molt::rotary and molt::act_mul with their gradients. The arithmetic is in kernels_rows.cc.
#include "ops.h"

#include <vector>

namespace molt {
namespace {

constexpr int64_t kRows = 4;  // fewest rows worth a thread

struct Norm {
  Tensor total, y, rstd;
};

Norm norm_forward(const Tensor& x, const Tensor& r, const Tensor& w, double eps) {
  bool half = is_half(x, "x");
  TORCH_CHECK(x.dim() == 2 && x.is_contiguous(), "x must be contiguous [rows, width], not ", x.sizes());
  TORCH_CHECK(w.dim() == 1 && w.size(0) == x.size(1) && w.scalar_type() == x.scalar_type() && w.is_contiguous(), "w must be ",
              x.scalar_type(), "[", x.size(1), "], not ", w.scalar_type(), w.sizes());
  Tensor add = r.defined() ? r.contiguous() : Tensor();
  if (add.defined()) check_like(add, x, "r");
  int64_t n = x.size(0), h = x.size(1);
  Norm out = {add.defined() ? at::empty_like(x) : x, at::empty_like(x), at::empty({n}, x.options().dtype(at::kFloat))};
  at::parallel_for(0, n, kRows, [&](int64_t a, int64_t b) {
    row_kernels(half).add_rms_norm(element(x, a * h), element(add, a * h), w.data_ptr(), float(eps), b - a, int(h),
                                   element(out.total, a * h), element(out.y, a * h), out.rstd.data_ptr<float>() + a);
  });
  return out;
}

// dw is summed by blocks of 64 rows, merged in order: the result does not depend on the number of threads.
std::tuple<Tensor, Tensor> norm_backward(const Tensor& total, const Tensor& w, const Tensor& rstd, const Tensor& dsum, const Tensor& dy) {
  constexpr int64_t kBlock = 64;
  int64_t n = total.size(0), h = total.size(1), num = (n + kBlock - 1) / kBlock;
  Tensor dx = at::empty_like(total), parts = at::zeros({num, h}, rstd.options());
  const RowKernels& kernels = row_kernels(is_half(total, "x"));
  at::parallel_for(0, num, 1, [&](int64_t a, int64_t b) {
    for (int64_t i = a; i < b; i++) {
      int64_t first = i * kBlock, count = std::min(kBlock, n - first), e = first * h;
      kernels.rms_norm_backward(element(total, e), w.data_ptr(), rstd.data_ptr<float>() + first, element(dsum, e), element(dy, e), count,
                                int(h), element(dx, e), parts.data_ptr<float>() + i * h);
    }
  });
  return {dx, parts.sum(0).to(w.scalar_type())};
}

struct NormFunction : torch::autograd::Function<NormFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& x, const std::optional<Tensor>& r, const Tensor& w, double eps) {
    Norm n = norm_forward(x, r.value_or(Tensor()), w, eps);
    ctx->save_for_backward({n.total, w, n.rstd});
    ctx->saved_data["added"] = r.has_value();
    if (r) return {n.total, n.y};
    return {n.y};
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    auto s = ctx->get_saved_variables();
    bool added = ctx->saved_data["added"].toBool();
    Tensor dy = added ? g[1] : g[0], dsum = added ? g[0] : Tensor();
    dy = dy.defined() ? dy.contiguous() : at::zeros_like(s[0]);
    if (dsum.defined()) dsum = dsum.contiguous();
    auto [dx, dw] = norm_backward(s[0], s[1], s[2], dsum, dy);
    return {dx, added ? dx : Tensor(), dw, Tensor()};
  }
};

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const std::optional<Tensor>& r, const Tensor& w, double eps) {
  Norm n = norm_forward(x, r.value_or(Tensor()), w, eps);
  return {n.total, n.y};
}

std::tuple<Tensor, Tensor> add_rms_norm_autograd(const Tensor& x, const std::optional<Tensor>& r, const Tensor& w, double eps) {
  if (!wants_grad(x, r.value_or(Tensor()), w)) return add_rms_norm(x, r, w, eps);
  auto out = NormFunction::apply(x, r, w, eps);
  if (r) return {out[0], out[1]};
  return {x, out[0]};
}

Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin, bool back) {
  bool half = is_half(x, "x");
  TORCH_CHECK(x.dim() == 3 && (x.numel() == 0 || (x.stride(2) == 1 && (x.stride(1) == x.size(2) || x.size(1) == 1))),
              "x must be [rows, heads, d] with contiguous heads, not ", x.sizes());
  int64_t n = x.size(0), heads = x.size(1), d = x.size(2);
  for (const Tensor& t : {cos, sin})
    TORCH_CHECK(t.scalar_type() == at::kFloat && t.is_contiguous() && t.dim() == 2 && t.size(0) == n && t.size(1) * 2 == d,
                "cos and sin must be contiguous float32 [", n, ",", d / 2, "], not ", t.scalar_type(), t.sizes());
  Tensor y = at::empty(x.sizes(), x.options());
  const float *c = cos.data_ptr<float>(), *s = sin.data_ptr<float>();
  at::parallel_for(0, n, kRows, [&](int64_t a, int64_t b) {
    row_kernels(half).rotary(element(x, a * x.stride(0)), x.stride(0), c + a * d / 2, s + a * d / 2, back, b - a, int(heads), int(d),
                             element(y, a * heads * d));
  });
  return y;
}

struct RotaryFunction : torch::autograd::Function<RotaryFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& x, const Tensor& cos, const Tensor& sin) {
    ctx->save_for_backward({cos, sin});
    return rotate(x, cos, sin, false);
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    auto s = ctx->get_saved_variables();
    return {rotate(g[0].contiguous(), s[0], s[1], true), Tensor(), Tensor()};
  }
};

Tensor rotary(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return rotate(x, cos, sin, false);
}
Tensor rotary_autograd(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  return wants_grad(x) ? RotaryFunction::apply(x, cos, sin) : rotary(x, cos, sin);
}

Tensor act_mul(const Tensor& gu, bool gelu) {
  bool half = is_half(gu, "gate_up");
  TORCH_CHECK(gu.dim() == 2 && gu.is_contiguous() && gu.size(1) % 2 == 0, "gate_up must be contiguous [rows, 2*inner], not ", gu.sizes());
  int64_t n = gu.size(0), inner = gu.size(1) / 2;
  Tensor y = at::empty({n, inner}, gu.options());
  at::parallel_for(0, n, kRows, [&](int64_t a, int64_t b) {
    row_kernels(half).act_mul(element(gu, a * 2 * inner), gelu, b - a, int(inner), element(y, a * inner));
  });
  return y;
}

struct ActFunction : torch::autograd::Function<ActFunction> {
  static Tensor forward(AutogradContext* ctx, const Tensor& gu, bool gelu) {
    ctx->save_for_backward({gu});
    ctx->saved_data["gelu"] = gelu;
    return act_mul(gu, gelu);
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    Tensor gu = ctx->get_saved_variables()[0], dy = g[0].contiguous(), dgu = at::empty_like(gu);
    bool half = is_half(gu, "gate_up"), gelu = ctx->saved_data["gelu"].toBool();
    int64_t n = gu.size(0), inner = gu.size(1) / 2;
    at::parallel_for(0, n, kRows, [&](int64_t a, int64_t b) {
      row_kernels(half).act_mul_backward(element(gu, a * 2 * inner), gelu, element(dy, a * inner), b - a, int(inner),
                                         element(dgu, a * 2 * inner));
    });
    return {dgu, Tensor()};
  }
};
Tensor act_mul_autograd(const Tensor& gu, bool gelu) { return wants_grad(gu) ? ActFunction::apply(gu, gelu) : act_mul(gu, gelu); }

}  // namespace

void register_pointwise_cpu(torch::Library& m) {
  m.impl("add_rms_norm", add_rms_norm);
  m.impl("rotary", rotary);
  m.impl("act_mul", act_mul);
}
void register_pointwise_autograd(torch::Library& m) {
  m.impl("add_rms_norm", add_rms_norm_autograd);
  m.impl("rotary", rotary_autograd);
  m.impl("act_mul", act_mul_autograd);
}

}  // namespace molt
