#include "train/loop/ranks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/cpu_scope.h"
#include "base/topology.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

std::vector<int> CpusOf(const std::vector<Core>& cores) {
  std::vector<int> cpus;
  for (const Core& core : cores) cpus.insert(cpus.end(), core.cpus.begin(), core.cpus.end());
  return cpus;
}

/// The part of a node's cores that a rank has: equal shares, or one core with others if there are
/// fewer cores than ranks.
std::vector<Core> PartOf(const std::vector<Core>& cores, uint32_t rank, uint32_t ranks) {
  if (cores.size() < ranks) return {cores[rank % cores.size()]};
  const size_t begin = cores.size() * rank / ranks;
  const size_t end = cores.size() * (rank + 1) / ranks;
  return {cores.begin() + static_cast<std::ptrdiff_t>(begin),
          cores.begin() + static_cast<std::ptrdiff_t>(end)};
}

/// "rank 2 (host b)"
std::string NameOf(const comm::Job& job, size_t rank) {
  return fmt::format("rank {} (host {})", rank, job.hosts()[rank]);
}

using NamedValue = NamedValues::value_type;

/// The first value in which two ranks differ; null: one has no more.
Error Differ(const std::string& rank, const NamedValue* value, const std::string& first_rank,
             const NamedValue* first_value) {
  if (value == nullptr || first_value == nullptr || value->first != first_value->first) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} has other keys than {}: {} is on one of them only; start all ranks alike",
                     rank, first_rank, (value != nullptr ? value : first_value)->first);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} differs between ranks: {} on {}, {} on {}; start all ranks alike",
                   value->first, value->second, rank, first_value->second, first_rank);
}

}  // namespace

Result<std::unique_ptr<Ranks>> Ranks::Join(const comm::Environment& environment) {
  std::unique_ptr<Ranks> ranks(new Ranks());
  comm::JobOptions options;
  options.on_failure = [raw = ranks.get()](const Error& verdict) { raw->OnVerdict(verdict); };
  PENSTOCK_ASSIGN(ranks->job_, comm::Job::Join(environment, std::move(options)));
  if (ranks->alone()) return ranks;
  if (!ranks->first()) SilenceNotices();
  ranks->ChooseGpu(environment);
  PENSTOCK_TRY(ranks->ShareProcessors());
  return ranks;
}

/// Each rank of a node computes on a GPU of its own: the one that it sees is the first that CUDA
/// lists. A launcher that shows each rank one GPU has chosen already.
void Ranks::ChooseGpu(const comm::Environment& environment) {
  constexpr const char* kVisible = "CUDA_VISIBLE_DEVICES";
  const std::string visible = environment(kVisible).value_or("");
  std::string mine = std::to_string(world().local_rank);
  if (!visible.empty()) {
    std::vector<std::string> all;
    std::istringstream text(visible);
    for (std::string one; std::getline(text, one, ',');) all.push_back(one);
    if (all.size() <= world().local_rank) return;
    mine = all[world().local_rank];
  }
  // Before CUDA starts; the job's thread reads no variables.
  static_cast<void>(::setenv(kVisible, mine.c_str(), 1));  // NOLINT(concurrency-mt-unsafe)
}

/// Ranks of a node that may run on the same processors divide them. A launcher that has bound each
/// rank to its own has done that already.
Status Ranks::ShareProcessors() {
  const Result<Topology> machine = ReadTopology();
  const std::string mine =
      machine.ok() ? fmt::format("{}", fmt::join(CpusOf(machine->cores), ",")) : "";
  PENSTOCK_ASSIGN(const std::vector<std::string> all,
                  job_->Gather(fmt::format("{} {}", job_->hosts()[world().rank], mine)));
  uint32_t before = 0;
  uint32_t sharing = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != all[world().rank]) continue;
    before += rank < world().rank ? 1 : 0;
    ++sharing;
  }
  if (!machine.ok() || sharing == 1) return {};
  const Status bound = BindProcess(CpusOf(PartOf(machine->cores, before, sharing)));
  if (!bound.ok()) {
    LogNotice(fmt::format("the ranks of a node share its processors: {}", bound.error().message));
  }
  return {};
}

Result<std::string> Ranks::FromFirst(std::string text) {
  if (alone()) return text;
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job_->Gather(first() ? text : ""));
  return all.front();
}

Status Ranks::CheckAlike(const NamedValues& mine) {
  if (alone()) return {};
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job_->Gather(nlohmann::json(mine).dump()));
  const auto first_rank = nlohmann::json::parse(all.front()).get<NamedValues>();
  for (size_t rank = 1; rank < all.size(); ++rank) {
    const auto other = nlohmann::json::parse(all[rank]).get<NamedValues>();
    const auto [one, two] = std::ranges::mismatch(other, first_rank);
    if (one == other.end() && two == first_rank.end()) continue;
    // All ranks see the same values, and so find the same difference.
    return Agree(Differ(NameOf(*job_, rank), one == other.end() ? nullptr : &*one, NameOf(*job_, 0),
                        two == first_rank.end() ? nullptr : &*two));
  }
  return Agree(Status());
}

Result<std::vector<zero::StepNote>> Ranks::ExchangeNotes(const zero::StepNote& note) {
  if (alone()) return std::vector{note};
  std::string bytes(sizeof note, '\0');
  std::memcpy(bytes.data(), note.data(), sizeof note);
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job_->Gather(std::move(bytes)));
  std::vector<zero::StepNote> notes(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof note) {
      return MakeError(ErrorCode::kUnavailable, "{} sent {} bytes instead of a step's note",
                       NameOf(*job_, rank), all[rank].size());
    }
    std::memcpy(notes[rank].data(), all[rank].data(), sizeof note);
  }
  return notes;
}

Result<std::unique_ptr<comm::Communicator>> Ranks::CreateCommunicator(device::Device& device) {
  if (alone()) return std::unique_ptr<comm::Communicator>();
  return device.kind() == device::Kind::kCuda ? comm::CreateNccl(*job_, device)
                                              : comm::CreateGloo(*job_, device);
}

void Ranks::SetCleanup(std::function<void()> cleanup) {
  MutexLock lock(mutex_);
  cleanup_ = std::move(cleanup);
}

/// The main thread may wait for a rank that is gone, in a library that never returns. The first
/// rank speaks for all, unless it is the one that is gone.
void Ranks::OnVerdict(const Error& verdict) {
  MutexLock lock(mutex_);
  if (failing_) return;
  if (cleanup_) cleanup_();
  const bool speaks = first() || verdict.message.starts_with("rank 0 ");
  std::_Exit(speaks ? ReportError(verdict) : ExitCode(verdict.code));
}

void Ranks::Fail(const Error& why) {
  if (alone()) return;
  {
    MutexLock lock(mutex_);
    failing_ = true;
  }
  const Status known = job_->status();
  const bool agreed = !known.ok() && known.error().message == why.message;
  if (agreed && !first()) std::_Exit(ExitCode(why.code));
  job_->Fail(why);
}

Status Ranks::Finish() { return alone() ? Status() : job_->Finish(); }

}  // namespace penstock::train
