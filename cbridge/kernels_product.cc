// y = x·wᵀ + b. An element of y is one chain of sums over k, ascending, so it depends on its row of x and its row of w only, however many
// rows there are. Weights are read as they lie, once, and turned in the cache, a few dozen rows at a time: at the speed of memory where
// rows of x are few.
#include "simd.h"
#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace molt {
namespace {

// One register. Sums of kRows rows of x times three registers of columns, those and an element of x fill the registers that there are.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kRows = 8;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kRows = 4;
#else
constexpr int kLanes = 4, kRows = 4;
#endif
constexpr int kColumns = 3 * kLanes;
typedef float L __attribute__((vector_size(4 * kLanes), aligned(4)));
typedef int32_t LI __attribute__((vector_size(4 * kLanes)));
typedef uint32_t LU __attribute__((vector_size(4 * kLanes)));
typedef uint16_t LH __attribute__((vector_size(2 * kLanes), aligned(2)));

// Operands are units of 32 bits: an element as float32, or a pair of bfloat16 where the processor multiplies those.
inline L units(const float* p) { return *(const L*)p; }
inline L mac(L a, L x, L w, const float*) { return a + x * w; }
#ifdef __AVX512BF16__
template <class T>
constexpr int kUnit = 4 / sizeof(T);  // elements
inline L units(const bf16* p) {
  L v;
  memcpy(&v, p, sizeof v);  // elements of another type
  return v;
}
inline L mac(L a, L x, L w, const bf16*) { return (L)_mm512_dpbf16_ps((__m512)a, (__m512bh)x, (__m512bh)w); }
#else
template <class T>
constexpr int kUnit = 1;
inline L units(const bf16* p) { return (L)(__builtin_convertvector(*(const LH*)p, LU) << 16); }
inline L mac(L a, L x, L w, const bf16*) { return a + x * w; }
#endif

// A register of units of a row that has so many elements left; what is missing is zero.
template <class T>
inline L units(const T* p, int64_t left) {
  if (left >= kLanes * kUnit<T>) return units(p);
  T part[kLanes * kUnit<T>] = {};
  memcpy(part, p, left * sizeof(T));
  return units(part);
}

// As many registers as one has lanes, rows of a matrix, become its columns: each round brings rows i and i + half side by side.
inline void turn_block(L* a) {
#if defined(__AVX512F__)
  turn(a);
#else
#ifdef __AVX2__
  const LI low = {0, 8, 1, 9, 2, 10, 3, 11}, high = {4, 12, 5, 13, 6, 14, 7, 15};
#else
  const LI low = {0, 4, 1, 5}, high = {2, 6, 3, 7};
#endif
  L t[kLanes];
  for (int s = 1; s < kLanes; s *= 2, memcpy(a, t, sizeof t))
    for (int i = 0; i < kLanes / 2; i++) {
      t[2 * i] = __builtin_shuffle(a[i], a[i + kLanes / 2], low);
      t[2 * i + 1] = __builtin_shuffle(a[i], a[i + kLanes / 2], high);
    }
#endif
}

// Up to kLanes rows of elements become columns of units, out[unit · stride + row], as many as a packed row has; missing rows are zeros.
template <class T>
inline void turn_rows(const T* x, int64_t rows, int64_t k, float* out, int stride) {
  const int64_t len = packed_row(kUnit<T>, k);
  for (int64_t i = 0; i < len; i += kLanes) {
    L a[kLanes] = {};
    for (int r = 0; r < kLanes && r < rows && i * kUnit<T> < k; r++) a[r] = units(x + r * k + i * kUnit<T>, k - i * kUnit<T>);
    turn_block(a);
    for (int r = 0; r < kLanes; r++, out += stride) *(L*)out = a[r];
  }
}

template <class T>
void pack(const void* x, int64_t m, int64_t k, float* out) {
  for (int r = 0; r < kPack; r += kLanes) turn_rows((const T*)x + r * k, m - r, k, out + r, kPack);
}

// Up to three registers of columns of y for M rows of x, both in columns of units.
template <class T, int M>
inline void tile(const float* x, const float* w, const float* bias, int64_t n, int64_t len, T* y, int64_t ldy) {
  L s[M][3] = {};
  for (int64_t i = 0; i < len; i++, x += kPack, w += kColumns) {
    const L *v = (const L*)w, w0 = v[0], w1 = v[1], w2 = v[2];
    for (int m = 0; m < M; m++) {
      const L e = x[m] - L{};
      s[m][0] = mac(s[m][0], e, w0, y);
      s[m][1] = mac(s[m][1], e, w1, y);
      s[m][2] = mac(s[m][2], e, w2, y);
    }
  }
  for (int m = 0; m < M; m++) {
    float sums[48] = {};
    T out[48];
    memcpy(sums, s[m], sizeof s[m]);
    for (int c = 0; c < kColumns; c += 16) store(out + c, load(sums + c) + load(bias + c));
    memcpy(y + m * ldy, out, n * sizeof(T));
  }
}

template <class T>
void product(const float* x, const void* pw, const void* pb, int64_t m, int64_t n, int64_t k, void* py, int64_t ldy, float* scratch) {
  const int64_t len = packed_row(kUnit<T>, k);
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t some = n - j < kColumns ? n - j : kColumns;
    for (int c = 0; c < kColumns; c += kLanes) turn_rows((const T*)pw + (j + c) * k, some - c, k, scratch + c, kColumns);
    float bias[48] = {};
    for (int c = 0; pb && c < some; c++) bias[c] = get((const T*)pb + j + c);
    T* y = (T*)py + j;
    for (int64_t i = 0; i < m;) {
      const float* xi = x + i / kPack * kPack * len + i % kPack;
      const int rows = m - i >= kRows ? kRows : m - i >= 4 ? 4 : 1;  // within a block of packed rows, as kRows divides those
      (rows == kRows ? tile<T, kRows> : rows == 4 ? tile<T, 4> : tile<T, 1>)(xi, scratch, bias, some, len, y + i * ldy, ldy);
      i += rows;
    }
  }
}

