// molt::lm_logp (log-probs and entropy of chosen tokens without ever holding [tokens, vocabulary]) and molt::sample; and the one
// TORCH_LIBRARY block. The arithmetic on rows of logits is in kernels_rows.cc.
#include "ops.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace molt {
namespace {

void check_head(const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t, int64_t chunk) {
  is_half(h, "h");
  TORCH_CHECK(h.dim() == 2 && w.dim() == 2 && w.size(1) == h.size(1) && w.scalar_type() == h.scalar_type(),
              "h [N,D] and w [V,D] do not fit: ", h.scalar_type(), h.sizes(), " and ", w.scalar_type(), w.sizes());
  int64_t n = h.size(0), v = w.size(0);
  TORCH_CHECK(ids.scalar_type() == at::kLong && ids.dim() == 2 && ids.size(0) == n && ids.size(1) > 0 && ids.size(1) <= kMaxIds,
              "ids must be int64 [", n, ",1 to ", kMaxIds, "], not ", ids.scalar_type(), ids.sizes());
  TORCH_CHECK(inv_t.scalar_type() == at::kFloat && inv_t.is_contiguous() && inv_t.dim() == 1 && inv_t.size(0) == n,
              "inv_t must be float32 [", n, "], not ", inv_t.scalar_type(), inv_t.sizes());
  TORCH_CHECK(chunk > 0, "chunk must be positive");
  const int64_t* p = ids.data_ptr<int64_t>();
  for (int64_t i = 0; i < ids.numel(); i++)
    TORCH_CHECK(p[i] >= 0 && p[i] < v, "id ", p[i], " of row ", i / ids.size(1), " is not in 0..", v - 1);
}

// Makes logits a chunk at a time.
template <class F>
void chunks(const Tensor& h, const Tensor& w, int64_t chunk, F f) {
  for (int64_t a = 0; a < h.size(0); a += chunk) {
    int64_t n = std::min(chunk, h.size(0) - a);
    f(a, n, linear_cpu(h.narrow(0, a, n), w, std::nullopt));
  }
}

struct Scores {
  Tensor logp, entropy, stats;  // [N,K], [N], [N,2]: what row_stats gives
};

Scores head_forward(const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t, double softcap, int64_t chunk) {
  check_head(h, w, ids, inv_t, chunk);
  const RowKernels& kernels = row_kernels(is_half(h, "h"));
  int64_t n = h.size(0), v = w.size(0), k = ids.size(1);
  auto f32 = h.options().dtype(at::kFloat);
  Scores s = {at::empty({n, k}, f32), at::empty({n}, f32), at::empty({n, 2}, f32)};
  float *logp = s.logp.data_ptr<float>(), *entropy = s.entropy.data_ptr<float>(), *stats = s.stats.data_ptr<float>();
  const float* it = inv_t.data_ptr<float>();
  const int64_t* id = ids.data_ptr<int64_t>();
  chunks(h, w, chunk, [&](int64_t a, int64_t num, const Tensor& l) {
    at::parallel_for(a, a + num, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++) {
        const void* row = element(l, (r - a) * v);
        kernels.row_stats(row, v, it[r], float(softcap), stats + 2 * r, entropy + r, nullptr, nullptr);
        for (int64_t j = r * k; j < (r + 1) * k; j++) logp[j] = kernels.row_logp(row, id[j], it[r], float(softcap), stats + 2 * r);
      }
    });
  });
  return s;
}

