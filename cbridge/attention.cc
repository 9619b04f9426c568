// molt::attention and its backward: checks, work shared out to threads, autograd. The arithmetic is in kernels_attention.cc.
#include "ops.h"

#include <algorithm>
#include <memory>
#include <vector>

namespace molt {
namespace {

void check_rows(const Tensor& t, int64_t heads, int64_t d, const char* name) {
  TORCH_CHECK(t.dim() == 3 && t.size(2) == d && (heads < 0 || t.size(1) == heads), name, " must be [rows, heads, ", d, "], not ",
              t.sizes());
  TORCH_CHECK(t.numel() == 0 || ((t.stride(2) == 1 || d == 1) && (t.stride(1) == d || t.size(1) == 1)), name,
              "'s heads must be contiguous within a row");
}

void check_ints(const Tensor& t, int64_t columns, const char* name) {
  TORCH_CHECK(t.scalar_type() == at::kInt && t.is_contiguous() && (columns ? t.dim() == 2 && t.size(1) == columns : t.dim() == 1), name,
              " must be contiguous int32 of ", columns ? std::to_string(columns) + " columns" : "one dimension");
}

// Everything that the kernels use as an index: a row's sequence, the keys of its window, the slots of those.
void check_bounds(const Attention& a, int64_t n, int64_t num_seqs, int64_t num_ranges, int64_t slots) {
  int64_t seq = -1, first = 0, length = 0;  // of the last row's sequence; keys below first have no slots
  for (int64_t i = 0; i < n; i++) {
    const int32_t *row = a.rows + 3 * i, lo = row[1], hi = row[2];
    TORCH_CHECK(row[0] >= 0 && row[0] < num_seqs, "row ", i, " is of sequence ", row[0], ", seqs has ", num_seqs);
    if (row[0] != seq) {
      seq = row[0], first = length = 0;
      const int32_t begin = a.seqs[seq], end = a.seqs[seq + 1];
      TORCH_CHECK(begin >= 0 && begin <= end && end <= num_ranges, "sequence ", seq, " has ranges ", begin, " to ", end, " of ",
                  num_ranges);
      for (int32_t r = begin; r < end; r++) {
        const int64_t start = a.ranges[2 * r], size = a.ranges[2 * r + 1];
        TORCH_CHECK(start >= -1 && size >= 0 && (start < 0 || start + size <= slots), "range ", r, " is slots ", start, " to ",
                    start + size, " of ", slots);
        length += size;
        if (start < 0) first = length;
      }
      TORCH_CHECK(length <= INT32_MAX - kTile, "sequence ", seq, " has ", length, " keys");
    }
    TORCH_CHECK(lo == hi || (first <= lo && lo < hi && hi <= length), "row ", i, " sees keys ", lo, " to ", hi, "; sequence ", seq,
                " has ", first, " to ", length);
  }
}

Attention arguments(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows, const Tensor& seqs, const Tensor& ranges,
                    double scale, double softcap) {
  check_rows(q, -1, q.size(-1), "q");
  check_rows(k, -1, q.size(2), "k");
  check_rows(v, k.size(1), q.size(2), "v");
  TORCH_CHECK(k.size(1) > 0 && q.size(2) > 0 && q.size(1) % k.size(1) == 0, "the query heads (", q.size(1),
              ") must be a multiple of the key heads (", k.size(1), ")");
  TORCH_CHECK(k.size(0) == v.size(0), "k and v must have the same rows");
  TORCH_CHECK(k.scalar_type() == q.scalar_type() && v.scalar_type() == q.scalar_type(), "q, k and v must have one dtype");
  check_ints(rows, 3, "rows");
  check_ints(seqs, 0, "seqs");
  check_ints(ranges, 2, "ranges");
  TORCH_CHECK(rows.size(0) == q.size(0), "rows must have a line for each of the ", q.size(0), " query rows, not ", rows.size(0));
  Attention a = {};
  a.q = q.data_ptr(), a.k = k.data_ptr(), a.v = v.data_ptr();
  a.q_stride = q.stride(0), a.k_stride = k.stride(0), a.v_stride = v.stride(0);
  a.hq = int(q.size(1)), a.hkv = int(k.size(1)), a.d = int(q.size(2));
  a.rows = rows.data_ptr<int32_t>(), a.seqs = seqs.data_ptr<int32_t>(), a.ranges = ranges.data_ptr<int32_t>();
  a.scale = float(scale), a.softcap = float(softcap);
  check_bounds(a, q.size(0), seqs.size(0) - 1, ranges.size(0), k.size(0));
  return a;
}

// Rows of one sequence, at most kBlockRows to a block; where share is set, also up to kShare sequences with a row each that have a tile of
// keys in common.
constexpr int64_t kShare = 8;
std::vector<std::pair<int64_t, int64_t>> blocks(const Attention& a, int64_t n, bool share) {
  auto alone = [&](int64_t r) { return r + 1 == n || a.rows[3 * r] != a.rows[3 * r + 3]; };  // given that it is its sequence's first
  auto common = [&](int64_t r, int64_t e) {
    const int32_t *p = a.ranges + 2 * a.seqs[a.rows[3 * r]], *q = a.ranges + 2 * a.seqs[a.rows[3 * e]];
    return a.rows[3 * r + 2] > kTile && a.rows[3 * e + 2] > kTile && p[0] == q[0] && std::min(p[1], q[1]) >= kTile;
  };
  std::vector<std::pair<int64_t, int64_t>> out;
  for (int64_t r = 0; r < n;) {
    int64_t e = r + 1;
    while (e < n && e - r < kBlockRows && a.rows[3 * e] == a.rows[3 * r]) e++;
    if (share && e == r + 1)
      while (e < n && e - r < kShare && alone(e) && common(r, e)) e++;
    out.emplace_back(r, e);
    r = e;
  }
  return out;
}

template <class F>
void parallel(const Attention& a, int64_t items, F f) {
  at::parallel_for(0, items, 1, [&](int64_t begin, int64_t end) {
    std::unique_ptr<float[]> scratch(new float[attention_scratch(a.hq / a.hkv, a.d)]);
    for (int64_t i = begin; i < end; i++) f(i, scratch.get());
  });
}

template <class F>
void over_blocks(const Attention& a, int64_t n, bool share, F kernel) {
  auto todo = blocks(a, n, share);
  parallel(a, int64_t(todo.size()) * a.hkv, [&](int64_t i, float* scratch) {
    auto [r0, r1] = todo[i / a.hkv];
    kernel(a, r0, r1, int(i % a.hkv), scratch);
  });
}

std::tuple<Tensor, Tensor> attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows, const Tensor& seqs,
                                     const Tensor& ranges, double scale, double softcap) {
  Attention a = arguments(q, k, v, rows, seqs, ranges, scale, softcap);
  const AttentionKernels& kernels = attention_kernels(is_half(q, "q"));
  Tensor out = at::empty(q.sizes(), q.options()), lse = at::empty({q.size(0), q.size(1)}, q.options().dtype(at::kFloat));
  a.out = out.data_ptr(), a.lse = lse.data_ptr<float>();
  over_blocks(a, q.size(0), true, kernels.attention);
  return {out, lse};
}

// The pieces of every tile of 64 slots, ordered by their sequences' rows, so that sums over rows ascend.
std::vector<std::vector<Piece>> pieces(const Attention& a, int64_t n, int64_t slots) {
  std::vector<std::vector<Piece>> out((slots + kTile - 1) / kTile);
  for (int64_t r = 0; r < n;) {
    int32_t b = a.rows[3 * r];
    int64_t e = r + 1;
    while (e < n && a.rows[3 * e] == b) e++;
    int32_t logical = 0;
    for (int32_t i = a.seqs[b]; i < a.seqs[b + 1]; i++) {
      int32_t first = a.ranges[2 * i], length = a.ranges[2 * i + 1];
      for (int32_t done = 0; first >= 0 && done < length;) {
        int32_t slot = first + done, lane = slot % kTile, count = std::min(length - done, kTile - lane);
        out[slot / kTile].push_back({lane, count, logical + done, int32_t(r), int32_t(e)});
        done += count;
      }
      logical += length;
    }
    r = e;
  }
  return out;
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(const Tensor& dout, const Tensor& q, const Tensor& k, const Tensor& v,
                                                      const Tensor& out, const Tensor& lse, const Tensor& rows, const Tensor& seqs,
                                                      const Tensor& ranges, double scale, double softcap) {
  Attention a = arguments(q, k, v, rows, seqs, ranges, scale, softcap);
  const AttentionKernels& kernels = attention_kernels(is_half(q, "q"));
  Tensor g = dout.contiguous(), delta = at::empty_like(lse);
  check_like(out, q, "out");
  check_like(g, q, "dout");
  TORCH_CHECK(lse.scalar_type() == at::kFloat && lse.is_contiguous() && lse.numel() == q.size(0) * q.size(1) && out.is_contiguous(),
              "lse must be contiguous float32 [", q.size(0), ",", q.size(1), "], and out contiguous");
  a.dout = g.data_ptr(), a.out = out.data_ptr(), a.lse = lse.data_ptr<float>();
  int64_t n = q.size(0), slots = k.size(0);
  at::parallel_for(0, n, 16, [&](int64_t r0, int64_t r1) { kernels.attention_delta(a, r0, r1, delta.data_ptr<float>()); });
  a.delta = delta.data_ptr<float>();
  Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()), dv = at::empty(v.sizes(), v.options());
  a.dq = dq.data_ptr(), a.dk = dk.data_ptr(), a.dv = dv.data_ptr();
  over_blocks(a, n, false, kernels.attention_dq);
  auto seen = pieces(a, n, slots);
  parallel(a, int64_t(seen.size()) * a.hkv, [&](int64_t i, float* scratch) {
    int64_t tile = i / a.hkv, first = tile * kTile;
    int count = int(std::min<int64_t>(kTile, slots - first));
    kernels.attention_dkv(a, first, count, int(i % a.hkv), seen[tile].data(), int64_t(seen[tile].size()), scratch);
  });
  return {dq, dk, dv};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static variable_list forward(AutogradContext* ctx, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows,
                               const Tensor& seqs, const Tensor& ranges, double scale, double softcap) {
    auto [out, lse] = attention(q, k, v, rows, seqs, ranges, scale, softcap);
    ctx->save_for_backward({q, k, v, out, lse, rows, seqs, ranges});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["softcap"] = softcap;
    ctx->mark_non_differentiable({lse});
    return {out, lse};
  }
  static variable_list backward(AutogradContext* ctx, variable_list g) {
    if (!g[0].defined()) return variable_list(8);
    auto s = ctx->get_saved_variables();
    auto [dq, dk, dv] = attention_backward(g[0], s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], ctx->saved_data["scale"].toDouble(),
                                           ctx->saved_data["softcap"].toDouble());
    return {dq, dk, dv, Tensor(), Tensor(), Tensor(), Tensor(), Tensor()};
  }
};

std::tuple<Tensor, Tensor> attention_autograd(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& rows, const Tensor& seqs,
                                              const Tensor& ranges, double scale, double softcap) {
  if (!wants_grad(q, k, v)) return attention(q, k, v, rows, seqs, ranges, scale, softcap);
  auto r = AttentionFunction::apply(q, k, v, rows, seqs, ranges, scale, softcap);
  return {r[0], r[1]};
}

}  // namespace

void register_attention_cpu(torch::Library& m) {
  m.impl("attention", attention);
  m.impl("attention_backward", attention_backward);
}
void register_attention_autograd(torch::Library& m) { m.impl("attention", attention_autograd); }

}  // namespace molt
