// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels.h"
#include "qperf/fp8_gemm.h"
#include "thread_pool.h"

namespace qperf {

// How one GEMM is cut up, and where its scratch lies in the workspace.
struct GemmPlan {
  int64_t k_stride;       // floats from one decoded row to the next
  int64_t panel_columns;  // output channels decoded together, a multiple of kTileColumns
  int64_t task_columns;   // output channels of one task, a multiple of panel_columns
  int64_t num_tasks;
  size_t activations_bytes;
  size_t thread_bytes;
  size_t workspace_bytes;
};

// problem: valid, m >= 1.
GemmPlan plan_gemm(const QperfFp8GemmProblem& problem, const KernelSet& kernels, int num_threads);

// problem and operands: valid, m >= 1, the workspace large enough for the plan.
void run_gemm(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
              const KernelSet& kernels, ThreadPool& pool);

}  // namespace qperf
