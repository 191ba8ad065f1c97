// SPDX-License-Identifier: Apache-2.0
//
// The blocking around the inner loops of tile.inl:
//   decode the activations to float32 once;
//   tasks of output channels, each taken by one thread:
//     panel: decode a few weight rows to float32 scratch once, then for every block of rows
//       multiply tile by tile, add the lanes, scale and store.
#include "gemm.h"

#include <algorithm>

#include "epilogue.h"

namespace qperf {
namespace {

constexpr size_t kCacheLineBytes = 64;
// 6 rows of 1024 floats are half of a 48 KiB L1 cache.
constexpr int64_t kBlockK = 1024;
// Up to this many rows a panel of few weight rows stays in L1; above, the panel is as large as L2
// allows, because every block of rows reads all of it.
constexpr int64_t kDecodeMaxRows = 16;
constexpr int64_t kDecodePanelColumns = 4;
constexpr int64_t kPrefillPanelColumns = 64;
constexpr int64_t kMaxTaskColumns = 64;
constexpr int64_t kTasksPerThread = 4;

int64_t divide_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

int64_t round_up(int64_t value, int64_t multiple) { return divide_up(value, multiple) * multiple; }

size_t float_bytes(int64_t count) {
  return static_cast<size_t>(round_up(count, kLanes)) * sizeof(float);
}

// One thread's scratch: decoded weights, sums by lane, sums.
struct Scratch {
  float* weights;  // (panel_columns, k_stride)
  float* lanes;    // (max_tile_rows, panel_columns, kLanes)
  float* sums;     // (max_tile_rows, panel_columns)
};

size_t weights_bytes(const GemmPlan& plan) {
  return float_bytes(plan.panel_columns * plan.k_stride);
}

size_t lanes_bytes(const GemmPlan& plan, const KernelSet& kernels) {
  return float_bytes(kernels.max_tile_rows * plan.panel_columns * kLanes);
}

class Gemm {
 public:
  Gemm(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
       const KernelSet& kernels, int num_threads)
      : problem_(problem),
        operands_(operands),
        kernels_(kernels),
        plan_(plan_gemm(problem, kernels, num_threads)) {
    const auto address = reinterpret_cast<uintptr_t>(operands.workspace);
    workspace_ = static_cast<char*>(operands.workspace) +
                 (kCacheLineBytes - address % kCacheLineBytes) % kCacheLineBytes;
    activations_ = reinterpret_cast<float*>(workspace_);
  }

  void run(ThreadPool& pool) const {
    const auto decode_activation = [this](int64_t row, int) {
      kernels_.decode_row(operands_.a + row * problem_.k, problem_.k,
                          activations_ + row * plan_.k_stride);
    };
    if (problem_.m <= kDecodeMaxRows) {
      for (int64_t row = 0; row < problem_.m; ++row) decode_activation(row, 0);
    } else {
      pool.run(problem_.m, decode_activation);
    }
    pool.run(plan_.num_tasks, [this](int64_t task, int thread) {
      const int64_t end = std::min(problem_.n, (task + 1) * plan_.task_columns);
      for (int64_t n = task * plan_.task_columns; n < end; n += plan_.panel_columns)
        multiply_panel(n, std::min(plan_.panel_columns, end - n), scratch_of(thread));
    });
  }

 private:
  Scratch scratch_of(int thread) const {
    char* start = workspace_ + plan_.activations_bytes + thread * plan_.thread_bytes;
    char* lanes = start + weights_bytes(plan_);
    char* sums = lanes + lanes_bytes(plan_, kernels_);
    return {reinterpret_cast<float*>(start), reinterpret_cast<float*>(lanes),
            reinterpret_cast<float*>(sums)};
  }

  // Output channels [first_n, first_n + num_columns) for every row.
  void multiply_panel(int64_t first_n, int64_t num_columns, const Scratch& scratch) const {
    decode_weights(first_n, num_columns, scratch.weights);
    const int64_t num_blocks = divide_up(problem_.m, kernels_.max_tile_rows);
    for (int64_t block = 0; block < num_blocks; ++block) {
      // Blocks of nearly equal height: 8 rows are 4 + 4, not 6 + 2.
      const int64_t first_m = block * problem_.m / num_blocks;
      const int64_t num_rows = (block + 1) * problem_.m / num_blocks - first_m;
      multiply_block(first_m, num_rows, round_up(num_columns, kTileColumns), scratch);
      for (int64_t row = 0; row < num_rows; ++row)
        store_row(problem_, operands_, {first_m + row, first_n, num_columns},
                  scratch.sums + row * plan_.panel_columns);
    }
  }

  void decode_weights(int64_t first_n, int64_t num_columns, float* weights) const {
    for (int64_t column = 0; column < num_columns; ++column)
      kernels_.decode_row(operands_.w + (first_n + column) * problem_.k, problem_.k,
                          weights + column * plan_.k_stride);
    // A last tile of fewer columns multiplies zeros, so that a tile's width is a constant.
    const int64_t num_padded = round_up(num_columns, kTileColumns);
    std::fill(weights + num_columns * plan_.k_stride, weights + num_padded * plan_.k_stride, 0.0f);
  }

  void multiply_block(int64_t first_m, int64_t num_rows, int64_t num_columns,
                      const Scratch& scratch) const {
    const int64_t lanes_stride = plan_.panel_columns * kLanes;
    std::fill(scratch.lanes, scratch.lanes + num_rows * lanes_stride, 0.0f);
    for (int64_t k = 0; k < problem_.k; k += kBlockK) {
      for (int64_t column = 0; column < num_columns; column += kTileColumns) {
        kernels_.multiply_tile(num_rows, {activations_ + first_m * plan_.k_stride + k,
                                          scratch.weights + column * plan_.k_stride + k,
                                          plan_.k_stride, std::min(kBlockK, problem_.k - k),
                                          scratch.lanes + column * kLanes, lanes_stride});
      }
    }
    kernels_.add_lanes(scratch.lanes, num_rows * plan_.panel_columns, scratch.sums);
  }

  const QperfFp8GemmProblem& problem_;
  const QperfFp8GemmOperands& operands_;
  const KernelSet& kernels_;
  const GemmPlan plan_;
  char* workspace_;
  float* activations_;  // (m, k_stride)
};

}  // namespace

GemmPlan plan_gemm(const QperfFp8GemmProblem& problem, const KernelSet& kernels, int num_threads) {
  GemmPlan plan{};
  // One line more than k: rows 4096 bytes apart would share the sets of the L1 cache.
  plan.k_stride = problem.k + kLanes;
  plan.panel_columns = problem.m <= kDecodeMaxRows ? kDecodePanelColumns : kPrefillPanelColumns;
  const int64_t fair_share = divide_up(problem.n, num_threads * kTasksPerThread);
  plan.task_columns = round_up(std::min(fair_share, kMaxTaskColumns), kTileColumns);
  plan.panel_columns = std::min(plan.panel_columns, plan.task_columns);
  plan.num_tasks = divide_up(problem.n, plan.task_columns);
  plan.activations_bytes = float_bytes(problem.m * plan.k_stride);
  plan.thread_bytes = weights_bytes(plan) + lanes_bytes(plan, kernels) +
                      float_bytes(kernels.max_tile_rows * plan.panel_columns);
  plan.workspace_bytes = plan.activations_bytes + num_threads * plan.thread_bytes + kCacheLineBytes;
  return plan;
}

void run_gemm(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
              const KernelSet& kernels, ThreadPool& pool) {
  Gemm(problem, operands, kernels, pool.num_threads()).run(pool);
}

}  // namespace qperf
