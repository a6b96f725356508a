#include "base/long_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {

LongWork::LongWork(std::string what, Notify say, std::function<Clock::time_point()> now)
    : what_(std::move(what)),
      say_(std::move(say)),
      now_(std::move(now)),
      start_(now_()),
      due_(start_ + kFirstLine) {}

void LongWork::Note(double done, double all) {
  const Clock::time_point now = now_();
  if (!say_ || now < due_ || done >= all) return;
  due_ = now + kNextLine;
  say_(fmt::format("{}: {:.0f} % after {} s", what_, std::max(0.0, 100 * done / all),
                   std::chrono::duration_cast<std::chrono::seconds>(now - start_).count()));
}

}  // namespace penstock
