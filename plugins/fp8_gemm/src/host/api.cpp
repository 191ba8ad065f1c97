// SPDX-License-Identifier: Apache-2.0
//
// The C interface: check, then run under one lock with the process's threads and kernels.
#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <exception>
#include <memory>
#include <mutex>

#include "e4m3.h"
#include "gemm.h"
#include "kernels.h"
#include "qperf/fp8_gemm.h"
#include "thread_pool.h"
#include "validate.h"

namespace qperf {
namespace {

constexpr int32_t kMaxThreads = 1024;
constexpr int64_t kArrayChunk = 16384;

struct Runtime {
  std::mutex mutex;
  std::unique_ptr<ThreadPool> pool = std::make_unique<ThreadPool>(1);
  const KernelSet* kernels = find_kernels("auto");
};

// Never destroyed: joining threads while a process exits can hang it.
Runtime& runtime() {
  static Runtime* const instance = new Runtime;
  return *instance;
}

// Nothing may be thrown into C. `body` gets the locked runtime.
template <typename Body>
QperfStatus run_locked(const Message& message, const Body& body) {
  try {
    Runtime& state = runtime();
    const std::lock_guard<std::mutex> lock(state.mutex);
    return body(state);
  } catch (const std::exception& error) {
    return message.refuse(QPERF_FAILED, "fp8_gemm: %s", error.what());
  }
}

template <typename Body>
QperfStatus run_over_array(int64_t count, const Message& message, const Body& body) {
  return run_locked(message, [&](Runtime& state) {
    const int64_t num_chunks = (count + kArrayChunk - 1) / kArrayChunk;
    state.pool->run(num_chunks, [&](int64_t chunk, int) {
      const int64_t start = chunk * kArrayChunk;
      body(*state.kernels, start, std::min(kArrayChunk, count - start));
    });
    return QPERF_OK;
  });
}

QperfStatus check_array(int64_t count, const void* source, const void* destination,
                        const Message& message) {
  QperfStatus status = check_size("count", count, message);
  if (status != QPERF_OK || count == 0) return status;
  status = check_not_null("source", source, message);
  return status != QPERF_OK ? status : check_not_null("destination", destination, message);
}

}  // namespace
}  // namespace qperf

using namespace qperf;

