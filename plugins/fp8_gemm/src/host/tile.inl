// SPDX-License-Identifier: Apache-2.0
//
// The inner loops, in plain C++ on compiler vectors: compiled once for each instruction set by
// kernels_*.cpp, which define
//   QPERF_TARGET           the function attribute naming the instruction set, may be empty
//   QPERF_VECTOR_LANES     floats in one of its registers: 4, 8 or 16
//   QPERF_MAX_TILE_ROWS    rows whose sums fit its registers (rows x kTileColumns + weights)
//
// NOTE: QPERF_TARGET must be on every function here. Vector code of a function without it is
// split into narrow registers before it is inlined.

typedef float Vector __attribute__((vector_size(QPERF_VECTOR_LANES * sizeof(float)), may_alias));
typedef float Quad __attribute__((vector_size(4 * sizeof(float)), may_alias));

// Multiply kRows rows of activations with kTileColumns rows of weights: the GEMM's time is here.
template <int kRows>
QPERF_TARGET void multiply_rows(const TileArguments& tile) {
  for (int64_t part = 0; part < kLanes; part += QPERF_VECTOR_LANES) {
    Vector sums[kRows][kTileColumns];
    for (int row = 0; row < kRows; ++row) {
      const float* lanes = tile.lanes + row * tile.lanes_stride + part;
      for (int column = 0; column < kTileColumns; ++column)
        sums[row][column] = *reinterpret_cast<const Vector*>(lanes + column * kLanes);
    }
    for (int64_t k = part; k < tile.num_k; k += kLanes) {
      Vector weights[kTileColumns];
      for (int column = 0; column < kTileColumns; ++column)
        weights[column] =
            *reinterpret_cast<const Vector*>(tile.weights + column * tile.k_stride + k);
      for (int row = 0; row < kRows; ++row) {
        const Vector activation =
            *reinterpret_cast<const Vector*>(tile.activations + row * tile.k_stride + k);
        for (int column = 0; column < kTileColumns; ++column)
          sums[row][column] += activation * weights[column];
      }
    }
    for (int row = 0; row < kRows; ++row) {
      float* lanes = tile.lanes + row * tile.lanes_stride + part;
      for (int column = 0; column < kTileColumns; ++column)
        *reinterpret_cast<Vector*>(lanes + column * kLanes) = sums[row][column];
    }
  }
}

template <int kRows>
QPERF_TARGET void multiply_at_most(int64_t num_rows, const TileArguments& tile) {
  if (num_rows == kRows) return multiply_rows<kRows>(tile);
  if constexpr (kRows > 1) multiply_at_most<kRows - 1>(num_rows, tile);
}

QPERF_TARGET void multiply_tile(int64_t num_rows, const TileArguments& tile) {
  multiply_at_most<QPERF_MAX_TILE_ROWS>(num_rows, tile);
}

QPERF_TARGET void add_lanes(const float* lanes, int64_t count, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    const Quad* quads = reinterpret_cast<const Quad*>(lanes + i * kLanes);
    const Quad quad = (quads[0] + quads[2]) + (quads[1] + quads[3]);
    sums[i] = (quad[0] + quad[2]) + (quad[1] + quad[3]);
  }
}

QPERF_TARGET float quantize_row(const float* x, int64_t count, uint8_t* codes) {
  uint32_t largest = 0;  // bits of non-negative floats order as the floats do
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = float_bits(x[i]) & ~kSignBit;
    const uint32_t number = magnitude > kInfinityBits ? 0u : magnitude;
    largest = number > largest ? number : largest;
  }
  const float unbounded = bits_float(largest) / kE4m3Max;
  const float scale = unbounded > kSmallestScale ? unbounded : kSmallestScale;
  for (int64_t i = 0; i < count; ++i) codes[i] = encode_e4m3(x[i] / scale);
  return scale;
}

QPERF_TARGET void encode_row(const float* values, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) codes[i] = encode_e4m3(values[i]);
}
