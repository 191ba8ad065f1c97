// SPDX-License-Identifier: Apache-2.0
//
// What each instruction set provides. Which one runs is chosen at run time.
#pragma once

#include <cstdint>

// -DQPERF_PORTABLE_ONLY builds what other processors get.
#if defined(__x86_64__) && !defined(QPERF_PORTABLE_ONLY)
#define QPERF_HAS_X86 1
#else
#define QPERF_HAS_X86 0
#endif

namespace qperf {

// Each output is summed in 16 lanes: lane j adds the products of k = j, j + 16, ... in order, then
// the lanes are added in one fixed tree. Every instruction set does exactly this, and a product of
// two e4m3 numbers is exact in float32, so all of them give the same bits.
constexpr int64_t kLanes = 16;

// Output channels of one tile; rows of a tile are up to KernelSet::max_tile_rows.
constexpr int64_t kTileColumns = 4;

// One tile's step over a range of k. Pointers are 64-byte aligned, strides are in floats.
struct TileArguments {
  const float* activations;  // (rows, num_k) of stride k_stride
  const float* weights;      // (kTileColumns, num_k) of stride k_stride
  int64_t k_stride;
  int64_t num_k;  // a multiple of kLanes
  float* lanes;   // (rows, kTileColumns, kLanes) of row stride lanes_stride: added to
  int64_t lanes_stride;
};

struct KernelSet {
  const char* name;
  int64_t max_tile_rows;
  // codes: (count,), count a multiple of kLanes -> values: (count,), 64-byte aligned.
  void (*decode_row)(const uint8_t* codes, int64_t count, float* values);
  void (*multiply_tile)(int64_t num_rows, const TileArguments& tile);
  // lanes: (count, kLanes) -> sums: (count,).
  void (*add_lanes)(const float* lanes, int64_t count, float* sums);
  // x: (count,) -> codes: (count,) = e4m3(x / scale); returns the scale.
  float (*quantize_row)(const float* x, int64_t count, uint8_t* codes);
  void (*encode_row)(const float* values, int64_t count, uint8_t* codes);
};

const KernelSet& portable_kernels();

#if QPERF_HAS_X86
const KernelSet& avx2_kernels();
const KernelSet& avx512_kernels();
bool has_avx2();
bool has_avx512();
#endif

// nullptr if this build does not know the name or the processor does not have it.
const KernelSet* find_kernels(const char* name);

}  // namespace qperf
