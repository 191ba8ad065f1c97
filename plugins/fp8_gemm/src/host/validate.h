// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "qperf/fp8_gemm.h"

namespace qperf {

// Where a refusal is written: the caller's buffer, or nowhere.
class Message {
 public:
  Message(char* text, size_t size) : text_(text), size_(text == nullptr ? 0 : size) {
    if (size_ > 0) text_[0] = '\0';
  }

  // Write the line, printf style, and return `status`.
  __attribute__((format(printf, 3, 4))) QperfStatus refuse(QperfStatus status, const char* format,
                                                           ...) const;

 private:
  char* text_;
  size_t size_;
};

QperfStatus check_problem(const QperfFp8GemmProblem* problem, const Message& message);

// problem: valid, m >= 1.
QperfStatus check_operands(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands* operands,
                           const Message& message);

QperfStatus check_not_null(const char* name, const void* pointer, const Message& message);

// 0 <= value <= the largest size this interface takes.
QperfStatus check_size(const char* name, int64_t value, const Message& message);

}  // namespace qperf
