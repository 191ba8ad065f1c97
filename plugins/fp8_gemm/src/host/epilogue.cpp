// SPDX-License-Identifier: Apache-2.0
//
// One copy for all instruction sets: the scales are applied in the same order and rounding
// everywhere.
#include "epilogue.h"

#include "e4m3.h"

namespace qperf {
namespace {

uint16_t to_bf16(float value) {
  const uint32_t bits = float_bits(value);
  if ((bits & ~kSignBit) > kInfinityBits) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16);
}

uint16_t to_fp16(float value) {
  const uint32_t bits = float_bits(value);
  const uint32_t magnitude = bits & ~kSignBit;
  const auto sign = static_cast<uint16_t>((bits & kSignBit) >> 16);
  if (magnitude > kInfinityBits) return sign | 0x7E00u;
  if (magnitude >= 0x477FF000u) return sign | 0x7C00u;  // 65520: half-way to 2^16, rounds up
  if (magnitude < 0x38800000u) {                        // below 2^-14: multiples of 2^-24
    const float shifter = 0.5f;                         // floats at 0.5 are 2^-24 apart
    return static_cast<uint16_t>(
        sign | (float_bits(bits_float(magnitude) + shifter) - float_bits(shifter)));
  }
  const uint32_t rounded = magnitude + 0xFFFu + ((magnitude >> 13) & 1u);
  return static_cast<uint16_t>(sign | ((rounded >> 13) - ((127u - 15u) << 10)));
}

template <typename Element, typename Convert>
void store_as(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
              const OutputSpan& span, const float* sums, const Convert& convert) {
  Element* out = static_cast<Element*>(operands.out) + span.row * problem.n + span.first_n;
  const float scale_a =
      operands.scale_a[problem.scale_a_kind == QPERF_SCALE_PER_ROW ? span.row : 0];
  const bool is_per_channel = problem.scale_w_kind == QPERF_SCALE_PER_ROW;
  for (int64_t i = 0; i < span.num_columns; ++i) {
    const int64_t n = span.first_n + i;
    float value = (sums[i] * scale_a) * operands.scale_w[is_per_channel ? n : 0];
    if (problem.has_bias) value = value + operands.bias[n];
    out[i] = convert(value);
  }
}

}  // namespace

void store_row(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
               const OutputSpan& span, const float* sums) {
  switch (problem.out_type) {
    case QPERF_OUT_FP32:
      return store_as<float>(problem, operands, span, sums, [](float value) { return value; });
    case QPERF_OUT_BF16:
      return store_as<uint16_t>(problem, operands, span, sums, to_bf16);
    case QPERF_OUT_FP16:
      return store_as<uint16_t>(problem, operands, span, sums, to_fp16);
    case QPERF_OUT_E4M3: {
      const float scale_out = *operands.scale_out;
      return store_as<uint8_t>(problem, operands, span, sums,
                               [scale_out](float value) { return encode_e4m3(value / scale_out); });
    }
  }
}

}  // namespace qperf
