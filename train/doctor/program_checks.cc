#include "train/doctor/program_checks.h"

#include <fmt/format.h>

#include <string>

#include "device/device.h"
#include "kernels/vector_targets.h"

namespace penstock::train {
namespace {

std::string CompilerText() {
#if defined(__clang__)
  return fmt::format("clang {}.{}.{}", __clang_major__, __clang_minor__, __clang_patchlevel__);
#elif defined(__GNUC__)
  return fmt::format("g++ {}.{}.{}", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__);
#else
  return "an unknown compiler";
#endif
}

std::string CudaText() {
  const int version = device::BuiltCudaVersion();
  return version == 0 ? "without CUDA"
                      : fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

}  // namespace

Check ProgramCheck() {
  return OkCheck("program",
                 fmt::format("penstock {}, commit {}, {}, {}, {}", PENSTOCK_VERSION,
                             ProgramCommit(), CompilerText(), PENSTOCK_BUILD_TYPE, CudaText()));
}

Check SimdCheck(std::span<const char* const> targets, bool x86) {
  std::string list;
  bool wide = !x86;
  for (const std::string target : targets) {
    list += (list.empty() ? "" : ", ") + target;
    wide = wide || target.starts_with("AVX");
  }
  if (list.empty()) return UnknownCheck("SIMD", "unknown: the kernels name no instruction set");
  if (wide) return OkCheck("SIMD", list);
  return WarnCheck(
      "SIMD", list,
      "updates and casts are several times as slow as with AVX2; use a machine that has "
      "it, or let the virtual machine show its CPU (host-passthrough)");
}

Checks ProgramChecks() {
#if defined(__x86_64__)
  constexpr bool kX86 = true;
#else
  constexpr bool kX86 = false;
#endif
  return {ProgramCheck(), SimdCheck(kernels::VectorTargets(), kX86)};
}

}  // namespace penstock::train
