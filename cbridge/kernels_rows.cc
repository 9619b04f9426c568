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
      for (int c = 0; c + 16 <= h; c += 16) store(total + c, load(x + c) + load(r + c));
      for (int c = h & ~15; c < h; c++) set(total + c, get(x + c) + get(r + c));
      z = total, total += h, r += h;
    }
    V s = {};
    for (int c = 0; c + 16 <= h; c += 16) s += load(z + c) * load(z + c);
    float t = sum(s);
    for (int c = h & ~15; c < h; c++) t += get(z + c) * get(z + c);
    float k = 1 / sqrtf(t / h + eps);
    rstd[i] = k;
    T rounded[16];  // the normalised value is rounded to T before the weight, as the reference does
    for (int c = 0; c + 16 <= h; c += 16) {
      store(rounded, load(z + c) * k);
      store(y + c, load((const T*)rounded) * load(w + c));
    }
    for (int c = h & ~15; c < h; c++) {
      set(rounded, get(z + c) * k);
      set(y + c, get(rounded) * get(w + c));
    }
  }
}

template <class T>
void rms_norm_backward(const void* in, const void* weight, const float* rstd, const void* dtotal, const void* dout, int64_t n, int h,
                       void* din, float* dw) {
  const T *x = (const T*)in, *w = (const T*)weight, *dsum = (const T*)dtotal, *dy = (const T*)dout;
  T* dx = (T*)din;
  for (int64_t i = 0; i < n; i++, x += h, dy += h, dx += h) {
    float k = rstd[i], t = 0;
    V s = {};
    for (int c = 0; c + 16 <= h; c += 16) {
      V g = load(dy + c), z = load(x + c);
      s += g * load(w + c) * z;
      store(dw + c, load(dw + c) + g * z * k);
    }
    t = sum(s);
    for (int c = h & ~15; c < h; c++) {
      t += get(dy + c) * get(w + c) * get(x + c);
      dw[c] += get(dy + c) * get(x + c) * k;
    }
    float m = t * k * k * k / h;
    for (int c = 0; c + 16 <= h; c += 16) {
      V v = load(dy + c) * load(w + c) * k - load(x + c) * m;
      if (dsum) v += load(dsum + c);
      store(dx + c, v);
    }
    for (int c = h & ~15; c < h; c++) {
      float v = get(dy + c) * get(w + c) * k - get(x + c) * m;
      set(dx + c, dsum ? v + get(dsum + c) : v);
    }
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
      int c = 0;
      for (; c + 16 <= half; c += 16) {
        V a = load(p + c), b = load(p + half + c), co = load(cos + c), si = load(sin + c) * sign;
        store(y + c, a * co - b * si);
        store(y + half + c, b * co + a * si);
      }
      for (; c < half; c++) {
        float a = get(p + c), b = get(p + half + c), si = sin[c] * sign;
        set(y + c, a * cos[c] - b * si);
        set(y + half + c, b * cos[c] + a * si);
      }
    }
}

// GELU by its tanh formula is g·sigmoid(z(g)), SiLU the same with z(g) = g; slope is dz/dg.
template <class F>
inline F logit(F g, bool gelu) {
  return gelu ? g * (1.5957691216f + 0.0713548162726f * g * g) : g;
}
template <class F>
inline F slope(F g, bool gelu) {
  return gelu ? 1.5957691216f + 0.2140644488178f * g * g : F{} + 1;
}

template <class T>
void act_mul(const void* gate_up, bool gelu, int64_t n, int inner, void* out) {
  const T* gu = (const T*)gate_up;
  T* y = (T*)out;
  for (int64_t i = 0; i < n; i++, gu += 2 * inner, y += inner) {
    int c = 0;
    for (; c + 16 <= inner; c += 16) {
      V g = load(gu + c);
      store(y + c, g / (1 + vexp(-logit(g, gelu))) * load(gu + inner + c));
    }
    for (; c < inner; c++) {
      float g = get(gu + c);
      set(y + c, g / (1 + exp1(-logit(g, gelu))) * get(gu + inner + c));
    }
  }
}

template <class T>
void act_mul_backward(const void* gate_up, bool gelu, const void* dout, int64_t n, int inner, void* dgate_up) {
  const T *gu = (const T*)gate_up, *dy = (const T*)dout;
  T* dgu = (T*)dgate_up;
  for (int64_t i = 0; i < n; i++, gu += 2 * inner, dgu += 2 * inner, dy += inner) {
    int c = 0;
    for (; c + 16 <= inner; c += 16) {
      V g = load(gu + c), u = load(gu + inner + c), e = load(dy + c), s = 1 / (1 + vexp(-logit(g, gelu)));
      store(dgu + c, e * u * s * (1 + g * slope(g, gelu) * (1 - s)));
      store(dgu + inner + c, e * g * s);
    }
    for (; c < inner; c++) {
      float g = get(gu + c), u = get(gu + inner + c), e = get(dy + c), s = 1 / (1 + exp1(-logit(g, gelu)));
      set(dgu + c, e * u * s * (1 + g * slope(g, gelu) * (1 - s)));
      set(dgu + inner + c, e * g * s);
    }
  }
}

inline V capped(V x, float softcap) {
  if (softcap != 0)
    for (int j = 0; j < 16; j++) x[j] = softcap * tanhf(x[j] / softcap);
  return x;
}

template <class T>
void softcap(const void* in, int64_t n, float cap, float* out) {
  for (int64_t i = 0; i < n; i++) out[i] = capped(splat(get((const T*)in + i)), cap)[0];
}

