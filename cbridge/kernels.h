// The few kernels of our own, as plain functions on raw pointers: kernels_*.cc are compiled once per instruction set, and no ATen or
// STL header may reach it, or the linker could pick an inline function compiled for a processor that this one is not.
#pragma once
#include <stdint.h>

namespace molt {

constexpr int kTile = 64;      // keys per tile, aligned on the logical index
constexpr int kMaxIds = 256;   // ids scored in one row of logits
constexpr int kRun = 1024;     // logits whose exponentials are summed in float32 before they enter a double sum
constexpr int kBlockRows = 16; // query rows that share a tile's conversion to float32

// Rows of q, k, v may be strided; their heads and elements are contiguous.
struct Attention {
  const void *q, *k, *v;
  int64_t q_stride, k_stride, v_stride;  // elements from row to row
  int hq, hkv, d;
  const int32_t *rows, *seqs, *ranges;   // [N,3] (b, lo, hi); [B+1]; [R,2] (first slot, length)
  float scale, softcap;
  void* out;         // [N,hq,d]
  float* lse;        // [N,hq]
  // backward
  const void* dout;  // [N,hq,d]
  const float* delta;  // [N,hq], sum of dout*out
  void *dq, *dk, *dv;
};

// A run of slots inside one tile of 64 slots that sequence b sees as its logical keys from `logical` on.
struct Piece {
  int32_t lane, count, logical, row0, row1;
};

// Each table is for one element type, float32 or bfloat16; pointers to void are to such elements.
struct AttentionKernels {
  // Rows [row0,row1), at most kBlockRows, are of one sequence; for attention also one each of several, best of those that share keys: these
  // are fetched once. scratch: attention_scratch(hq/hkv, d) floats.
  void (*attention)(const Attention& a, int64_t row0, int64_t row1, int kv_head, float* scratch);
  void (*attention_dq)(const Attention& a, int64_t row0, int64_t row1, int kv_head, float* scratch);
  // dk and dv of the slots [slot0, slot0+count), summed over the rows that see them, ascending.
  void (*attention_dkv)(const Attention& a, int64_t slot0, int count, int kv_head, const Piece* pieces, int64_t num, float* scratch);
  void (*attention_delta)(const Attention& a, int64_t row0, int64_t row1, float* delta);
};

struct RowKernels {
  // sum = x + r (r may be null: then sum is not written), y = sum / rms(sum) * w; rstd float32.
  void (*add_rms_norm)(const void* x, const void* r, const void* w, float eps, int64_t n, int h, void* total, void* y, float* rstd);
  // dx = dsum (may be null) + gradient through the norm; dw [h] is added to.
  void (*rms_norm_backward)(const void* x, const void* w, const float* rstd, const void* dsum, const void* dy, int64_t n, int h, void* dx,
                            float* dw);
  // y = x rotated by (cos, ±sin) [n, d/2], halves (i, i+d/2) paired; x has a row stride, y is contiguous.
  void (*rotary)(const void* x, int64_t x_stride, const float* cos, const float* sin, bool back, int64_t n, int heads, int d,
                 void* y);
  void (*act_mul)(const void* gate_up, bool gelu, int64_t n, int inner, void* y);
  void (*act_mul_backward)(const void* gate_up, bool gelu, const void* dy, int64_t n, int inner, void* dgate_up);
  void (*softcap)(const void* x, int64_t n, float cap, float* y);
  // Of a row of logits times inv_t (capped first): stats, the largest logit and the log of the sum of e^((logit - largest)·inv_t), and the
  // entropy. Where not null, runs takes that sum by kRun logits, and e [v rounded up to 16] its terms.
  void (*row_stats)(const void* logits, int64_t v, float inv_t, float softcap, float* stats, float* entropy, double* runs, float* e);
  float (*row_logp)(const void* logits, int64_t id, float inv_t, float softcap, const float* stats);
  // logits become their gradient, given those of K log-probs and of the entropy.
  void (*row_backward)(void* logits, int64_t v, float inv_t, float softcap, const float* stats, float entropy, const int64_t* ids, int k,
                       const float* dlogp, float dentropy);
  // The id at quantile u of the distribution, of which cut, where not null, leaves (top-k, top-p, min-p; 0 is off); inv_t = 0: the first of
  // the largest logits, log-prob at temperature 1. stats and log-prob are before the cut. -1 where logits are NaN or infinite.
  // runs [v / kRun + 1] and, for a cut, lists [3 * (v + 16)] are scratch.
  int64_t (*row_sample)(const void* logits, int64_t v, float inv_t, double u, const double* cut, double* runs, float* lists, float* stats,
                        float* logp);
};

struct ProductKernels {
  // y[i·ldy + j] = x_i · w_j + b_j (b may be null), for m rows of x, as pack leaves them, and n of w; k elements each.
  void (*product)(const float* x, const void* w, const void* b, int64_t m, int64_t n, int64_t k, void* y, int64_t ldy, float* scratch);
  void (*pack)(const void* x, int64_t m, int64_t k, float* packed);  // up to 16 rows
  int unit;                                                          // elements in what pack makes 32 bits of
};
constexpr int kPack = 16;
inline int64_t packed_row(int unit, int64_t k) { return (k + 16 * unit - 1) / (16 * unit) * 16; }
constexpr int64_t kProductScratch = 48;  // packed rows

inline int64_t attention_scratch(int group, int d) {
  int64_t dp = (d + 15) / 16 * 16, m = int64_t(kBlockRows) * group;
  return 4 * kTile * dp + 3 * m * dp + 2 * m + 8 * kTile + 64;
}

// By instruction set, [0] for float32 and [1] for bfloat16.
extern const AttentionKernels attention_base[2], attention_avx2[2], attention_avx512[2];
extern const ProductKernels product_base[2], product_avx2[2], product_avx512[2], product_avx512bf16[2], product_amx[2];
extern const RowKernels rows_base[2], rows_avx2[2], rows_avx512[2];

}  // namespace molt
