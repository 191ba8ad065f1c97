// SPDX-License-Identifier: Apache-2.0
//
// AVX2 + FMA + F16C (Haswell, Zen and later).
#include "kernels.h"

#if QPERF_HAS_X86

#include <cpuid.h>
#include <immintrin.h>

#include "e4m3.h"

#define QPERF_TARGET __attribute__((target("avx2,fma,f16c")))
#define QPERF_VECTOR_LANES 8
#define QPERF_MAX_TILE_ROWS 3

namespace qperf {
namespace {

#include "tile.inl"

// An e4m3 code, moved to the place of an fp16's sign, low exponent bits and high mantissa bits, is
// that fp16 times 2^-8 (the biases 15 and 7 differ by 8), subnormals included. NaN codes get all
// exponent bits.
QPERF_TARGET inline __m256i fp16_over_256(__m128i codes) {
  const __m256i moved = _mm256_and_si256(_mm256_slli_epi16(_mm256_cvtepi8_epi16(codes), 7),
                                         _mm256_set1_epi16(static_cast<short>(0xBF80)));
  const __m256i nan_magnitude = _mm256_set1_epi16(0x3F80);
  const __m256i is_nan =
      _mm256_cmpeq_epi16(_mm256_and_si256(moved, nan_magnitude), nan_magnitude);
  return _mm256_or_si256(moved, _mm256_and_si256(is_nan, _mm256_set1_epi16(0x7C00)));
}

QPERF_TARGET void decode_row(const uint8_t* codes, int64_t count, float* values) {
  const __m256 factor = _mm256_set1_ps(256.0f);
  for (int64_t i = 0; i < count; i += kLanes) {
    const __m256i halves =
        fp16_over_256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i)));
    const __m256 low = _mm256_cvtph_ps(_mm256_castsi256_si128(halves));
    const __m256 high = _mm256_cvtph_ps(_mm256_extracti128_si256(halves, 1));
    _mm256_store_ps(values + i, _mm256_mul_ps(low, factor));
    _mm256_store_ps(values + i + 8, _mm256_mul_ps(high, factor));
  }
}

}  // namespace

bool has_avx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  const bool has_f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return has_f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

const KernelSet& avx2_kernels() {
  static const KernelSet kernels{"avx2",    QPERF_MAX_TILE_ROWS, decode_row, multiply_tile,
                                 add_lanes, quantize_row,        encode_row};
  return kernels;
}

}  // namespace qperf

#endif  // QPERF_HAS_X86
