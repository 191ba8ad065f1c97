// SPDX-License-Identifier: Apache-2.0
#include "validate.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>

namespace qperf {
namespace {

// With each size below 2^31, a product of two of them in bytes of float32 fits 64 bits.
constexpr int64_t kMaxSize = INT32_MAX;
constexpr int64_t kMultipleOfK = 16;
constexpr uintptr_t kCodesAlignment = 16;

QperfStatus check_enumeration(const char* name, int32_t value, int32_t last,
                              const Message& message) {
  if (value >= 0 && value <= last) return QPERF_OK;
  return message.refuse(QPERF_INVALID_VALUE, "%s: expected 0 to %" PRId32 ", got %" PRId32, name,
                        last, value);
}

QperfStatus check_pointer(const char* name, const void* pointer, uintptr_t alignment,
                          const Message& message) {
  const QperfStatus status = check_not_null(name, pointer, message);
  if (status != QPERF_OK) return status;
  const uintptr_t rest = reinterpret_cast<uintptr_t>(pointer) % alignment;
  if (rest == 0) return QPERF_OK;
  return message.refuse(QPERF_MISALIGNED,
                        "%s: expected an address aligned to %" PRIuPTR " bytes, got %p (%" PRIuPTR
                        " past)",
                        name, alignment, pointer, rest);
}

// A pointer the problem has no use for is a mistake of the caller: it would be ignored silently.
QperfStatus check_optional(const char* name, const void* pointer, bool is_used,
                           const Message& message) {
  if (is_used) return check_pointer(name, pointer, alignof(float), message);
  if (pointer == nullptr) return QPERF_OK;
  return message.refuse(QPERF_INVALID_VALUE, "%s: expected null for this problem, got %p", name,
                        pointer);
}

uintptr_t out_alignment(int32_t out_type) {
  switch (out_type) {
    case QPERF_OUT_FP32:
      return 4;
    case QPERF_OUT_E4M3:
      return 1;
    default:
      return 2;
  }
}

}  // namespace

QperfStatus Message::refuse(QperfStatus status, const char* format, ...) const {
  if (size_ > 0) {
    va_list arguments;
    va_start(arguments, format);
    std::vsnprintf(text_, size_, format, arguments);
    va_end(arguments);
  }
  return status;
}

QperfStatus check_not_null(const char* name, const void* pointer, const Message& message) {
  if (pointer != nullptr) return QPERF_OK;
  return message.refuse(QPERF_NULL_POINTER, "%s: expected an address, got null", name);
}

QperfStatus check_size(const char* name, int64_t value, const Message& message) {
  if (value >= 0 && value <= kMaxSize) return QPERF_OK;
  return message.refuse(QPERF_INVALID_SHAPE, "%s: expected 0 to %" PRId64 ", got %" PRId64, name,
                        kMaxSize, value);
}

QperfStatus check_problem(const QperfFp8GemmProblem* problem, const Message& message) {
  QperfStatus status = check_not_null("problem", problem, message);
  if (status == QPERF_OK) status = check_size("m", problem->m, message);
  if (status == QPERF_OK) status = check_size("n", problem->n, message);
  if (status == QPERF_OK) status = check_size("k", problem->k, message);
  if (status != QPERF_OK) return status;
  if (problem->n == 0)
    return message.refuse(QPERF_INVALID_SHAPE, "n: expected 1 or more, got 0");
  if (problem->k == 0 || problem->k % kMultipleOfK != 0)
    return message.refuse(QPERF_INVALID_SHAPE,
                          "k: expected a positive multiple of %" PRId64 ", got %" PRId64,
                          kMultipleOfK, problem->k);
  status = check_enumeration("out_type", problem->out_type, QPERF_OUT_E4M3, message);
  if (status == QPERF_OK)
    status = check_enumeration("scale_a_kind", problem->scale_a_kind, QPERF_SCALE_PER_ROW, message);
  if (status == QPERF_OK)
    status = check_enumeration("scale_w_kind", problem->scale_w_kind, QPERF_SCALE_PER_ROW, message);
  if (status == QPERF_OK) status = check_enumeration("has_bias", problem->has_bias, 1, message);
  return status;
}

QperfStatus check_operands(const QperfFp8GemmProblem& problem, const QperfFp8GemmOperands* operands,
                           const Message& message) {
  QperfStatus status = check_not_null("operands", operands, message);
  if (status == QPERF_OK) status = check_pointer("a", operands->a, kCodesAlignment, message);
  if (status == QPERF_OK) status = check_pointer("w", operands->w, kCodesAlignment, message);
  if (status == QPERF_OK)
    status = check_pointer("scale_a", operands->scale_a, alignof(float), message);
  if (status == QPERF_OK)
    status = check_pointer("scale_w", operands->scale_w, alignof(float), message);
  if (status == QPERF_OK)
    status = check_optional("bias", operands->bias, problem.has_bias != 0, message);
  if (status == QPERF_OK)
    status = check_optional("scale_out", operands->scale_out, problem.out_type == QPERF_OUT_E4M3,
                            message);
  if (status == QPERF_OK)
    status = check_pointer("out", operands->out, out_alignment(problem.out_type), message);
  if (status == QPERF_OK)
    status = check_pointer("workspace", operands->workspace, kCodesAlignment, message);
  return status;
}

}  // namespace qperf
