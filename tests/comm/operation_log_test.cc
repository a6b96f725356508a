#include "comm/operation_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

namespace penstock::comm {
namespace {

Operation Weights(uint32_t index) {
  return {.step = 12, .index = index, .what = "weights of h." + std::to_string(index)};
}

TEST(OperationLogTest, SaysWhatWasWhenTheNewestLast) {
  OperationLog log;
  const SteadyTime begin{};
  log.Add(Weights(3), OperationState::kEnqueued, begin);
  log.Add(Weights(3), OperationState::kBegun, begin + std::chrono::milliseconds(1500));
  log.Add(Weights(3), OperationState::kEnded, begin + std::chrono::milliseconds(1750));
  EXPECT_EQ(log.Text(begin + std::chrono::seconds(2)),
            "     2.000 s ago  enqueued  weights of h.3 (operation 3 of step 12)\n"
            "     0.500 s ago  begun     weights of h.3 (operation 3 of step 12)\n"
            "     0.250 s ago  ended     weights of h.3 (operation 3 of step 12)\n");
}

TEST(OperationLogTest, KeepsTheNewest) {
  OperationLog log;
  constexpr uint32_t kAdded = 2 * OperationLog::kKept + 5;
  for (uint32_t i = 0; i < kAdded; ++i) log.Add(Weights(i), OperationState::kBegun, {});
  const std::string text = log.Text({});
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(text, '\n')), OperationLog::kKept);
  const auto line_of = [&](uint32_t i) { return text.find("h." + std::to_string(i) + " "); };
  EXPECT_EQ(line_of(kAdded - OperationLog::kKept - 1), std::string::npos);
  EXPECT_LT(line_of(kAdded - OperationLog::kKept), line_of(kAdded - 1));
  EXPECT_EQ(text.rfind('\n', text.size() - 2) + 1, text.rfind("     0.000"));
}

TEST(OperationLogTest, ANameIsALine) {
  OperationLog log;
  log.Add({.step = 1, .index = 0, .what = "a\nb"}, OperationState::kBegun, {});
  EXPECT_EQ(log.Text({}), "     0.000 s ago  begun     a b (operation 0 of step 1)\n");
}

}  // namespace
}  // namespace penstock::comm
