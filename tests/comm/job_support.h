// Ranks as threads of one process, and environments of their own.
//
// The tests' ranks meet as those of torchrun do: behind a port that the test holds, at the first of
// several that is free, with a run of their own. So tests beside each other do not disturb each
// other.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/result.h"
#include "comm/job.h"
#include "comm/sockets.h"

namespace penstock::comm {

using Variables = std::map<std::string, std::string>;

inline Environment EnvironmentOf(Variables variables) {
  return [variables = std::move(variables)](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

/// A place where the ranks of one job meet.
class MeetingPlace {
 public:
  explicit MeetingPlace(uint32_t size) : agent_(Listen(0, true).value()), size_(size) {
    static std::atomic<int> runs = 0;
    run_ = std::to_string(++runs) + " of process " + std::to_string(::getpid());
  }

  Variables VariablesOf(uint32_t rank) const {
    return {{"RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size_)},
            {"MASTER_ADDR", "127.0.0.1"},   {"MASTER_PORT", std::to_string(agent_.port)},
            {"TORCHELASTIC_RUN_ID", run_},  {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  }
  Environment EnvironmentOf(uint32_t rank) const {
    return penstock::comm::EnvironmentOf(VariablesOf(rank));
  }

 private:
  Listener agent_;
  uint32_t size_;
  std::string run_;
};

/// Calls `work` for each rank on a thread of its own, and returns the results by rank.
template <typename Work>
auto ForEachRank(uint32_t size, const Work& work) {
  using Outcome = decltype(work(0U));
  std::vector<std::optional<Outcome>> outcomes(size);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { outcomes[rank].emplace(work(rank)); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<Outcome> all;
  for (std::optional<Outcome>& outcome : outcomes) all.push_back(*std::move(outcome));
  return all;
}

/// A job of `size` ranks, by rank.
inline std::vector<std::unique_ptr<Job>> JoinRanks(uint32_t size, const JobOptions& options = {}) {
  const MeetingPlace place(size);
  return ForEachRank(
      size, [&](uint32_t rank) { return Job::Join(place.EnvironmentOf(rank), options).value(); });
}

/// All ranks leave.
inline void FinishAll(const std::vector<std::unique_ptr<Job>>& jobs) {
  ForEachRank(static_cast<uint32_t>(jobs.size()),
              [&](uint32_t rank) { return jobs[rank]->Finish(); });
}

}  // namespace penstock::comm
