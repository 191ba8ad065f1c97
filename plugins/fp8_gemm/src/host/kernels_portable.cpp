// SPDX-License-Identifier: Apache-2.0
//
// For any processor the compiler knows.
#include <array>

#include "e4m3.h"
#include "kernels.h"

#define QPERF_TARGET
#define QPERF_VECTOR_LANES 4
#define QPERF_MAX_TILE_ROWS 2

namespace qperf {
namespace {

#include "tile.inl"

const std::array<float, 256>& decode_table() {
  static const std::array<float, 256> table = [] {
    std::array<float, 256> values{};
    for (int code = 0; code < 256; ++code) values[code] = decode_e4m3(static_cast<uint8_t>(code));
    return values;
  }();
  return table;
}

void decode_row(const uint8_t* codes, int64_t count, float* values) {
  const float* table = decode_table().data();
  for (int64_t i = 0; i < count; ++i) values[i] = table[codes[i]];
}

}  // namespace

const KernelSet& portable_kernels() {
  static const KernelSet kernels{"portable", QPERF_MAX_TILE_ROWS, decode_row, multiply_tile,
                                 add_lanes,  quantize_row,        encode_row};
  return kernels;
}

}  // namespace qperf