#ifdef __AMX_BF16__
// Tiles of 16 rows of w as they lie, against 16 packed rows of x.
void amx_store(const float* tile, const bf16* b, int64_t rows, bf16* y, int64_t ldy) {
  V a[16], bias = b ? load(b) : V{};
  memcpy(a, tile, sizeof a);
  turn(a);
  for (int64_t r = 0; r < 16 && r < rows; r++) {
    __m256bh h = _mm512_cvtneps_pbh((__m512)(a[r] + bias));
    memcpy(y + r * ldy, &h, sizeof h);
  }
}

// Two tiles of w against two of x; without a second one the first is taken twice.
template <bool Fetch>  // the weights after these meanwhile
void amx_tiles(const float* x, const bf16* w, const bf16* b, int64_t m, int64_t n, int64_t k, bf16* y, int64_t ldy) {
  const float *x1 = m > 16 ? x + 8 * k : x;
  const bf16* w1 = n > 16 ? w + 16 * k : w;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t q = 0; q < k; q += 32) {
    for (int r = 0; Fetch && r < 32; r++) __builtin_prefetch(w + 32 * (k + q + r), 0, 2);
    _tile_loadd(4, w + q, 2 * k);
    _tile_loadd(6, x + 8 * q, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, w1 + q, 2 * k);
    _tile_dpbf16ps(1, 5, 6);
    if (m <= 16) continue;
    _tile_loadd(7, x1 + 8 * q, 64);
    _tile_dpbf16ps(2, 4, 7);
    _tile_dpbf16ps(3, 5, 7);
  }
  alignas(64) float out[4][256];
  _tile_stored(0, out[0], 64);
  _tile_stored(1, out[1], 64);
  _tile_stored(2, out[2], 64);
  _tile_stored(3, out[3], 64);
  for (int i = 0; i < (m > 16 ? 2 : 1); i++)
    for (int j = 0; j < (n > 16 ? 2 : 1); j++)
      amx_store(out[2 * i + j], b ? b + 16 * j : b, m - 16 * i, y + 16 * i * ldy + 16 * j, ldy);
}

void amx(const float* x, const void* w, const void* b, int64_t m, int64_t n, int64_t k, void* y, int64_t ldy, float*) {
  struct {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t columns[16] = {};  // in bytes
    uint8_t rows[16] = {};
  } shape;
  for (int i = 0; i < 8; i++) shape.columns[i] = 64, shape.rows[i] = 16;
  _tile_loadconfig(&shape);
  constexpr int64_t kSome = 128;  // rows of x that stay in the cache beside the weights
  for (int64_t some = 0; some < m; some += kSome)
    for (int64_t j = 0; j < n; j += 32)
      for (int64_t i = some; i < m && i < some + kSome; i += 32)
        (i ? amx_tiles<false> : amx_tiles<true>)(x + i * k / 2, (const bf16*)w + j * k, b ? (const bf16*)b + j : nullptr, m - i, n - j, k,
                                                 (bf16*)y + i * ldy + j, ldy);
  _tile_release();
}
#define HALF {amx, pack<bf16>, 2}
#else
#define HALF {product<bf16>, pack<bf16>, kUnit<bf16>}
#endif

}  // namespace

extern const ProductKernels MOLT_TABLE(product_)[2];
const ProductKernels MOLT_TABLE(product_)[2] = {{product<float>, pack<float>, 1}, HALF};

}  // namespace molt
