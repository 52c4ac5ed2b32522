// The kernels for AVX-512 (F, BW, DQ, VL).
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")
#endif
#include <immintrin.h>
#include "kernels.h"

namespace {
typedef __m512 V;
typedef __m512i I;
constexpr int W = 16;
static inline V zero() { return _mm512_setzero_ps(); }
static inline V set1(float x) { return _mm512_set1_ps(x); }
static inline V load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, V x) { _mm512_storeu_ps(p, x); }
static inline V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
static inline V add(V a, V b) { return _mm512_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm512_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm512_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm512_div_ps(a, b); }
static inline V max_(V bound, V x) { return _mm512_max_ps(bound, x); }  // the second where either is NaN
static inline V min_(V bound, V x) { return _mm512_min_ps(bound, x); }
static inline V round_(V x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V pow2(V n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
static inline __m256 fold(V x) { return _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1)); }
static inline V from_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}
static inline V from_f16(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
static inline void to_f16(uint16_t* p, V x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline I load_i(const void* p) { return _mm512_loadu_si512(p); }
static inline V low_bf16(I x) { return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16)); }
static inline V high_bf16(I x) { return _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(0xffff0000))); }
}  // namespace
#define KERNELS kernels_avx512
#include "kernels.inl"
#if defined(__clang__)
#pragma clang attribute pop
#endif
