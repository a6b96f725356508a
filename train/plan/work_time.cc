#include "train/plan/work_time.h"

#include <sys/resource.h>

#include <algorithm>
#include <ctime>
#include <vector>

namespace penstock::train {
namespace {

/// So many rounds that nothing interrupted are enough.
constexpr int kWholeRounds = 4;
constexpr int kMaxRounds = 12;
/// More than what a thread waits for the others of its team.
constexpr double kMuchWaiting = 1.25;

}  // namespace

WorkInstant WorkInstant::Now() {
  WorkInstant now;
  timespec processor{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &processor);
  now.processor_s =
      static_cast<double>(processor.tv_sec) + static_cast<double>(processor.tv_nsec) * 1e-9;
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  now.interruptions = usage.ru_nivcsw;
  now.time = std::chrono::steady_clock::now();
  return now;
}

Result<double> WorkTime::Of(const std::function<Result<WorkSpan>()>& work) {
  PENSTOCK_TRY(work().status());
  std::vector<double> taken;
  int whole = 0;
  for (int round = 0; round < kMaxRounds && whole < kWholeRounds; ++round) {
    PENSTOCK_ASSIGN(const WorkSpan span, work());
    const std::chrono::duration<double> passed = span.end.time - span.begin.time;
    const double processor_s = span.end.processor_s - span.begin.processor_s;
    taken.push_back(processor_s);
    const bool interrupted = span.end.interruptions > span.begin.interruptions ||
                             passed.count() > kMuchWaiting * processor_s;
    ++rounds_;
    ++(interrupted ? interrupted_ : whole);
  }
  std::ranges::nth_element(taken, taken.begin() + static_cast<std::ptrdiff_t>(taken.size() / 2));
  return taken[taken.size() / 2];
}

}  // namespace penstock::train
