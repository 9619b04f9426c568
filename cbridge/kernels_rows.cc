// Norm, rotary and activation of rows of hidden states, and what is read off rows of logits.
#include "simd.h"

namespace molt {
namespace {

template <class T>
void add_rms_norm(const void* in, const void* add, const void* weight, float eps, int64_t n, int h, void* out_total, void* out,
                  float* rstd) {
  const T *x = (const T*)in, *r = (const T*)add, *w = (const T*)weight;
  T *total = (T*)out_total, *y = (T*)out;
  for (int64_t i = 0; i < n; i++, x += h, y += h) {
    const T* z = x;
    if (r) {
      by16(h, [&](int c, auto num) { store(total + c, load(x + c, num) + load(r + c, num), num); });
      z = total, total += h, r += h;
    }
    V s = {};
    by16(h, [&](int c, auto num) { s += load(z + c, num) * load(z + c, num); });
    const float k = 1 / sqrtf(sum(s) / h + eps);
    rstd[i] = k;
    by16(h, [&](int c, auto num) {
      T rounded[16];  // the normalised value is rounded to T before the weight, as the reference does
      store(rounded, load(z + c, num) * k);
      store(y + c, load(rounded) * load(w + c, num), num);
    });
  }
}

template <class T>
void rms_norm_backward(const void* in, const void* weight, const float* rstd, const void* dtotal, const void* dout, int64_t n, int h,
                       void* din, float* dw) {
  const T *x = (const T*)in, *w = (const T*)weight, *dsum = (const T*)dtotal, *dy = (const T*)dout;
  T* dx = (T*)din;
  for (int64_t i = 0; i < n; i++, x += h, dy += h, dx += h) {
    const float k = rstd[i];
    V s = {};
    by16(h, [&](int c, auto num) {
      V g = load(dy + c, num), z = load(x + c, num);
      s += g * load(w + c, num) * z;
      store(dw + c, load(dw + c, num) + g * z * k, num);
    });
    const float m = sum(s) * k * k * k / h;
    by16(h, [&](int c, auto num) {
      V v = load(dy + c, num) * load(w + c, num) * k - load(x + c, num) * m;
      if (dsum) v += load(dsum + c, num);
      store(dx + c, v, num);
    });
    if (dsum) dsum += h;
  }
}

template <class T>
void rotary(const void* in, int64_t stride, const float* cos, const float* sin, bool back, int64_t n, int heads, int d, void* out) {
  const T* x = (const T*)in;
  T* y = (T*)out;
  int half = d / 2;
  float sign = back ? -1 : 1;
  for (int64_t i = 0; i < n; i++, cos += half, sin += half)
    for (int k = 0; k < heads; k++, y += d) {
      const T* p = x + i * stride + k * d;
      by16(half, [&](int c, auto num) {
        V a = load(p + c, num), b = load(p + half + c, num), co = load(cos + c, num), si = load(sin + c, num) * sign;
        store(y + c, a * co - b * si, num);
        store(y + half + c, b * co + a * si, num);
      });
    }
}

// GELU by its tanh formula is g·sigmoid(z(g)), SiLU the same with z(g) = g; slope is dz/dg.
inline V logit(V g, bool gelu) { return gelu ? g * (1.5957691216f + 0.0713548162726f * g * g) : g; }
inline V slope(V g, bool gelu) { return gelu ? 1.5957691216f + 0.2140644488178f * g * g : splat(1); }

template <class T>
void act_mul(const void* gate_up, bool gelu, int64_t n, int inner, void* out) {
  const T* gu = (const T*)gate_up;
  T* y = (T*)out;
  for (int64_t i = 0; i < n; i++, gu += 2 * inner, y += inner) {
    by16(inner, [&](int c, auto num) {
      V g = load(gu + c, num);
      store(y + c, g / (1 + vexp(-logit(g, gelu))) * load(gu + inner + c, num), num);
    });
  }
}

template <class T>
void act_mul_backward(const void* gate_up, bool gelu, const void* dout, int64_t n, int inner, void* dgate_up) {
  const T *gu = (const T*)gate_up, *dy = (const T*)dout;
  T* dgu = (T*)dgate_up;
  for (int64_t i = 0; i < n; i++, gu += 2 * inner, dgu += 2 * inner, dy += inner) {
    by16(inner, [&](int c, auto num) {
      V g = load(gu + c, num), u = load(gu + inner + c, num), e = load(dy + c, num), s = 1 / (1 + vexp(-logit(g, gelu)));
      store(dgu + c, e * u * s * (1 + g * slope(g, gelu) * (1 - s)), num);
      store(dgu + inner + c, e * g * s, num);
    });
  }
}

template <class T>
void softcap(const void* in, int64_t n, float cap, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = capped(splat(get((const T*)in + i)), cap)[0];
}

template <class T>  // apart, as is cap
__attribute__((noinline, cold)) V last(const T* x, int64_t num, float softcap) {
  V y = capped(load(x, num), softcap);
  for (int64_t i = num; i < 16; i++) y[i] = -INFINITY;
  return y;
}
// f takes the capped logits of [j, end), sixteen at a time; those past the end are -inf.
template <class T, class F>
inline void each(const T* x, int64_t j, int64_t end, float softcap, F f) {
  for (; softcap == 0 && j + 16 <= end; j += 16) f(j, load(x + j));
  for (; j + 16 <= end; j += 16) f(j, cap(load(x + j), softcap));
  if (j < end) f(j, last(x + j, end - j, softcap));
}

template <class T>
inline V lane_max(const T* x, int64_t j, int64_t end) {
  V m = splat(-INFINITY);
  each(x, j, end, 0, [&](int64_t, V y) __attribute__((always_inline)) { m = vmax(y, m); });
  return m;
}

// The log of a probability but for the sum: (y - top)·inv_t, which is exact to its own rounding however small the temperature. No lower
// than what e^z makes 0, lest 0·-inf be NaN.
inline V scaled(V y, float top, float inv_t) {
  V z = (y - top) * inv_t, low = splat(-88);
  return less(z, low, low, z);
}

struct Sums {
  double ones, rest, t;
};

// Over a run of logits: how many equal the largest, the sum of e^z of the others, and of z·e^z. Where the largest has nearly all the
// probability, the digits of the rest so stay. e, where not null, takes all e^z.
template <class T>
__attribute__((noinline)) Sums run_sums(const T* x, int64_t j0, int64_t end, float inv_t, float softcap, float top, float* e) {
  V a = {}, b = {}, c = {};
  each(x, j0, end, softcap, [&](int64_t j, V y) __attribute__((always_inline)) {
    V z = scaled(y, top, inv_t), p = vexp(z), other = less(z, V{}, p, z);
    a += p - other, b += other, c += p * z;
    if (e) store(e + j, p);
  });
  return {sum(a), sum(b), sum(c)};
}

template <class T>
void row_stats(const void* logits, int64_t v, float inv_t, float softcap, float* stats, float* entropy, double* runs, float* e) {
  const T* x = (const T*)logits;
  V m = lane_max(x, 0, v);
  float best = m[0];
  for (int i = 1; i < 16; i++) best = m[i] > best ? m[i] : best;
  float top = capped(splat(best), softcap)[0];  // it is monotone
  Sums all = {};
  for (int64_t j = 0; j < v; j += kRun) {
    Sums s = run_sums(x, j, least_of(v, j + kRun), inv_t, softcap, top, e);
    all.ones += s.ones, all.rest += s.rest, all.t += s.t;
    if (runs) runs[j / kRun] = s.ones + s.rest;
  }
  double log_sum = log1p(all.ones - 1 + all.rest);
  stats[0] = top, stats[1] = float(log_sum);
  *entropy = float(log_sum - all.t / (all.ones + all.rest));
}

template <class T>
float row_logp(const void* logits, int64_t id, float inv_t, float softcap, const float* stats) {
  float y = capped(splat(get((const T*)logits + id)), softcap)[0];
  return float(__builtin_fma(double(y) - stats[0], double(inv_t), -double(stats[1])));
}

template <class T>
void row_backward(void* logits, int64_t v, float inv_t, float softcap, const float* stats, float entropy, const int64_t* ids, int k,
                  const float* dlogp, float dentropy) {
  T* x = (T*)logits;
  float g = 0, raw[kMaxIds];
  for (int i = 0; i < k; i++) g += dlogp[i], raw[i] = get(x + ids[i]);
  auto slope = [&](V y) { return softcap == 0 ? splat(inv_t) : inv_t * (1 - (y / softcap) * (y / softcap)); };
  each(x, 0, v, softcap, [&](int64_t j, V y) __attribute__((always_inline)) {
    V lp = scaled(y, stats[0], inv_t) - stats[1], p = vexp(lp);
    V d = -p * (g + dentropy * (lp + entropy)) * slope(y);
    j + 16 <= v ? store(x + j, d) : store(x + j, d, v - j);
  });
  for (int i = 0; i < k; i++)
    store(x + ids[i], get(x + ids[i]) + dlogp[i] * slope(capped(splat(raw[i]), softcap)), 1);
}

// The first of n weights whose sum with those before it is above left, from which those before are taken. Where rounding leaves a crumb
// behind the last weight it is the last that is not 0, within which the end is then looked for.
template <class F>
inline int64_t walk(int64_t n, double* left, F weight) {
  int64_t last = 0;
  for (int64_t i = 0; i < n; i++) {
    double w = weight(i);
    if (*left < w) return i;
    if (w > 0) last = i;
    *left -= w;
  }
  *left = INFINITY;
  return last;
}

// The id at quantile u of weights, sixteen of which are e(j), and whose sums by runs are known.
template <class E>
int64_t pick(int64_t v, double u, const double* runs, E e) {
  double left = 0;
  int64_t n = (v + kRun - 1) / kRun;
  for (int64_t r = 0; r < n; r++) left += runs[r];
  left *= u;
  int64_t j = walk(n, &left, [&](int64_t r) { return runs[r]; }) * kRun, num = (v - j < kRun ? v - j + 15 : kRun) / 16;
  j += 16 * walk(num, &left, [&](int64_t i) { return sum(e(j + 16 * i)); });
  V last = e(j);
  return j + walk(16, &left, [&](int64_t i) { return last[i]; });
}

// The sum of the weights e, null: 1 each, of those y that are not below t.
double mass(const float* y, const float* e, int64_t n, float t) {
  double s = 0;
  for (int64_t j0 = 0; j0 < n; j0 += kRun) {
    V a = {}, at = splat(t);
    each(y, j0, least_of(n, j0 + kRun), 0, [&](int64_t j, V z) __attribute__((always_inline)) {
      a += less(z, at, V{}, e ? load(e + j) : splat(1));
    });
    s += sum(a);
  }
  return s;
}

// Float32 by order: the integer that a number is read as, those below 0 turned round.
int32_t order(float f) {
  const int32_t i = ((VI)splat(f))[0];
  return i ^ ((i >> 31) & 0x7fffffff);
}
float ordered(int32_t i) {
  return ((V)(VI{} + (i ^ ((i >> 31) & 0x7fffffff))))[0];
}

// The largest number, from least to the largest y, from which on the weights reach need; least where none does.
float bound(const float* y, const float* e, int64_t n, float least, float top, double need) {
  int64_t a = order(least), b = order(top + 0.f) + int64_t(1);  // -0 is 0
  while (b - a > 1) {
    int64_t mid = a + (b - a) / 2;
    (mass(y, e, n, ordered(int32_t(mid))) >= need ? a : b) = mid;
  }
  return ordered(int32_t(a));
}

// Makes lists of the logits y that (top-k, top-p, min-p; 0 is off) may leave, their weights e and ids, and 0 of the weights that they
// drop. Equal logits at the end of top-k all stay, at that of top-p those of the highest ids. It gives the lists' length.
template <class T>
int64_t truncate(const T* x, int64_t v, float top, float inv_t, const double* cut, double* runs, float* e, float* y, int32_t* ids) {
  bool top_k = cut[0] > 0 && cut[0] < v, top_p = cut[1] > 0 && cut[1] < 1;
  double total = 0, drop = 0;
  const float min_p = float(cut[2] < 1 ? cut[2] : 1);  // the largest always stays
  float floor = min_p;
  int64_t n = 0, num = (v + kRun - 1) / kRun;
  for (int64_t r = 0; r < num; r++) total += runs[r];
  float least = -INFINITY;
  if (top_k) {  // is at least the k-th largest of the largest in as many parts of the row
    int64_t parts = 0;
    for (int64_t j = 0; j < v; j += 256, parts += 16) store(y + parts, lane_max(x, j, least_of(v, j + 256)));
    if (cut[0] <= parts) least = bound(y, nullptr, parts, least, top, cut[0]);
    floor = 0;
  } else if (top_p && floor < (1 - cut[1]) * total / v / 2) {  // together less than 1 - p
    floor = (1 - cut[1]) * total / v / 2;
  }
  V lo = splat(least), low = splat(floor);
  each(x, 0, v, 0, [&](int64_t j0, V z) __attribute__((always_inline)) {
    if (sum(less(z, lo, V{}, less(load(e + j0), low, V{}, splat(1)))) == 0) return;
    for (int64_t j = j0; j < least_of(v, j0 + 16); j++) {
      float logit = get(x + j), p = e[j];
      y[n] = logit, e[n] = p, ids[n] = int32_t(j);
      n += int(logit >= least) & int(p >= floor);
    }
  });
  store(e + n, V{});
  if (top_k) least = bound(y, nullptr, n, least, top, cut[0]);
  if (top_p) {
    double need = cut[1] * (top_k ? mass(y, e, n, least) : total);
    least = bound(y, e, n, least, top, need);
    float weight = vexp(scaled(splat(least), top, inv_t))[0], next = ordered(order(least) + 1);
    drop = mass(y, nullptr, n, least) - mass(y, nullptr, n, next) - ceil((need - mass(y, e, n, next)) / weight);
  }
  for (int64_t j = 0; drop > 0; j++)
    if (y[j] == least) e[j] = 0, drop--;
  for (int64_t j = 0; j < n; j++) e[j] = (y[j] < least) | (e[j] < min_p) ? 0 : e[j];
  for (int64_t j = 0; j < n; j += kRun) runs[j / kRun] = mass(y + j, e + j, least_of(n - j, kRun), -INFINITY);
  return n;
}

template <class T>
int64_t row_sample(const void* logits, int64_t v, float inv_t, double u, const double* cut, double* runs, float* lists, float* stats,
                   float* logp) {
  const T* x = (const T*)logits;
  float entropy, t = inv_t == 0 ? 1 : inv_t, *e = lists, *y = lists + v + 16;
  if (inv_t == 0) cut = nullptr;
  row_stats<T>(x, v, t, 0, stats, &entropy, runs, cut ? e : nullptr);
  float top = stats[0];
  int64_t id = 0;
  *logp = NAN;
  if (!(stats[1] >= 0)) return -1;
  if (cut) {
    int32_t* ids = (int32_t*)(y + v + 16);
    id = ids[pick(truncate(x, v, top, t, cut, runs, e, y, ids), u, runs, [&](int64_t j) { return load(e + j); })];
  } else if (inv_t != 0) {
    id = pick(v, u, runs, [&](int64_t j) { return vexp(scaled(j + 16 <= v ? load(x + j) : last(x + j, v - j, 0), top, t)); });
  } else {
    while (get(x + id) != top) id += id % kRun == 0 && runs[id / kRun] < 1 ? kRun : 1;
  }
  *logp = row_logp<T>(x, id, t, 0, stats);
  return id;
}

}  // namespace

#define TABLE(T) {add_rms_norm<T>, rms_norm_backward<T>, rotary<T>, act_mul<T>, act_mul_backward<T>, softcap<T>, row_stats<T>, \
                  row_logp<T>, row_backward<T>, row_sample<T>}
extern const RowKernels MOLT_TABLE(rows_)[2];
const RowKernels MOLT_TABLE(rows_)[2] = {TABLE(float), TABLE(bf16)};

}  // namespace molt
