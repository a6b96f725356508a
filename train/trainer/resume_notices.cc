#include "train/trainer/resume_notices.h"

#include <fmt/format.h>

#include "run/identity/run_identity.h"
#include "train/process/log.h"

namespace penstock::train {

void LogResume(const ResumePoint& from, const TrainJob& job, const std::string& now,
               const std::vector<RunChange>& changes) {
  LogNotice(fmt::format("resuming after step {}", from.train.step));
  for (const RunChange& change : changes) {
    LogNotice(fmt::format("changed from step {} on: {}", change.step + 1, ToText(change)));
  }
  const size_t ranks = from.info.state->ranks.size();
  if (job.config.gradient_order == config::GradientOrder::kRank && ranks != job.world.size) {
    LogNotice(
        fmt::format("ranks in the run: {}, and here: {}; with penstock.gradient_order \"rank\" the "
                    "last bits differ from here on",
                    ranks, job.world.size));
  }
  if (from.info.program != PENSTOCK_VERSION) {
    LogNotice(
        fmt::format("the run was begun by penstock {}, and this is {}: the last bits may "
                    "differ from here on",
                    from.info.program, PENSTOCK_VERSION));
  }
  const std::string before = ArithmeticOf(from.identity);
  if (before == now) return;
  LogNotice(
      fmt::format("the run computed with {}, and here it computes with {}: the last bits may "
                  "differ from here on",
                  before, now));
}

std::string TextOf(const std::vector<RequestedChange>& changes) {
  std::string text;
  for (const RequestedChange& change : changes) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", change.key, change.value);
  }
  return text.empty() ? "nothing" : text;
}

}  // namespace penstock::train