std::tuple<Tensor, Tensor> head_backward(const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t, const Scores& s,
                                         double softcap, int64_t chunk, const Tensor& dlogp, const Tensor& dentropy, bool want_dw) {
  bool half = is_half(h, "h");
  const RowKernels& kernels = row_kernels(half);
  int64_t v = w.size(0), k = ids.size(1);
  Tensor dh = at::empty(h.sizes(), h.options()), dw;
  const float *it = inv_t.data_ptr<float>(), *stats = s.stats.data_ptr<float>(), *entropy = s.entropy.data_ptr<float>(),
              *gl = dlogp.data_ptr<float>(), *ge = dentropy.data_ptr<float>();
  const int64_t* id = ids.data_ptr<int64_t>();
  chunks(h, w, chunk, [&](int64_t a, int64_t num, Tensor l) {
    at::parallel_for(a, a + num, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; r++)
        kernels.row_backward(element(l, (r - a) * v), v, it[r], float(softcap), stats + 2 * r, entropy[r], id + r * k, int(k), gl + r * k,
                             ge[r]);
    });
    Tensor x = h.narrow(0, a, num), g = dh.narrow(0, a, num);
    g.copy_(product(l, w));
    if (!want_dw) return;
    Tensor part = product(l.t(), x);
    if (dw.defined())
      dw.add_(part);
    else  // several chunks add up in float32
      dw = num == h.size(0) ? part : part.to(at::kFloat);
  });
  return {dh, dw.defined() ? dw.to(w.scalar_type()) : want_dw ? at::zeros_like(w) : dw};
}

struct HeadFunction : torch::autograd::Function<HeadFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t,
                               double softcap, int64_t chunk) {
    Scores s = head_forward(h, w, ids, inv_t, softcap, chunk);
    ctx->save_for_backward({h, w, ids, inv_t, s.stats, s.entropy});
    ctx->saved_data["softcap"] = softcap;
    ctx->saved_data["chunk"] = chunk;
    return {s.logp, s.entropy};
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    auto s = ctx->get_saved_variables();
    Tensor dlogp = g[0].defined() ? g[0].contiguous() : at::zeros(s[2].sizes(), s[4].options());
    Tensor dentropy = g[1].defined() ? g[1].contiguous() : at::zeros_like(s[5]);
    auto [dh, dw] = head_backward(s[0], s[1], s[2], s[3], {Tensor(), s[5], s[4]}, ctx->saved_data["softcap"].toDouble(),
                                  ctx->saved_data["chunk"].toInt(), dlogp, dentropy, ctx->needs_input_grad(1));
    return {dh, dw, Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> lm_logp(const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t, double softcap,
                                   int64_t chunk) {
  Scores s = head_forward(h.contiguous(), w, ids.contiguous(), inv_t, softcap, chunk);
  return {s.logp, s.entropy};
}
std::tuple<Tensor, Tensor> lm_logp_autograd(const Tensor& h, const Tensor& w, const Tensor& ids, const Tensor& inv_t, double softcap,
                                            int64_t chunk) {
  if (!wants_grad(h, w)) return lm_logp(h, w, ids, inv_t, softcap, chunk);
  auto r = HeadFunction::apply(h.contiguous(), w, ids.contiguous(), inv_t, softcap, chunk);
  return {r[0], r[1]};
}

// The logits that lm_logp works with, in float32; no gradient.
Tensor softcap(const Tensor& l, double cap) {
  const RowKernels& kernels = row_kernels(is_half(l, "logits"));
  TORCH_CHECK(l.is_contiguous(), "logits must be contiguous");
  Tensor y = at::empty(l.sizes(), l.options().dtype(at::kFloat));
  at::parallel_for(0, l.numel(), 4096, [&](int64_t a, int64_t b) {
    kernels.softcap(element(l, a), b - a, float(cap), y.data_ptr<float>() + a);
  });
  return y;
}

// One id per row at quantile u of softmax(logits·inv_t), of which cuts leave (top-k, top-p, min-p; 0 is off), or the greedy one where
// inv_t is 0; -1 where logits are NaN or infinite. Its log-prob, and what row_stats gives, are of the distribution before cuts.
std::tuple<Tensor, Tensor, Tensor> sample(const Tensor& l, const Tensor& inv_t, const Tensor& u, const c10::optional<Tensor>& cuts) {
  const RowKernels& kernels = row_kernels(is_half(l, "logits"));
  TORCH_CHECK(l.dim() == 2 && l.is_contiguous() && l.size(1) > 0 && l.size(1) < INT32_MAX - kRun,
              "logits must be contiguous [rows, vocabulary], not ", l.sizes());
  int64_t n = inv_t.numel(), v = l.size(1);
  TORCH_CHECK(inv_t.scalar_type() == at::kFloat && inv_t.dim() == 1 && inv_t.is_contiguous() && n <= l.size(0),
              "inv_t must be contiguous float32 of at most ", l.size(0), " rows");
  TORCH_CHECK(u.scalar_type() == at::kDouble && u.sizes() == inv_t.sizes() && u.is_contiguous(), "u must be contiguous float64 of ", n,
              " rows");
  bool some = cuts && cuts->defined();
  TORCH_CHECK(!some || (cuts->scalar_type() == at::kDouble && cuts->is_contiguous() && cuts->sizes() == at::IntArrayRef({n, 3})),
              "cuts must be contiguous float64 [", n, ",3]");
  auto f32 = l.options().dtype(at::kFloat);
  Tensor ids = at::empty({n}, l.options().dtype(at::kLong)), logp = at::empty({n}, f32), stats = at::empty({n, 2}, f32);
  at::parallel_for(0, n, 1, [&](int64_t a, int64_t b) {
    std::vector<double> runs(v / kRun + 1);
    std::unique_ptr<float[]> lists(some ? new float[3 * (v + 16)] : nullptr);
    for (int64_t r = a; r < b; r++) {
      const double* cut = some ? cuts->data_ptr<double>() + 3 * r : nullptr;
      ids.data_ptr<int64_t>()[r] =
          kernels.row_sample(element(l, r * v), v, inv_t.data_ptr<float>()[r], u.data_ptr<double>()[r],
                             cut && (cut[0] > 0 || (cut[1] > 0 && cut[1] < 1) || cut[2] > 0) ? cut : nullptr, runs.data(), lists.get(),
                             stats.data_ptr<float>() + 2 * r, logp.data_ptr<float>() + r);
    }
  });
  return {ids, logp, stats};
}

}  // namespace

void register_attention_cpu(torch::Library& m);
void register_attention_autograd(torch::Library& m);
void register_linear_cpu(torch::Library& m);
void register_linear_autograd(torch::Library& m);
void register_pointwise_cpu(torch::Library& m);
void register_pointwise_autograd(torch::Library& m);

}  // namespace molt

