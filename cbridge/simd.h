// Sixteen lanes of float32 as a GCC vector type, loads and stores of float32 and bfloat16, and e^x. Included by the kernel files only,
// which are compiled once per instruction set: everything here has internal linkage. Every sum has an order fixed per row.
#pragma once
#include <math.h>
#include <string.h>
#include "kernels.h"

namespace molt {
namespace {

typedef float V __attribute__((vector_size(64), aligned(4)));
typedef int32_t VI __attribute__((vector_size(64)));
typedef uint32_t VU __attribute__((vector_size(64)));
typedef uint16_t VH __attribute__((vector_size(32), aligned(2)));
typedef uint16_t bf16;
#if defined(__AVX2__)
constexpr int kParts = 2;  // registers that hold a V
#else
constexpr int kParts = 4;
#endif

inline V splat(float x) { return x - V{}; }
inline V load(const float* p) { return *(const V*)p; }
inline void store(float* p, V v) { *(V*)p = v; }
inline V load(const bf16* p) { return (V)(__builtin_convertvector(*(const VH*)p, VU) << 16); }
inline void store(bf16* p, V v) {
  VU b = (VU)v;
  VU rounded = (b + 0x7fff + ((b >> 16) & 1)) >> 16;
  *(VH*)p = __builtin_convertvector(v == v ? rounded : (b >> 16 | 0x40), VH);
}
inline float get(const float* p) { return *p; }
inline float get(const bf16* p) {
  uint32_t b = uint32_t(*p) << 16;
  float f;
  memcpy(&f, &b, 4);
  return f;
}

// Sixteen elements, or the rest of a row: what is missing is zero.
struct Sixteen {};
template <class T>
inline V load(const T* p, Sixteen) { return load(p); }
template <class T>
inline void store(T* p, V v, Sixteen) { store(p, v); }
template <class T>
inline V load(const T* p, int64_t num) {
  T part[16] = {};
  memcpy(part, p, num * sizeof(T));
  return load(part);
}
template <class T>
inline void store(T* p, V v, int64_t num) {
  T part[16];
  store(part, v);
  memcpy(p, part, num * sizeof(T));
}
template <class F>
inline void by16(int n, F f) {  // f(first, how many)
  int c = 0;
  for (; c + 16 <= n; c += 16) f(c, Sixteen{});
  if (c < n) f(c, int64_t(n - c));
}

// a < b ? yes : no, in parts as wide as the registers: GCC takes comparisons of wider vectors apart into single lanes.
inline V less(V a, V b, V yes, V no) {
#if defined(__AVX512F__)
  return a < b ? yes : no;
#else
  typedef float Part __attribute__((vector_size(sizeof(V) / kParts)));
  union Parts {
    V v;
    Part p[kParts];
  } x = {a}, y = {b}, s = {yes}, n = {no};
  for (int i = 0; i < kParts; i++) n.p[i] = x.p[i] < y.p[i] ? s.p[i] : n.p[i];
  return n.v;
#endif
}
inline V vmax(V a, V b) { return less(b, a, a, b); }
inline float sum(V v) {  // a fixed tree
  float t[8];
  for (int i = 0; i < 8; i++) t[i] = v[i] + v[i + 8];
  return ((t[0] + t[4]) + (t[2] + t[6])) + ((t[1] + t[5]) + (t[3] + t[7]));
}

// Sixteen vectors as the rows of a matrix become its columns.
inline void turn(V* a) {
  V t[16];
  for (int s = 0; s < 4; s++, memcpy(a, t, sizeof t))
    for (int i = 0; i < 8; i++) {
      t[2 * i] = __builtin_shuffle(a[i], a[i + 8], VI{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
      t[2 * i + 1] = __builtin_shuffle(a[i], a[i + 8], VI{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
    }
}

inline int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most_of(int64_t a, int64_t b) { return a < b ? b : a; }

// Apart: a loop with lanes taken one by one keeps its vectors in memory.
__attribute__((noinline, cold)) V cap(V x, float softcap) {
  for (int j = 0; j < 16; j++) x[j] = softcap * tanhf(x[j] / softcap);
  return x;
}
inline V capped(V x, float softcap) { return softcap == 0 ? x : cap(x, softcap); }

// e^x within 2 ulp; below -87.3 it is 0, above 88.7 it is infinity.
inline V vexp(V x) {
  const float magic = 12582912.f;  // 1.5 * 2^23: adding it rounds to an integer
  V n = (x * 1.44269504f + magic) - magic;  // any number where x is outside; a NaN stays one
  V r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  V p = splat(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  VI bits = (VI)p + (__builtin_convertvector(n, VI) << 23);
  return less(x, splat(-87.3f), V{}, less(splat(88.72f), x, splat(INFINITY), (V)bits));
}
inline float exp1(float x) { return vexp(splat(x))[0]; }

}  // namespace
}  // namespace molt

// The name of this instruction set's table of kernels: kernels_avx2 and so on.
#define MOLT_CAT2(a, b) a##b
#define MOLT_CAT(a, b) MOLT_CAT2(a, b)
#define MOLT_TABLE(name) MOLT_CAT(name, MOLT_ISA)
