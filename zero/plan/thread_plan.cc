#include "zero/plan/thread_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "base/cpu_scope.h"

namespace penstock::zero {
namespace {

using Cpus = std::vector<int>;

/// If cores have no second hardware thread, one in so many is set apart from computation.
constexpr size_t kCoresForOneApart = 16;

bool Meet(const std::vector<int>& a, const std::vector<int>& b) {
  return std::ranges::find_first_of(a, b) != a.end();
}

Cpus CpusOf(const std::vector<Core>& cores) {
  Cpus cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  std::ranges::sort(cpus);
  return cpus;
}

/// Those of `cpus` that are, or are not, among `others`.
Cpus Filter(Cpus cpus, const Cpus& others, bool among) {
  std::erase_if(cpus, [&](int cpu) { return Meet({cpu}, others) != among; });
  return cpus;
}

/// Returns the cores on `nodes`; all cores if there is none.
std::vector<Core> Near(const std::vector<Core>& cores, const std::vector<int>& nodes) {
  std::vector<Core> near = cores;
  std::erase_if(near, [&](const Core& core) { return !Meet(core.nodes, nodes); });
  return near.empty() ? cores : near;
}

/// Every hardware thread but the first of each core, as a core.
std::vector<Core> Siblings(const std::vector<Core>& cores) {
  std::vector<Core> siblings;
  for (const Core& core : cores) {
    for (size_t i = 1; i < core.cpus.size(); ++i) siblings.push_back({core.nodes, {core.cpus[i]}});
  }
  return siblings;
}

/// What computation leaves to the others on the CPU device: the second hardware threads, or else
/// some cores near `nodes`, or nothing.
std::vector<Core> LeftByComputation(const std::vector<Core>& cores, const std::vector<int>& nodes) {
  std::vector<Core> left = Siblings(cores);
  if (!left.empty()) return left;
  left = Near(cores, nodes);
  left.resize(std::min(left.size(), cores.size() / kCoresForOneApart));
  return left;
}

/// "0-7,16"
std::string ToText(const Cpus& cpus) {
  std::string text = cpus.size() == 1 ? "CPU " : "CPUs ";
  for (size_t begin = 0, end = 0; begin < cpus.size(); begin = end) {
    for (end = begin + 1; end < cpus.size() && cpus[end] == cpus[end - 1] + 1;) ++end;
    text += fmt::format("{}{}", begin == 0 ? "" : ",", cpus[begin]);
    if (end > begin + 1) text += fmt::format("-{}", cpus[end - 1]);
  }
  return text;
}

/// The places of drives, those that are somewhere in particular first.
std::map<Cpus, Cpus, std::greater<>> Places(const NumaPlacement& placement) {
  std::map<Cpus, Cpus, std::greater<>> places;
  for (const Cpus& near : placement.cpus) places[near] = {};
  return places;
}

/// I/O threads run on `cores`, but on none that is far from their drive.
void ShareWithIo(const NumaPlacement& placement, const std::vector<Core>& cores, ThreadPlan& plan) {
  for (const Cpus& near : placement.cpus) {
    const Cpus shared = near.empty() ? CpusOf(cores) : Filter(CpusOf(cores), near, /*among=*/true);
    plan.io.push_back(shared.empty() ? near : shared);
  }
}

/// The I/O threads of each place have one of `cores` to themselves, which is taken out.
void SetApartForIo(const NumaPlacement& placement, std::vector<Core>& cores, ThreadPlan& plan) {
  auto places = Places(placement);
  for (auto& [near, cpus] : places) {
    const auto core = std::ranges::find_if(
        cores, [&, &near = near](const Core& c) { return near.empty() || Meet(c.cpus, near); });
    cpus = core == cores.end() ? near : core->cpus;
    if (core != cores.end()) cores.erase(core);
  }
  for (const Cpus& near : placement.cpus) plan.io.push_back(places[near]);
}

std::string IoText(const ThreadPlan& plan) {
  Cpus all;
  for (const Cpus& cpus : plan.io) {
    const Cpus others = Filter(cpus, all, /*among=*/false);
    all.insert(all.end(), others.begin(), others.end());
  }
  std::ranges::sort(all);
  return all.empty() ? "" : ", I/O on " + ToText(all);
}

/// CPUs' worth of time, which is not a limit if there are no more CPUs than that.
double QuotaOf(const Topology& topology) {
  const double quota = topology.cpu_quota.value_or(0);
  const size_t cpus = std::max(CpusOf(topology.cores).size(), topology.cores.size());
  return quota > 0 && quota < static_cast<double>(cpus) ? quota
                                                        : std::numeric_limits<double>::infinity();
}
/// Of `threads`, as many as the quota lets run all the time; one or more.
int WithinQuota(const Topology& topology, size_t threads) {
  return static_cast<int>(std::min(std::ceil(QuotaOf(topology)), static_cast<double>(threads)));
}

std::string QuotaText(const Topology& topology) {
  return fmt::format("cgroups leave this process the time of {:.3g} CPUs, so none needs its own",
                     topology.cpu_quota.value_or(0));
}

/// No threads have CPUs of their own, but I/O threads stay near their drives. `threads` says what
/// the others are.
ThreadPlan Share(const Topology& topology, const NumaPlacement& placement, ThreadCounts counts,
                 const std::string& threads, const std::string& why) {
  return {.counts = counts,
          .io = placement.cpus,
          .notice = fmt::format("threads: {} and those of I/O share {}: {}", threads,
                                ToText(CpusOf(topology.cores)), why)};
}

ThreadPlan PlanForCpu(const Topology& topology, ThreadCounts counts,
                      const NumaPlacement& placement) {
  const std::vector<Core>& cores = topology.cores;
  const std::vector<Core> left = LeftByComputation(cores, placement.memory_nodes);
  const bool siblings = !Siblings(cores).empty();
  const auto most = static_cast<int>(cores.size() - (siblings ? 0 : left.size()));
  if (counts.compute == 0) counts.compute = WithinQuota(topology, static_cast<size_t>(most));
  const bool none_left = left.empty() || counts.compute > most;
  if (counts.optimizer == 0) {
    // About as many as use up the bandwidth of memory while computation waits for them.
    const int updating = std::max(WithinQuota(topology, cores.size()) / 4, 1);
    counts.optimizer = none_left ? updating : std::min(updating, static_cast<int>(left.size()));
  }
  const bool held_back = QuotaOf(topology) < counts.compute + counts.optimizer;
  if (none_left || held_back) {
    const std::string why =
        held_back ? QuotaText(topology)
        : left.empty()
            ? fmt::format(
                  "they are fewer than {} cores, without a second hardware thread: computation "
                  "needs them all",
                  kCoresForOneApart)
            : fmt::format("more than {} compute threads leave nothing to others", most);
    return Share(topology, placement, counts,
                 fmt::format("{} compute, {} optimizer", counts.compute, counts.optimizer), why);
  }
  ThreadPlan plan{.counts = counts,
                  .compute = Filter(CpusOf(cores), CpusOf(left), /*among=*/false)};
  std::vector<Core> rest = Near(left, placement.memory_nodes);
  if (siblings && rest.size() > Places(placement).size()) {
    SetApartForIo(placement, rest, plan);
  } else {
    ShareWithIo(placement, rest, plan);
  }
  plan.optimizer = CpusOf(rest);
  plan.notice =
      fmt::format("threads: {} compute on {}, {} optimizer on {}{}", counts.compute,
                  ToText(plan.compute), counts.optimizer, ToText(plan.optimizer), IoText(plan));
  return plan;
}

ThreadPlan PlanForGpu(const Topology& topology, ThreadCounts counts,
                      const NumaPlacement& placement) {
  std::vector<Core> cores = Near(topology.cores, placement.memory_nodes);
  if (counts.compute == 0) counts.compute = 1;
  if (QuotaOf(topology) < static_cast<double>(cores.size())) {
    const int updating = WithinQuota(topology, cores.size()) - 1;
    if (counts.optimizer == 0) counts.optimizer = std::max(1, updating);
    return Share(topology, placement, counts, fmt::format("{} optimizer", counts.optimizer),
                 QuotaText(topology));
  }
  if (cores.size() < Places(placement).size() + 2) {
    if (counts.optimizer == 0) counts.optimizer = std::max(1, static_cast<int>(cores.size()) - 1);
    return Share(topology, placement, counts, fmt::format("{} optimizer", counts.optimizer),
                 fmt::format("{} core{} near host memory: too few for one each for updates, I/O "
                             "and the thread that feeds the GPU",
                             cores.size(), cores.size() == 1 ? "" : "s"));
  }
  ThreadPlan plan;
  SetApartForIo(placement, cores, plan);
  const Cpus feeder = cores.back().cpus;
  cores.pop_back();
  if (counts.optimizer == 0) counts.optimizer = static_cast<int>(cores.size());
  plan.counts = counts;
  plan.optimizer = CpusOf(cores);
  plan.notice = fmt::format(
      "threads: {} optimizer on {}{}; {} left to the thread that feeds the "
      "GPU",
      counts.optimizer, ToText(plan.optimizer), IoText(plan), ToText(feeder));
  return plan;
}

}  // namespace

ThreadPlan PlanThreads(const Topology& topology, device::Kind kind, ThreadCounts wanted,
                       const NumaPlacement& placement) {
  return kind == device::Kind::kCuda ? PlanForGpu(topology, wanted, placement)
                                     : PlanForCpu(topology, wanted, placement);
}

void LeaveOutRefused(ThreadPlan& plan) {
  std::vector<Cpus*> sets = {&plan.compute, &plan.optimizer};
  for (Cpus& cpus : plan.io) sets.push_back(&cpus);
  for (Cpus* const cpus : sets) {
    const Status allowed = CpuScope(*cpus).status();
    if (allowed.ok()) continue;
    cpus->clear();
    plan.notice += "; these run anywhere: " + allowed.error().message;
  }
}

void ChooseThreads(const Topology& topology, device::Kind kind, config::Config* config) {
  const ThreadPlan plan =
      PlanThreads(topology, kind,
                  {.compute = config->compute_threads, .optimizer = config->optimizer_threads}, {});
  config->compute_threads = plan.counts.compute;
  if (kind == device::Kind::kCpu) config->optimizer_threads = plan.counts.optimizer;
}

void AssumeThreads(const Topology& topology, device::Kind kind, config::Config* config) {
  ChooseThreads(topology, kind, config);
  NumaPlacement anywhere;
  const bool drives = config::UsesNvme(*config) && !config->aio.simulate;
  if (drives) anywhere.cpus.resize(std::max<size_t>(config->nvme_paths.size(), 1));
  const ThreadCounts wanted{.compute = config->compute_threads,
                            .optimizer = config->optimizer_threads};
  config->optimizer_threads = PlanThreads(topology, kind, wanted, anywhere).counts.optimizer;
}

}  // namespace penstock::zero