TORCH_LIBRARY(molt, m) {
  m.def("attention(Tensor q, Tensor k, Tensor v, Tensor rows, Tensor seqs, Tensor ranges, float scale, float softcap) -> (Tensor, Tensor)");
  m.def(
      "attention_backward(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, Tensor rows, Tensor seqs, Tensor ranges, "
      "float scale, float softcap) -> (Tensor, Tensor, Tensor)");
  m.def("add_rms_norm(Tensor x, Tensor? r, Tensor w, float eps) -> (Tensor, Tensor)");
  m.def("linear(Tensor x, Tensor w, Tensor? b) -> Tensor");
  m.def("rotary(Tensor x, Tensor cos, Tensor sin) -> Tensor");
  m.def("act_mul(Tensor gate_up, bool gelu) -> Tensor");
  m.def("softcap(Tensor logits, float cap) -> Tensor");
  m.def("lm_logp(Tensor h, Tensor w, Tensor ids, Tensor inv_t, float softcap, int chunk) -> (Tensor, Tensor)");
  m.def("sample(Tensor logits, Tensor inv_t, Tensor u, Tensor? cuts=None) -> (Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(molt, CPU, m) {
  molt::register_attention_cpu(m);
  molt::register_linear_cpu(m);
  molt::register_pointwise_cpu(m);
  m.impl("lm_logp", molt::lm_logp);
  m.impl("softcap", molt::softcap);
  m.impl("sample", molt::sample);
}
TORCH_LIBRARY_IMPL(molt, AutogradCPU, m) {
  molt::register_attention_autograd(m);
  molt::register_linear_autograd(m);
  molt::register_pointwise_autograd(m);
  m.impl("lm_logp", molt::lm_logp_autograd);
}
TORCH_LIBRARY_IMPL(molt, CompositeImplicitAutograd, m) { m.impl("linear", at::linear); }  // on any other device
