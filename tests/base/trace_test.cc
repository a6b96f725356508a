#include "base/trace.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

namespace penstock {
namespace {

using std::chrono::microseconds;

class TraceTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  std::unique_ptr<Trace> Create() const {
    Result<std::unique_ptr<Trace>> trace = Trace::Create(path_);
    EXPECT_TRUE(trace.ok()) << trace.error().message;
    return std::move(trace).value();
  }
  nlohmann::json Read() const {
    std::ifstream file(path_);
    return nlohmann::json::parse(file);
  }

  const std::string path_ = ::testing::TempDir() + "/trace." + std::to_string(::getpid());
  const Trace::Clock::time_point start_ = Trace::Clock::now();
};

TEST_F(TraceTest, NamesArgumentsAndTimesAreReadBack) {
  const std::string name = "a \"name\" with \\ and \xff";
  {
    const auto trace = Create();
    const Trace::Row row = trace->AddRow(TraceGroup::kDrives, name);
    trace->Add(row, name, start_ + microseconds(500), start_ + microseconds(750), {{"bytes", 42}});
    trace->Keep();
    EXPECT_TRUE(trace->Finish().ok());
  }
  const nlohmann::json events = Read();
  const nlohmann::json& span = events.back();
  EXPECT_EQ(span["ph"], "X");
  EXPECT_EQ(span["name"], "a \"name\" with \\ and \xEF\xBF\xBD");
  EXPECT_NEAR(span["dur"].get<double>(), 250, 1e-3);
  EXPECT_EQ(span["args"]["bytes"], 42);
  EXPECT_EQ(events[1]["args"]["name"], span["name"]);
}

TEST_F(TraceTest, AnEmptyOneIsValid) {
  {
    const auto trace = Create();
    trace->Keep();
  }
  EXPECT_EQ(Read().size(), 1);
}

TEST_F(TraceTest, WhatIsNotKeptLeavesNoFile) {
  Create();
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(TraceTest, MoreThanTheBufferHoldsIsWhole) {
  constexpr size_t kSpans = 20000;
  {
    const auto trace = Create();
    const Trace::Row row = trace->AddRow(TraceGroup::kCompute, "compute");
    for (size_t i = 0; i < kSpans; ++i) {
      trace->Add(row, "span", start_ + microseconds(i), start_ + microseconds(i + 1));
    }
    trace->Keep();
  }
  EXPECT_EQ(Read().size(), kSpans + 3);
}

TEST_F(TraceTest, SpansThatOverlapAreInRowsOfTheirOwn) {
  {
    const auto trace = Create();
    TraceRows rows(*trace, TraceGroup::kDrives, "reads");
    const auto add = [&](int begin, int end) {
      rows.Add("read", start_ + microseconds(begin), start_ + microseconds(end), {});
    };
    add(0, 10);
    add(5, 12);   // beside the first
    add(12, 20);  // fits behind either
    add(1, 21);   // beside both
    trace->Keep();
  }
  std::set<int> rows;
  for (const nlohmann::json& event : Read()) {
    if (event["ph"] == "X") rows.insert(event["tid"].get<int>());
  }
  EXPECT_EQ(rows.size(), 3);
}

}  // namespace
}  // namespace penstock
