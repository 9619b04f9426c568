// Attention over key ranges, forward and backward, one tile of 64 keys at a time.
#include "simd.h"

namespace molt {
namespace {

inline int padded(int d) { return (d + 15) & ~15; }

// s[0..64) = q · keys, kt [d][64]: the one routine for one row and many.
__attribute__((noinline)) void scores(const float* q, const float* kt, int d, V* s) {
  V a[4] = {};
  for (int i = 0; i < d; i++)
    for (int c = 0; c < 4; c++) a[c] += q[i] * load(kt + i * kTile + 16 * c);
  for (int c = 0; c < 4; c++) s[c] = a[c];
}

// scores of x against kt and of y against vt: two chains of sums at once hide the latency of each other.
__attribute__((noinline)) void scores2(const float* x, const float* kt, const float* y, const float* vt, int d, V* s, V* t) {
  V a[4] = {}, b[4] = {};
  for (int i = 0; i < d; i++) {
    const float *k = kt + i * kTile, *v = vt + i * kTile;
    for (int c = 0; c < 4; c++) a[c] += x[i] * load(k + 16 * c), b[c] += y[i] * load(v + 16 * c);
  }
  for (int c = 0; c < 4; c++) s[c] = a[c], t[c] = b[c];
}

// acc[0..dp) += sum over lanes j, ascending, of p[j] * m[j][0..dp).
template <int N>
inline void accumulate(const float* p, const float* m, int dp, int j0, int j1, float* acc) {
  V a[N];
  for (int c = 0; c < N; c++) a[c] = load(acc + 16 * c);
  for (int j = j0; j < j1; j++)
    for (int c = 0; c < N; c++) a[c] += p[j] * load(m + j * dp + 16 * c);
  for (int c = 0; c < N; c++) store(acc + 16 * c, a[c]);
}
__attribute__((noinline)) void accumulate(const float* p, const float* m, int dp, int j0, int j1, float* acc) {
  int c = 0;
  for (; c + 64 <= dp; c += 64) accumulate<4>(p, m + c, dp, j0, j1, acc + c);
  for (; c < dp; c += 16) accumulate<1>(p, m + c, dp, j0, j1, acc + c);
}

// m[lane][0..d) += w[lane] * x for up to four x in turn: gradients of keys and values.
__attribute__((noinline)) void outer(const float* const* w, const float* const* x, int num, int dp, int j0, int j1, float* m) {
  for (int j = j0; j < j1; j++)
    for (int c = 0; c < dp; c += 16) {
      V a = load(m + j * dp + c);
      for (int i = 0; i < num; i++) a += w[i][j] * load(x[i] + c);
      store(m + j * dp + c, a);
    }
}

// Rows j0 to j1 of a tile as float32: plain [64][dp], and turned [dp][64] with zeros in all other lanes.
template <class T>
inline void unpack(const T* const* rows, int d, int dp, int j0, int j1, float* plain, float* turned) {
  for (int j = j0; plain && j < j1; j++)
    by16(d, [&](int i, auto num) { store(plain + j * dp + i, load(rows[j] + i, num)); });
  for (int j = 0; turned && j < kTile; j += 16) {
    const bool all = j >= j0 && j + 16 <= j1;
    by16(d, [&](int i, auto num) {
      V a[16];
      for (int r = 0; r < 16; r++) a[r] = all || (j + r >= j0 && j + r < j1) ? load(rows[j + r] + i, num) : V{};
      if (all || (j < j1 && j + 16 > j0)) turn(a);
      for (int r = 0; r < 16; r++) store(turned + (i + r) * kTile + j, a[r]);
    });
  }
}

// Walks a sequence's ranges: the slot of logical key j, asked for in ascending order.
struct Walk {
  const int32_t *next, *range = nullptr;
  int32_t first = 0, length = 0;  // logical index of the range's first key, keys in it
  explicit Walk(const Attention& a, int32_t b) : next(a.ranges + 2 * a.seqs[b]) {}
  int64_t slot(int32_t j) {
    while (j >= first + length) first += length, range = next, next += 2, length = range[1];
    return range[0] + (j - first);
  }
};

// The tile's keys lo..hi of kv head h as float32.
template <class T>
void fetch(const Attention& a, Walk& walk, int h, int32_t tile, int32_t lo, int32_t hi, float* kplain, float* kturned, float* vplain,
           float* vturned) {
  const int32_t first = tile * kTile;
  const int j0 = most_of(lo - first, 0), j1 = least_of(hi - first, kTile);
  const T *k[kTile], *v[kTile];
  for (int j = j0; j < j1; j++) {
    const int64_t slot = walk.slot(first + j);
    k[j] = (const T*)a.k + slot * a.k_stride + h * a.d;
    v[j] = (const T*)a.v + slot * a.v_stride + h * a.d;
    for (int i = 0; i < a.d; i += 64 / int(sizeof(T))) __builtin_prefetch(k[j] + i), __builtin_prefetch(v[j] + i);
  }
  unpack(k, a.d, padded(a.d), j0, j1, kplain, kturned);
  unpack(v, a.d, padded(a.d), j0, j1, vplain, vturned);
}

struct Bounds { int32_t b, lo, hi; };
inline Bounds bounds(const Attention& a, int64_t row0, int64_t row1) {
  Bounds r = {a.rows[3 * row0], INT32_MAX, 0};  // lo > hi: they see nothing
  for (int64_t n = row0; n < row1; n++) {
    const int32_t* x = a.rows + 3 * n;
    if (x[1] < x[2]) r.lo = least_of(r.lo, x[1]), r.hi = most_of(r.hi, x[2]);
  }
  return r;
}

// Leading tiles that rows of several sequences find in the same slots; rows of one sequence share all.
inline int32_t shared_tiles(const Attention& a, int64_t row0, int64_t row1) {
  const int32_t first = a.rows[3 * row0];
  int64_t least = INT32_MAX;
  for (int64_t n = row0 + 1; n < row1; n++) {
    const int32_t b = a.rows[3 * n];
    if (b == first) continue;
    const int32_t *p = a.ranges + 2 * a.seqs[first], *pe = a.ranges + 2 * a.seqs[first + 1], *q = a.ranges + 2 * a.seqs[b],
                  *qe = a.ranges + 2 * a.seqs[b + 1];
    int64_t keys = 0;
    for (; p < pe && q < qe && p[0] == q[0]; p += 2, q += 2) {
      keys += least_of(p[1], q[1]);
      if (p[1] != q[1]) break;
    }
    if (keys / kTile < least) least = keys / kTile;
  }
  return int32_t(least);
}

template <class T>
void load_rows(const T* src, int64_t stride, int d, int dp, int group, int64_t n, float scale, float* dst) {
  for (int64_t r = 0; r < n; r++)
    for (int g = 0; g < group; g++)
      by16(d, [&](int i, auto num) { store(dst + i, load(src + r * stride + g * d + i, num) * scale); }), dst += dp;
}

inline void mask(V* s, int j0, int j1, float value) {
  float* f = (float*)s;
  for (int j = 0; j < j0; j++) f[j] = value;
  for (int j = j1; j < kTile; j++) f[j] = value;
}

template <class T>
void attention(const Attention& a, int64_t row0, int64_t row1, int h, float* scratch) {
  int d = a.d, dp = padded(d), group = a.hq / a.hkv;
  int64_t m = (row1 - row0) * group;
  float *kt = scratch, *v = kt + kTile * dp, *q = v + kTile * dp, *acc = q + m * dp, *top = acc + m * dp, *total = top + m;
  load_rows((const T*)a.q + row0 * a.q_stride + h * group * d, a.q_stride, d, dp, group, row1 - row0, a.scale, q);
  memset(acc, 0, m * dp * 4);
  for (int64_t i = 0; i < m; i++) top[i] = -INFINITY, total[i] = 0;
  auto see = [&](int64_t n0, int64_t n1, int32_t first, int32_t end) {  // rows n0 to n1 see the tiles from first to before end
    Bounds r = bounds(a, n0, n1);
    Walk walk(a, r.b);
    for (int32_t tile = most_of(first, r.lo / kTile); tile < end && tile * kTile < r.hi; tile++) {
      fetch<T>(a, walk, h, tile, r.lo, r.hi, nullptr, kt, v, nullptr);
      for (int64_t i = (n0 - row0) * group; i < (n1 - row0) * group; i++) {
        const int32_t* row = a.rows + 3 * (row0 + i / group);
        const int j0 = most_of(row[1] - tile * kTile, 0), j1 = least_of(row[2] - tile * kTile, kTile);
        if (j0 >= j1) continue;
        V s[4];
        scores(q + i * dp, kt, d, s);
        for (int c = 0; c < 4; c++) s[c] = capped(s[c], a.softcap);
        mask(s, j0, j1, -INFINITY);
        V big = vmax(vmax(s[0], s[1]), vmax(s[2], s[3]));
        float best = top[i];
        for (int j = 0; j < 16; j++) best = big[j] > best ? big[j] : best;
        float keep = top[i] == -INFINITY ? 0 : exp1(top[i] - best);
        for (int c = 0; c < 4; c++) s[c] = vexp(s[c] - best);
        top[i] = best;
        total[i] = total[i] * keep + sum((s[0] + s[1]) + (s[2] + s[3]));
        float* o = acc + i * dp;
        for (int c = 0; c < dp; c += 16) store(o + c, load(o + c) * keep);
        accumulate((const float*)s, v, dp, j0, j1, o);
      }
    }
  };
  const int32_t shared = shared_tiles(a, row0, row1);
  see(row0, row1, 0, shared);
  for (int64_t n = row0; shared < INT32_MAX && n < row1; n++) see(n, n + 1, shared, INT32_MAX);
  for (int64_t i = 0; i < m; i++) {
    int64_t n = row0 + i / group, head = h * group + i % group;
    float inv = total[i] > 0 ? 1 / total[i] : 0;
    T* o = (T*)a.out + (n * a.hq + head) * d;
    by16(d, [&](int c, auto num) { store(o + c, load(acc + i * dp + c) * inv, num); });
    a.lse[n * a.hq + head] = total[i] > 0 ? top[i] + logf(total[i]) : -INFINITY;
  }
}

// p and ds of one row and tile from the recomputed scores: ds is the gradient of the scaled, uncapped score.
inline void row_gradient(const Attention& a, const float* q, const float* dout, float lse, float delta, const float* kt, const float* vt,
                         int j0, int j1, V* p, V* ds) {
  scores2(q, kt, dout, vt, a.d, p, ds);
  for (int c = 0; c < 4; c++) {
    p[c] = capped(p[c], a.softcap);
    V slope = splat(1);
    if (a.softcap != 0) slope = 1 - (p[c] / a.softcap) * (p[c] / a.softcap);
    p[c] = vexp(p[c] - lse);
    ds[c] = p[c] * (ds[c] - delta) * slope;
  }
  mask(p, j0, j1, 0);
  mask(ds, j0, j1, 0);
}

template <class T>
void attention_dq(const Attention& a, int64_t row0, int64_t row1, int h, float* scratch) {
  int d = a.d, dp = padded(d), group = a.hq / a.hkv;
  int64_t m = (row1 - row0) * group;
  float *kt = scratch, *vt = kt + kTile * dp, *k = vt + kTile * dp, *q = k + kTile * dp, *dout = q + m * dp, *acc = dout + m * dp;
  load_rows((const T*)a.q + row0 * a.q_stride + h * group * d, a.q_stride, d, dp, group, row1 - row0, a.scale, q);
  load_rows((const T*)a.dout + (row0 * a.hq + h * group) * d, a.hq * d, d, dp, group, row1 - row0, 1, dout);
  memset(acc, 0, m * dp * 4);
  Bounds r = bounds(a, row0, row1);
  Walk walk(a, r.b);
  for (int32_t tile = r.hi > 0 ? r.lo / kTile : 0; tile * kTile < r.hi; tile++) {
    fetch<T>(a, walk, h, tile, r.lo, r.hi, k, kt, nullptr, vt);
    for (int64_t i = 0; i < m; i++) {
      int64_t n = row0 + i / group, at = n * a.hq + h * group + i % group;
      const int j0 = most_of(a.rows[3 * n + 1] - tile * kTile, 0), j1 = least_of(a.rows[3 * n + 2] - tile * kTile, kTile);
      if (j0 >= j1) continue;
      V p[4], ds[4];
      row_gradient(a, q + i * dp, dout + i * dp, a.lse[at], a.delta[at], kt, vt, j0, j1, p, ds);
      accumulate((const float*)ds, k, dp, j0, j1, acc + i * dp);
    }
  }
  for (int64_t i = 0; i < m; i++) {
    T* o = (T*)a.dq + ((row0 + i / group) * a.hq + h * group + i % group) * d;
    by16(d, [&](int c, auto num) { store(o + c, load(acc + i * dp + c) * a.scale, num); });
  }
}

template <class T>
void attention_dkv(const Attention& a, int64_t slot0, int count, int h, const Piece* pieces, int64_t num, float* scratch) {
  int d = a.d, dp = padded(d), group = a.hq / a.hkv;
  float *kt = scratch, *vt = kt + kTile * dp, *dk = vt + kTile * dp, *dv = dk + kTile * dp, *q = dv + kTile * dp, *dout = q + 4 * dp,
        *ps = dout + 4 * dp, *dss = ps + 4 * kTile;
  memset(dk, 0, 2 * kTile * dp * 4);
  const T *k[kTile], *v[kTile];
  for (int j = 0; j < count; j++) {
    k[j] = (const T*)a.k + (slot0 + j) * a.k_stride + h * d;
    v[j] = (const T*)a.v + (slot0 + j) * a.v_stride + h * d;
  }
  unpack(k, d, dp, 0, count, (float*)nullptr, kt);
  unpack(v, d, dp, 0, count, (float*)nullptr, vt);
  for (const Piece* piece = pieces; piece < pieces + num; piece++)
    for (int64_t n = piece->row0; n < piece->row1; n++) {
      int j0 = most_of(a.rows[3 * n + 1] - piece->logical, 0), j1 = least_of(a.rows[3 * n + 2] - piece->logical, piece->count);
      if (j0 >= j1) continue;
      j0 += piece->lane, j1 += piece->lane;
      for (int g = 0; g < group; g += 4) {
        int some = group - g < 4 ? group - g : 4;
        int64_t head = h * group + g;
        load_rows((const T*)a.q + n * a.q_stride + head * d, 0, d, dp, some, 1, a.scale, q);
        load_rows((const T*)a.dout + (n * a.hq + head) * d, 0, d, dp, some, 1, 1, dout);
        const float *w[4], *x[4], *y[4], *z[4];
        for (int i = 0; i < some; i++) {
          V p[4], ds[4];
          int64_t at = n * a.hq + head + i;
          row_gradient(a, q + i * dp, dout + i * dp, a.lse[at], a.delta[at], kt, vt, j0, j1, p, ds);
          memcpy(ps + i * kTile, p, sizeof p);
          memcpy(dss + i * kTile, ds, sizeof ds);
          w[i] = ps + i * kTile, x[i] = dout + i * dp, y[i] = dss + i * kTile, z[i] = q + i * dp;
        }
        outer(w, x, some, dp, j0, j1, dv);
        outer(y, z, some, dp, j0, j1, dk);  // q carries the scale already
      }
    }
  for (int j = 0; j < count; j++) {
    T *ok = (T*)a.dk + ((slot0 + j) * a.hkv + h) * d, *ov = (T*)a.dv + ((slot0 + j) * a.hkv + h) * d;
    by16(d, [&](int c, auto num) { store(ok + c, load(dk + j * dp + c), num), store(ov + c, load(dv + j * dp + c), num); });
  }
}

template <class T>
void attention_delta(const Attention& a, int64_t row0, int64_t row1, float* delta) {
  for (int64_t i = row0 * a.hq; i < row1 * a.hq; i++) {
    const T *o = (const T*)a.out + i * a.d, *g = (const T*)a.dout + i * a.d;
    V s = {};
    by16(a.d, [&](int c, auto num) { s += load(o + c, num) * load(g + c, num); });
    delta[i] = sum(s);
  }
}

}  // namespace

#define TABLE(T) {attention<T>, attention_dq<T>, attention_dkv<T>, attention_delta<T>}
extern const AttentionKernels MOLT_TABLE(attention_)[2];
const AttentionKernels MOLT_TABLE(attention_)[2] = {TABLE(float), TABLE(bf16)};

}  // namespace molt
