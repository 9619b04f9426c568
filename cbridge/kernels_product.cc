// y = x·wᵀ + b. An element of y is one chain of sums over k, ascending, so it depends on its row of x and its row of w only, however many
// rows there are. Weights are read as they lie, once, and turned in the cache, 48 rows at a time: at the speed of memory where rows of x
// are few.
#include "simd.h"
#if defined(__AVX512BF16__) || defined(__AMX_BF16__)
#include <immintrin.h>
#endif

namespace molt {
namespace {

#ifdef __AVX512F__
constexpr int kRows = 8;  // rows of x, times 48 columns of y, whose sums fit the registers
#else
constexpr int kRows = 2;
#endif
constexpr int kColumns = 48;

// Operands are units of 32 bits: an element as float32, or a pair of bfloat16 where the processor multiplies those.
#ifdef __AVX512BF16__
template <class T>
constexpr int kUnit = 4 / sizeof(T);  // elements
inline V units(const bf16* p) {
  V v;
  memcpy(&v, p, 64);
  return v;
}
inline V mac(V a, V x, V w, const bf16*) { return (V)_mm512_dpbf16_ps((__m512)a, (__m512bh)x, (__m512bh)w); }
#else
template <class T>
constexpr int kUnit = 1;
inline V units(const bf16* p) { return load(p); }
inline V mac(V a, V x, V w, const bf16*) { return a + x * w; }
#endif
inline V units(const float* p) { return load(p); }
inline V mac(V a, V x, V w, const float*) { return a + x * w; }

// Sixteen units of a row that has so many elements left; what is missing is zero.
template <class T>
inline V units(const T* p, int64_t left) {
  if (left >= 16 * kUnit<T>) return units(p);
  T part[16 * kUnit<T>] = {};
  memcpy(part, p, left * sizeof(T));
  return units(part);
}

template <class T>
inline int64_t length(int64_t k) {  // of a row in units
  return (k + 16 * kUnit<T> - 1) / (16 * kUnit<T>) * 16;
}

// Up to 16 rows of elements become columns of units, out[unit · stride + row]; missing rows are zeros.
template <class T>
inline void turn_rows(const T* x, int64_t rows, int64_t k, float* out, int stride) {
  for (int64_t i = 0; i < k; i += 16 * kUnit<T>) {
    V a[16] = {};
    for (int r = 0; r < 16 && r < rows; r++) a[r] = units(x + r * k + i, k - i);
    turn(a);
    for (int r = 0; r < 16; r++, out += stride) store(out, a[r]);
  }
}

template <class T>
void pack(const void* x, int64_t m, int64_t k, float* out) {
  turn_rows((const T*)x, m, k, out, kPack);
}

// Up to 48 columns of y for M rows of x, both in columns of units.
template <class T, int M>
inline void tile(const float* x, const float* w, const float* bias, int64_t n, int64_t len, T* y, int64_t ldy) {
  V s[M][3] = {};
  for (int64_t i = 0; i < len; i++, x += kPack, w += kColumns) {
    const V w0 = load(w), w1 = load(w + 16), w2 = load(w + 32);
    for (int m = 0; m < M; m++) {
      const V v = splat(x[m]);
      s[m][0] = mac(s[m][0], v, w0, y);
      s[m][1] = mac(s[m][1], v, w1, y);
      s[m][2] = mac(s[m][2], v, w2, y);
    }
  }
  for (int m = 0; m < M; m++) {
    T out[kColumns];
    for (int c = 0; c < 3; c++) store(out + 16 * c, s[m][c] + load(bias + 16 * c));
    memcpy(y + m * ldy, out, n * sizeof(T));
  }
}

template <class T>
void product(const float* x, const void* pw, const void* pb, int64_t m, int64_t n, int64_t k, void* py, int64_t ldy, float* scratch) {
  const int64_t len = length<T>(k);
  for (int64_t j = 0; j < n; j += kColumns) {
    const int64_t some = n - j < kColumns ? n - j : kColumns;
    for (int c = 0; c < kColumns; c += 16) turn_rows((const T*)pw + (j + c) * k, some - c, k, scratch + c, kColumns);
    float bias[kColumns] = {};
    for (int c = 0; pb && c < some; c++) bias[c] = get((const T*)pb + j + c);
    T* y = (T*)py + j;
    for (int64_t i = 0; i < m;) {
      const float* xi = x + i / kPack * kPack * len + i % kPack;
      const int rows = m - i >= kRows ? kRows : kRows > 4 && m - i >= 4 ? 4 : 1;
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
  for (int64_t r = 0; r < 16 && r < rows; r++) store(y + r * ldy, a[r] + bias);
}

// Two tiles of w against two of x; without a second one the first is taken twice.
void amx_tiles(const float* x, const bf16* w, const bf16* b, int64_t m, int64_t n, int64_t k, bf16* y, int64_t ldy) {
  const float *x1 = m > 16 ? x + 8 * k : x;
  const bf16* w1 = n > 16 ? w + 16 * k : w;
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t q = 0; q < k; q += 32) {
    for (int r = 0; r < 32; r++) __builtin_prefetch(w + 32 * (k + q + r), 0, 2);  // the weights after these
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
        amx_tiles(x + i * k / 2, (const bf16*)w + j * k, b ? (const bf16*)b + j : nullptr, m - i, n - j, k, (bf16*)y + i * ldy + j, ldy);
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
