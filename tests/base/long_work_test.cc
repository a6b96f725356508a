#include "base/long_work.h"

#include <gmock/gmock.h>

#include <string>
#include <vector>

namespace penstock {
namespace {

using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(LongWorkTest, SaysWhatIsDoneAndHowFarItIsOnceItTakesLong) {
  LongWork::Clock::time_point now;
  std::vector<std::string> said;
  LongWork work(
      "verifying the commit in x.state", [&](const std::string& line) { said.push_back(line); },
      [&] { return now; });
  work.Note(1, 1000);
  now += LongWork::kFirstLine - seconds(1);
  work.Note(10, 1000);
  EXPECT_THAT(said, IsEmpty());
  now += seconds(2);
  work.Note(124, 1000);
  EXPECT_THAT(said, ElementsAre("verifying the commit in x.state: 12 % after 6 s"));
  now += LongWork::kNextLine - seconds(1);
  work.Note(500, 1000);
  EXPECT_EQ(said.size(), 1) << "one line a minute";
  now += seconds(1);
  work.Note(600, 1000);
  EXPECT_EQ(said.back(), "verifying the commit in x.state: 60 % after 66 s");
  now += LongWork::kNextLine;
  work.Note(1000, 1000);
  EXPECT_EQ(said.size(), 2) << "it has ended";
}

}  // namespace
}  // namespace penstock
