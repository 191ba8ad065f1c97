// SPDX-License-Identifier: Apache-2.0
//
// out[m, n] = sum_k a[m, k] * w[n, k] * scale_a[m or 0] * scale_w[n or 0] + bias[n]
//
// One C interface for every build of the plugin. In the host build all pointers are host pointers
// and `stream` is ignored; in a device build they are device pointers and `stream` is a
// cudaStream_t. Scales are multipliers (they dequantise) and are read through their pointers when
// the GEMM runs.
//
//   a          (M, K) e4m3fn, row-major, 16-byte aligned
//   w          (N, K) e4m3fn, row-major, 16-byte aligned
//   scale_a    (1,) per tensor or (M,) per token, float32
//   scale_w    (1,) per tensor or (N,) per output channel, float32
//   bias       (N,) float32, or null where has_bias is 0
//   scale_out  (1,) float32 for e4m3 output (out = e4m3(value / scale_out)), else null
//   out        (M, N) of out_type, row-major
//
// Products and sums are float32; ((sum * scale_a) * scale_w) + bias is rounded to out_type once.
// A row of out depends on its own row of a alone: not on M, the other rows or the thread count.
#ifndef QPERF_FP8_GEMM_H
#define QPERF_FP8_GEMM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define QPERF_FP8_GEMM_ABI_VERSION 1

typedef enum QperfStatus {
  QPERF_OK = 0,
  QPERF_NULL_POINTER = 1,
  QPERF_INVALID_SHAPE = 2,
  QPERF_INVALID_VALUE = 3,
  QPERF_MISALIGNED = 4,
  QPERF_WORKSPACE_TOO_SMALL = 5,
  QPERF_UNSUPPORTED = 6,  // right in itself, but not by this build or on this processor
  QPERF_FAILED = 7,       // the system refused (memory, threads, a launch)
} QperfStatus;

typedef enum QperfOutType {
  QPERF_OUT_FP32 = 0,
  QPERF_OUT_BF16 = 1,
  QPERF_OUT_FP16 = 2,
  QPERF_OUT_E4M3 = 3,
} QperfOutType;

typedef enum QperfScaleKind {
  QPERF_SCALE_PER_TENSOR = 0,
  QPERF_SCALE_PER_ROW = 1,  // of a: one per token; of w: one per output channel
} QperfScaleKind;

typedef struct QperfFp8GemmProblem {
  int64_t m;
  int64_t n;
  int64_t k;
  int32_t out_type;      // QperfOutType
  int32_t scale_a_kind;  // QperfScaleKind
  int32_t scale_w_kind;  // QperfScaleKind
  int32_t has_bias;      // 0 or 1
} QperfFp8GemmProblem;

typedef struct QperfFp8GemmOperands {
  const uint8_t* a;
  const uint8_t* w;
  const float* scale_a;
  const float* scale_w;
  const float* bias;
  const float* scale_out;
  void* out;
  void* workspace;  // 16-byte aligned, used by one launch at a time
  size_t workspace_bytes;
} QperfFp8GemmOperands;

// Every function that can refuse takes a buffer for one line of text naming the value
// (`k: expected a positive multiple of 16, got 24`). It is cut to fit, always terminated, empty
// after QPERF_OK; null with size 0 is allowed.

int32_t qperf_fp8_gemm_abi_version(void);

// "host", or the architecture of a device build such as "sm_90a".
const char* qperf_fp8_gemm_backend(void);

// Check the shape and the enumerations, not the pointers.
QperfStatus qperf_fp8_gemm_validate(const QperfFp8GemmProblem* problem, char* message,
                                    size_t message_size);

// Bytes the launch needs at `workspace`, for the thread count and instruction set now set.
QperfStatus qperf_fp8_gemm_workspace_bytes(const QperfFp8GemmProblem* problem, size_t* bytes,
                                           char* message, size_t message_size);

// Run the GEMM. M = 0 returns QPERF_OK and touches no operand. The host build returns when `out`
// is written; a device build enqueues on `stream`.
QperfStatus qperf_fp8_gemm_launch(const QperfFp8GemmProblem* problem,
                                  const QperfFp8GemmOperands* operands, void* stream, char* message,
                                  size_t message_size);

// x: (m, k) float32 row-major -> codes: (m, k) e4m3fn, scales: (m,) float32, for any k >= 1.
// scale = max(max |x| of the row / 448, 2^-126), code = e4m3(x / scale). NaN elements become NaN
// codes and do not enter the maximum; an infinite element makes its row's scale infinite.
QperfStatus qperf_fp8_quantize_per_token(const float* x, int64_t m, int64_t k, uint8_t* codes,
                                         float* scales, void* stream, char* message,
                                         size_t message_size);

// Round to nearest even; beyond +-448 (infinities too) saturate to +-448; NaN stays NaN, with its
// sign.
QperfStatus qperf_e4m3_encode(const float* values, int64_t count, uint8_t* codes, void* stream,
                              char* message, size_t message_size);

// Exact: every e4m3fn value is a float32.
QperfStatus qperf_e4m3_decode(const uint8_t* codes, int64_t count, float* values, void* stream,
                              char* message, size_t message_size);

// Host build only; a device build answers QPERF_UNSUPPORTED. Both setters hold for the process,
// wait for a running GEMM and change no result.

// 1 to 1024 threads, the calling thread included; 1 until set.
QperfStatus qperf_fp8_gemm_set_num_threads(int32_t num_threads, char* message, size_t message_size);

// "auto" (the widest this processor has), "avx512", "avx2" or "portable".
QperfStatus qperf_fp8_gemm_set_isa(const char* name, char* message, size_t message_size);

// The instruction set in use: "avx512", "avx2" or "portable".
const char* qperf_fp8_gemm_isa(void);

#ifdef __cplusplus
}
#endif

#endif  // QPERF_FP8_GEMM_H
