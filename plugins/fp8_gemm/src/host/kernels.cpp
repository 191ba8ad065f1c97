// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <cstring>

namespace qperf {
namespace {

const KernelSet* widest_kernels() {
#if QPERF_HAS_X86
  if (has_avx512()) return &avx512_kernels();
  if (has_avx2()) return &avx2_kernels();
#endif
  return &portable_kernels();
}

}  // namespace

const KernelSet* find_kernels(const char* name) {
  if (std::strcmp(name, "auto") == 0) return widest_kernels();
  if (std::strcmp(name, "portable") == 0) return &portable_kernels();
#if QPERF_HAS_X86
  if (std::strcmp(name, "avx2") == 0 && has_avx2()) return &avx2_kernels();
  if (std::strcmp(name, "avx512") == 0 && has_avx512()) return &avx512_kernels();
#endif
  return nullptr;
}

}  // namespace qperf
