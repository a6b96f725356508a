// Keeps the other ranks informed of a training, and names a rank for which they wait.
//
// Threads: as of a StepObserver.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/notify.h"
#include "run/observers/step_observer.h"
#include "train/loop/slow_rank.h"

namespace penstock::train {

class OtherRanks final : public StepObserver {
 public:
  struct Parts {
    /// Tells the others what this thread does now, for messages; none for a single rank.
    std::function<void(std::string_view what)> doing;
    /// Tells the others why this one fails.
    std::function<void(const Error& why)> tell;
    std::vector<std::string> hosts;  ///< of the ranks, by rank
    Notify notify;
  };
  explicit OtherRanks(Parts parts) : parts_(std::move(parts)) {}

  void Doing(std::string_view what, uint64_t step) override;
  Status AfterStep(DoneStep& step) override;
  void Failing(const Error& why, const std::optional<uint64_t>& doubted_commit) override;

 private:
  const Parts parts_;
  SlowRank slow_rank_;
};

}  // namespace penstock::train
