#include "train/doctor/gpu_checks.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>

namespace penstock::train {
namespace {

/// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 …": the first word that
/// begins with a digit and has a point.
std::optional<std::string> DriverVersion(const MachineFiles& files) {
  std::istringstream words(files.Line("proc/driver/nvidia/version").value_or(""));
  for (std::string word; words >> word;) {
    if (word[0] >= '0' && word[0] <= '9' && word.find('.') != std::string::npos) return word;
  }
  return files.Line("sys/module/nvidia/version");
}

std::vector<std::string> Models(const MachineFiles& files) {
  const std::string folder = "proc/driver/nvidia/gpus";
  std::vector<std::string> models;
  for (const std::string& bus : files.Names(folder)) {
    models.push_back(
        files.Field(fmt::format("{}/{}/information", folder, bus), "Model").value_or(bus));
  }
  return models;
}

/// Loads NCCL as ranks would, and asks for its version.
std::optional<int> NcclVersion() {
  void* const library = ::dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  using GetVersion = int (*)(int*);
  GetVersion get = nullptr;
  void* const symbol = ::dlsym(library, "ncclGetVersion");
  std::memcpy(&get, &symbol, sizeof(get));
  int version = 0;
  return get != nullptr && get(&version) == 0 ? std::optional(version) : std::nullopt;
}

/// From 2.9 on 10000·major + 100·minor + patch, before that 1000·major.
std::string NcclText(int version) {
  const int major = version >= 10000 ? 10000 : 1000;
  return fmt::format("{}.{}.{}", version / major, version % major / 100, version % 100);
}

std::string ModelsText(const GpuFacts& facts) {
  return facts.models.empty() ? "a GPU" : fmt::format("{}", fmt::join(facts.models, ", "));
}

Check GpuCheck(const GpuFacts& facts) {
  const bool has_driver = facts.driver || !facts.models.empty();
  if (facts.free_memory.ok()) {
    return OkCheck("GPU", fmt::format("{}, {} of the first are free", ModelsText(facts),
                                      ToString(*facts.free_memory)));
  }
  if (!has_driver) {
    return OkCheck("GPU", "none: there is no NVIDIA driver here; the CPU computes");
  }
  if (facts.built_cuda == 0) {
    return WarnCheck("GPU", fmt::format("{}, which this build does not use", ModelsText(facts)),
                     "build with -D PENSTOCK_CUDA=ON and the CUDA toolkit");
  }
  return WarnCheck("GPU", facts.free_memory.error().message,
                   "in a container, run it with --gpus all; else look at nvidia-smi");
}

Check DriverCheck(const GpuFacts& facts) {
  const std::string name = "GPU driver";
  const std::string oldest = OldestDriver(facts.built_cuda);
  const std::string needs =
      facts.built_cuda == 0 ? "this build has no CUDA"
      : oldest.empty()      ? "this build's CUDA is not in the table"
                            : fmt::format("this build has CUDA {}.{}, which needs {} or newer",
                                          facts.built_cuda / 1000, facts.built_cuda % 1000 / 10, oldest);
  if (!facts.driver) return OkCheck(name, "none; " + needs);
  const std::string found = fmt::format("{}; {}", *facts.driver, needs);
  if (oldest.empty() || !IsOlder(*facts.driver, oldest)) return OkCheck(name, found);
  return FailCheck(name, found, "install a newer driver, or build with an older CUDA");
}

Check NcclCheck(const GpuFacts& facts) {
  std::string variables = facts.nccl_variables.empty()
                              ? "no NCCL_ variable is set"
                              : fmt::format("{} set", fmt::join(facts.nccl_variables, ", "));
  if (facts.nccl) return OkCheck("NCCL", NcclText(*facts.nccl) + ", " + variables);
  if (facts.built_cuda != 0 && facts.models.size() > 1) {
    return WarnCheck("NCCL", "there is no libnccl.so.2, " + variables,
                     "ranks on GPUs need it; install libnccl2");
  }
  return OkCheck("NCCL", "there is no libnccl.so.2, which only ranks on GPUs need; " + variables);
}

}  // namespace

GpuFacts ReadGpuFacts(const MachineFiles& files) {
  return {.models = Models(files),
          .driver = DriverVersion(files),
          .built_cuda = device::BuiltCudaVersion(),
          .free_memory = device::FreeCudaMemory(),
          .nccl = NcclVersion(),
          .nccl_variables = NcclVariables()};
}

std::string OldestDriver(int cuda) {
  switch (cuda / 1000) {
    case 11:
      return "450.80.02";
    case 12:
      return "525.60.13";
    case 13:
      return "580.65.06";
    default:
      return "";
  }
}

bool IsOlder(const std::string& a, const std::string& b) {
  std::istringstream left(a), right(b);
  for (;;) {
    std::string x, y;
    const bool has_left = !std::getline(left, x, '.').fail();
    const bool has_right = !std::getline(right, y, '.').fail();
    if (!has_left || !has_right) return has_right;
    const Result<uint64_t> first = ParseWhole(x), second = ParseWhole(y);
    if (!first.ok() || !second.ok()) return false;
    if (*first != *second) return *first < *second;
  }
}

Checks GpuChecks(const GpuFacts& facts) {
  return {GpuCheck(facts), DriverCheck(facts), NcclCheck(facts)};
}

std::vector<std::string> NcclVariables() {
  std::vector<std::string> found;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with("NCCL_")) found.emplace_back(*entry);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace penstock::train
