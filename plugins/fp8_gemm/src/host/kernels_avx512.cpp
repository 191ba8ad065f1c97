// SPDX-License-Identifier: Apache-2.0
//
// AVX-512 F, BW and VL (Skylake-SP, Zen 4 and later).
#include "kernels.h"

#if QPERF_HAS_X86

#include <immintrin.h>

#include "e4m3.h"

#define QPERF_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx2,fma,f16c,prefer-vector-width=512")))
#define QPERF_VECTOR_LANES 16
#define QPERF_MAX_TILE_ROWS 6

namespace qperf {
namespace {

#include "tile.inl"

// As in kernels_avx2.cpp: the fp16 of a code's bits is its value times 2^-8.
QPERF_TARGET inline __m512i fp16_over_256(__m256i codes) {
  const __m512i moved = _mm512_and_si512(_mm512_slli_epi16(_mm512_cvtepi8_epi16(codes), 7),
                                         _mm512_set1_epi16(static_cast<short>(0xBF80)));
  const __m512i nan_magnitude = _mm512_set1_epi16(0x3F80);
  const __mmask32 is_nan =
      _mm512_cmpeq_epi16_mask(_mm512_and_si512(moved, nan_magnitude), nan_magnitude);
  return _mm512_mask_add_epi16(moved, is_nan, moved, _mm512_set1_epi16(0x4000));
}

QPERF_TARGET inline void store_fp16(__m256i halves, float* values) {
  _mm512_store_ps(values, _mm512_mul_ps(_mm512_cvtph_ps(halves), _mm512_set1_ps(256.0f)));
}

QPERF_TARGET void decode_row(const uint8_t* codes, int64_t count, float* values) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
    const __m512i halves =
        fp16_over_256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + i)));
    store_fp16(_mm512_castsi512_si256(halves), values + i);
    store_fp16(_mm512_extracti64x4_epi64(halves, 1), values + i + kLanes);
  }
  if (i < count) {
    const __m128i last = _mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + i));
    store_fp16(_mm512_castsi512_si256(fp16_over_256(_mm256_zextsi128_si256(last))), values + i);
  }
}

}  // namespace

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

const KernelSet& avx512_kernels() {
  static const KernelSet kernels{"avx512",  QPERF_MAX_TILE_ROWS, decode_row, multiply_tile,
                                 add_lanes, quantize_row,        encode_row};
  return kernels;
}

}  // namespace qperf

#endif  // QPERF_HAS_X86
