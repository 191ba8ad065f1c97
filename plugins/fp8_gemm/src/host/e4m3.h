// SPDX-License-Identifier: Apache-2.0
//
// e4m3fn: sign, 4 exponent bits (bias 7), 3 mantissa bits; no infinities, 0x7F and 0xFF are NaN.
// Written without branches, so that a compiler can turn loops over them into vector code.
#pragma once

#include <cstdint>
#include <cstring>

#define QPERF_ALWAYS_INLINE inline __attribute__((always_inline))

namespace qperf {

constexpr float kE4m3Max = 448.0f;
constexpr float kSmallestScale = 1.17549435e-38f;  // 2^-126: its reciprocal is finite

constexpr uint32_t kSignBit = 0x80000000u;
constexpr uint32_t kInfinityBits = 0x7F800000u;
constexpr uint32_t kE4m3MaxBits = 0x43E00000u;       // 448
constexpr uint32_t kE4m3MinNormalBits = 0x3C800000u;  // 2^-6

QPERF_ALWAYS_INLINE uint32_t float_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

QPERF_ALWAYS_INLINE float bits_float(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

QPERF_ALWAYS_INLINE uint8_t encode_e4m3(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & ~kSignBit;
  const uint32_t clamped = magnitude < kE4m3MaxBits ? magnitude : kE4m3MaxBits;
  // Normal numbers: add half of the 20 bits cut off (minus one, plus the last bit kept: ties go to
  // even), cut, and move the exponent's bias from 127 to 7.
  const uint32_t rounded = clamped + 0x7FFFFu + ((clamped >> 20) & 1u);
  const uint32_t normal = (rounded >> 20) - ((127u - 7u) << 3);
  // Subnormal numbers are multiples of 2^-9, the spacing of floats at 2^14: the addition rounds.
  const float shifter = 16384.0f;
  const uint32_t subnormal = float_bits(bits_float(clamped) + shifter) - float_bits(shifter);
  const uint32_t finite = clamped < kE4m3MinNormalBits ? subnormal : normal;
  const uint32_t code = magnitude > kInfinityBits ? 0x7Fu : finite;
  return static_cast<uint8_t>(code | ((bits & kSignBit) >> 24));
}

QPERF_ALWAYS_INLINE float decode_e4m3(uint8_t code) {
  const uint32_t magnitude = code & 0x7Fu;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24;
  if (magnitude == 0x7Fu) return bits_float(sign | 0x7FC00000u);
  if (magnitude < 8u) {  // subnormal: mantissa * 2^-9
    return bits_float(float_bits(static_cast<float>(magnitude) * 0.001953125f) | sign);
  }
  return bits_float(sign | ((magnitude << 20) + ((127u - 7u) << 23)));
}

}  // namespace qperf