extern "C" {

int32_t qperf_fp8_gemm_abi_version(void) { return QPERF_FP8_GEMM_ABI_VERSION; }

const char* qperf_fp8_gemm_backend(void) { return "host"; }

QperfStatus qperf_fp8_gemm_validate(const QperfFp8GemmProblem* problem, char* message,
                                    size_t message_size) {
  return check_problem(problem, Message(message, message_size));
}

QperfStatus qperf_fp8_gemm_workspace_bytes(const QperfFp8GemmProblem* problem, size_t* bytes,
                                           char* message, size_t message_size) {
  const Message line(message, message_size);
  QperfStatus status = check_problem(problem, line);
  if (status == QPERF_OK) status = check_not_null("bytes", bytes, line);
  if (status != QPERF_OK) return status;
  return run_locked(line, [&](Runtime& state) {
    *bytes = problem->m == 0
                 ? 0
                 : plan_gemm(*problem, *state.kernels, state.pool->num_threads()).workspace_bytes;
    return QPERF_OK;
  });
}

QperfStatus qperf_fp8_gemm_launch(const QperfFp8GemmProblem* problem,
                                  const QperfFp8GemmOperands* operands, void* /*stream*/,
                                  char* message, size_t message_size) {
  const Message line(message, message_size);
  QperfStatus status = check_problem(problem, line);
  if (status != QPERF_OK || problem->m == 0) return status;
  status = check_operands(*problem, operands, line);
  if (status != QPERF_OK) return status;
  return run_locked(line, [&](Runtime& state) {
    const size_t needed =
        plan_gemm(*problem, *state.kernels, state.pool->num_threads()).workspace_bytes;
    if (operands->workspace_bytes < needed)
      return line.refuse(QPERF_WORKSPACE_TOO_SMALL,
                         "workspace_bytes: expected %zu or more, got %zu", needed,
                         operands->workspace_bytes);
    run_gemm(*problem, *operands, *state.kernels, *state.pool);
    return QPERF_OK;
  });
}

QperfStatus qperf_fp8_quantize_per_token(const float* x, int64_t m, int64_t k, uint8_t* codes,
                                         float* scales, void* /*stream*/, char* message,
                                         size_t message_size) {
  const Message line(message, message_size);
  QperfStatus status = check_size("m", m, line);
  if (status == QPERF_OK) status = check_size("k", k, line);
  if (status != QPERF_OK || m == 0) return status;
  if (k == 0) return line.refuse(QPERF_INVALID_SHAPE, "k: expected 1 or more, got 0");
  status = check_not_null("x", x, line);
  if (status == QPERF_OK) status = check_not_null("codes", codes, line);
  if (status == QPERF_OK) status = check_not_null("scales", scales, line);
  if (status != QPERF_OK) return status;
  return run_locked(line, [&](Runtime& state) {
    const KernelSet& kernels = *state.kernels;
    const auto quantize = [&](int64_t row, int) {
      scales[row] = kernels.quantize_row(x + row * k, k, codes + row * k);
    };
    if (m * k <= 2 * kArrayChunk) {
      for (int64_t row = 0; row < m; ++row) quantize(row, 0);
    } else {
      state.pool->run(m, quantize);
    }
    return QPERF_OK;
  });
}

QperfStatus qperf_e4m3_encode(const float* values, int64_t count, uint8_t* codes, void* /*stream*/,
                              char* message, size_t message_size) {
  const Message line(message, message_size);
  const QperfStatus status = check_array(count, values, codes, line);
  if (status != QPERF_OK) return status;
  return run_over_array(count, line, [&](const KernelSet& kernels, int64_t start, int64_t size) {
    kernels.encode_row(values + start, size, codes + start);
  });
}

QperfStatus qperf_e4m3_decode(const uint8_t* codes, int64_t count, float* values, void* /*stream*/,
                              char* message, size_t message_size) {
  const Message line(message, message_size);
  const QperfStatus status = check_array(count, codes, values, line);
  if (status != QPERF_OK) return status;
  return run_over_array(count, line, [&](const KernelSet& kernels, int64_t start, int64_t size) {
    alignas(64) float decoded[kLanes];
    alignas(16) uint8_t block[kLanes];
    for (int64_t i = 0; i < size; i += kLanes) {
      const auto num_codes = static_cast<size_t>(std::min(kLanes, size - i));
      std::memset(block, 0, sizeof block);
      std::memcpy(block, codes + start + i, num_codes);
      kernels.decode_row(block, kLanes, decoded);
      std::memcpy(values + start + i, decoded, num_codes * sizeof(float));
    }
  });
}

QperfStatus qperf_fp8_gemm_set_num_threads(int32_t num_threads, char* message,
                                           size_t message_size) {
  const Message line(message, message_size);
  if (num_threads < 1 || num_threads > kMaxThreads)
    return line.refuse(QPERF_INVALID_VALUE, "num_threads: expected 1 to %" PRId32 ", got %" PRId32,
                       kMaxThreads, num_threads);
  return run_locked(line, [&](Runtime& state) {
    if (state.pool->num_threads() != num_threads)
      state.pool = std::make_unique<ThreadPool>(num_threads);
    return QPERF_OK;
  });
}

QperfStatus qperf_fp8_gemm_set_isa(const char* name, char* message, size_t message_size) {
  const Message line(message, message_size);
  const QperfStatus status = check_not_null("name", name, line);
  if (status != QPERF_OK) return status;
  return run_locked(line, [&](Runtime& state) {
    const KernelSet* kernels = find_kernels(name);
    if (kernels == nullptr)
      return line.refuse(QPERF_UNSUPPORTED,
                         "isa: expected auto, portable, or avx2 or avx512 where the processor has "
                         "it, got '%s'",
                         name);
    state.kernels = kernels;
    return QPERF_OK;
  });
}

const char* qperf_fp8_gemm_isa(void) {
  Runtime& state = runtime();
  const std::lock_guard<std::mutex> lock(state.mutex);
  return state.kernels->name;
}

}  // extern "C"