template <class T>
inline V tail(const T* x, int64_t left, float fill) {
  V v = splat(fill);
  for (int64_t j = 0; j < left; j++) v[j] = get(x + j);
  return v;
}

template <class T>
__attribute__((noinline)) float row_max(const T* x, int64_t v, float inv_t, float softcap) {
  V m = splat(-INFINITY);
  int64_t j = 0;
  for (; j + 16 <= v; j += 16) m = vmax(load(x + j), m);
  if (j < v) m = vmax(tail(x + j, v - j, -INFINITY), m);
  float best = m[0];
  for (int i = 1; i < 16; i++) best = m[i] > best ? m[i] : best;
  return capped(splat(best), softcap)[0] * inv_t;  // both are monotone
}

constexpr int64_t kRun = 1024;  // logits whose exponentials are summed in float32 before they enter the double sum

// Sum of e^z and of z·e^z over x[j0..j1), z = x·inv_t - max.
template <class T>
__attribute__((noinline)) void run_sum(const T* x, int64_t j0, int64_t j1, float inv_t, float softcap, float top, double* s, double* t) {
  V a = {}, b = {};
  int64_t j = j0;
  for (; j + 16 <= j1; j += 16) {
    V z = capped(load(x + j), softcap) * inv_t - top, e = vexp(z);
    a += e;
    b += e * z;
  }
  if (j < j1) {
    V z = capped(tail(x + j, j1 - j, 0), softcap) * inv_t - top, e = vexp(z);
    for (int64_t i = j1 - j; i < 16; i++) e[i] = 0;
    a += e;
    b += e * z;
  }
  *s = sum(a), *t = sum(b);
}

template <class T>
void row_stats(const void* logits, int64_t v, float inv_t, float softcap, float* lse, float* entropy) {
  const T* x = (const T*)logits;
  float top = row_max(x, v, inv_t, softcap);
  double s = 0, t = 0;
  for (int64_t j = 0; j < v; j += kRun) {
    double ds, dt;
    run_sum(x, j, j + kRun < v ? j + kRun : v, inv_t, softcap, top, &ds, &dt);
    s += ds, t += dt;
  }
  *lse = float(top + log(s));
  *entropy = float(log(s) - t / s);
}

template <class T>
float row_logp(const void* logits, int64_t id, float inv_t, float softcap, float lse) {
  return capped(splat(get((const T*)logits + id)), softcap)[0] * inv_t - lse;
}

template <class T>
void row_backward(void* logits, int64_t v, float inv_t, float softcap, float lse, float entropy, const int64_t* ids, int k,
                  const float* dlogp, float dentropy) {
  T* x = (T*)logits;
  float g = 0, raw[kMaxIds];
  for (int i = 0; i < k; i++) g += dlogp[i], raw[i] = get(x + ids[i]);
  auto slope = [&](V y) { return softcap == 0 ? splat(inv_t) : inv_t * (1 - (y / softcap) * (y / softcap)); };
  for (int64_t j = 0; j < v; j += 16) {
    bool whole = j + 16 <= v;
    V y = capped(whole ? load(x + j) : tail(x + j, v - j, 0), softcap), lp = y * inv_t - lse, p = vexp(lp);
    V d = -p * (g + dentropy * (lp + entropy)) * slope(y);
    if (whole) {
      store(x + j, d);
    } else {
      for (int64_t i = 0; i < v - j; i++) set(x + j + i, d[i]);
    }
  }
  for (int i = 0; i < k; i++) set(x + ids[i], get(x + ids[i]) + dlogp[i] * slope(capped(splat(raw[i]), softcap))[0]);
}

template <class T>
void row_sample(const void* logits, int64_t v, float inv_t, double u, int64_t* id, float* logp) {
  const T* x = (const T*)logits;
  float lse, entropy, t = inv_t == 0 ? 1 : inv_t;
  row_stats<T>(x, v, t, 0, &lse, &entropy);
  float top = row_max(x, v, t, 0);
  int64_t pick = -1, last = 0;
  if (inv_t == 0) {
    for (int64_t j = 0; j < v && pick < 0; j++)
      if (get(x + j) == top) pick = j;
  } else {
    double left = u * exp(double(lse) - top);
    for (int64_t j0 = 0; j0 < v && pick < 0; j0 += kRun) {
      int64_t j1 = j0 + kRun < v ? j0 + kRun : v;
      double s, unused;
      run_sum(x, j0, j1, t, 0, top, &s, &unused);
      if (s > 0) last = j0;
      if (left >= s) {
        left -= s;
        continue;
      }
      for (int64_t j = j0; j < j1 && pick < 0; j++) {
        float e = exp1(get(x + j) * t - top);
        if (e > 0) last = j;
        if ((left -= e) < 0) pick = j;
      }
      if (pick < 0) pick = last;  // rounding left a crumb: the last id of the run that has a probability
    }
    if (pick < 0)  // u was within rounding of 1
      for (int64_t j = last; j < v && j < last + kRun; j++)
        if (exp1(get(x + j) * t - top) > 0) pick = j;
  }
  *id = pick < 0 ? 0 : pick;
  *logp = row_logp<T>(x, *id, t, 0, lse);
}

}  // namespace

#define TABLE(T) {add_rms_norm<T>, rms_norm_backward<T>, rotary<T>, act_mul<T>, act_mul_backward<T>, softcap<T>, row_stats<T>, \
                  row_logp<T>, row_backward<T>, row_sample<T>}
extern const RowKernels MOLT_TABLE(rows_)[2];
const RowKernels MOLT_TABLE(rows_)[2] = {TABLE(float), TABLE(bf16)};

}  // namespace molt
