// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "qperf/fp8_gemm.h"

namespace qperf {

// A stretch of one output row.
struct OutputSpan {
  int64_t row;
  int64_t first_n;
  int64_t num_columns;
};

// out[row, first_n + i] = round(((sums[i] * scale_a) * scale_w) + bias), i in [0, num_columns).
void store_row(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands& operands,
               const OutputSpan& span, const float* sums);

}  // namespace qperf
