// The kernels for AVX2, FMA and F16C.
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#include <immintrin.h>
#include "kernels.h"

namespace {
typedef __m256 V;
typedef __m256i I;
constexpr int W = 8;
static inline V zero() { return _mm256_setzero_ps(); }
static inline V set1(float x) { return _mm256_set1_ps(x); }
static inline V load(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, V x) { _mm256_storeu_ps(p, x); }
static inline V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
static inline V add(V a, V b) { return _mm256_add_ps(a, b); }
static inline V sub(V a, V b) { return _mm256_sub_ps(a, b); }
static inline V mul(V a, V b) { return _mm256_mul_ps(a, b); }
static inline V div(V a, V b) { return _mm256_div_ps(a, b); }
static inline V max_(V bound, V x) { return _mm256_max_ps(bound, x); }  // the second where either is NaN
static inline V min_(V bound, V x) { return _mm256_min_ps(bound, x); }
static inline V round_(V x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline V pow2(V n) {  // of whole numbers that fit an exponent
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
static inline __m256 fold(V x) { return x; }
static inline V from_bf16(const uint16_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
static inline V from_f16(const uint16_t* p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)); }
static inline void to_f16(uint16_t* p, V x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT));
}
static inline I load_i(const void* p) { return _mm256_loadu_si256((const __m256i*)p); }
static inline V low_bf16(I x) { return _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)); }
static inline V high_bf16(I x) { return _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32(0xffff0000))); }
}  // namespace
#define KERNELS kernels_avx2
#include "kernels.inl"
#if defined(__clang__)
#pragma clang attribute pop
#endif
