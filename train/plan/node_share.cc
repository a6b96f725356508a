#include "train/plan/node_share.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <thread>
#include <utility>

#include "base/cpu_scope.h"
#include "base/units.h"
#include "config/config.h"
#include "device/device.h"
#include "train/process/log.h"
#include "zero/plan/thread_plan.h"

namespace penstock::train {
namespace {

constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
constexpr uint64_t kMaxCores = 1 << 20;
constexpr const char* kLoading = "CUDA_MODULE_LOADING";

std::vector<int> CpusOf(const std::vector<Core>& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  return cpus;
}

/// The number of compute threads that a rank would have of a part of the cores.
int ThreadsOf(std::vector<Core> cores, std::optional<double> cpu_quota) {
  config::Config open;
  zero::ChooseThreads({.cores = std::move(cores), .cpu_quota = cpu_quota}, device::Kind::kCpu,
                      &open);
  return open.compute_threads;
}

/// The least of what all ranks say.
Result<int> LeastOf(int mine, comm::Job& job) {
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job.Gather(std::to_string(mine)));
  int least = mine;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const Result<uint64_t> threads = ParseWhole(all[rank], {.low = 1, .high = kMaxCores});
    if (!threads.ok()) {
      return MakeError(ErrorCode::kUnavailable, "rank {} (host {}) sent no number of cores", rank,
                       job.hosts()[rank]);
    }
    least = std::min(least, static_cast<int>(*threads));
  }
  return least;
}

}  // namespace

std::vector<Core> PartOf(const std::vector<Core>& cores, uint32_t rank, uint32_t ranks) {
  if (cores.size() < ranks) return {cores[rank % cores.size()]};
  const size_t begin = cores.size() * rank / ranks;
  const size_t end = cores.size() * (rank + 1) / ranks;
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin),
          cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

Result<NodeShare> ShareProcessors(comm::Job& job) {
  const Result<Topology> machine = ReadTopology();
  const std::string mine =
      machine.ok() ? fmt::format("{}", fmt::join(CpusOf(machine->cores), ",")) : "";
  const uint32_t own = job.world().rank;
  PENSTOCK_ASSIGN(const std::vector<std::string> all,
                  job.Gather(fmt::format("{} {}", job.hosts()[own], mine)));
  NodeShare share{.sharing = 0};
  uint32_t before = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[own]) continue;
    before += rank < own ? 1 : 0;
    ++share.sharing;
  }
  // A machine that cannot be looked at has a core for each CPU.
  std::vector<Core> part =
      PartOf(machine.ok() ? machine->cores
                          : std::vector<Core>(std::max(std::thread::hardware_concurrency(), 1U)),
             before, share.sharing);
  std::optional<double> quota = machine.ok() ? machine->cpu_quota : std::nullopt;
  if (quota) *quota /= share.sharing;
  PENSTOCK_ASSIGN(share.most_compute_threads, LeastOf(ThreadsOf(part, quota), job));
  if (!machine.ok() || share.sharing == 1) return share;
  const Status bound = BindProcess(CpusOf(part));
  if (!bound.ok()) {
    LogNotice(fmt::format("the ranks of a node share its processors: {}", bound.error().message));
  }
  return share;
}

std::optional<std::string> VisibleGpu(const std::optional<std::string>& visible,
                                      uint32_t local_rank) {
  if (!visible) return std::to_string(local_rank);
  std::vector<std::string> all;
  std::istringstream text(*visible);
  for (std::string one; std::getline(text, one, ',');) all.push_back(one);
  if (all.size() <= local_rank) return std::nullopt;
  return all[local_rank];
}

void PrepareCuda(const comm::Environment& environment, uint32_t local_rank) {
  const std::optional<std::string> mine = VisibleGpu(environment(kVisible), local_rank);
  // NOLINTBEGIN(concurrency-mt-unsafe): the job's thread reads no variables
  static_cast<void>(::setenv(kLoading, "EAGER", 0));
  if (mine) static_cast<void>(::setenv(kVisible, mine->c_str(), 1));
  // NOLINTEND(concurrency-mt-unsafe)
}

}  // namespace penstock::train
