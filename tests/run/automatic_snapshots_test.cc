#include "run/automatic_snapshots.h"

#include <gtest/gtest.h>

#include "run/snapshot.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

TEST(AutomaticSnapshots, HaveTheNameOfTheirStep) {
  EXPECT_EQ(AutomaticSnapshotName(120), "auto-120");
  EXPECT_TRUE(CheckSnapshotName(AutomaticSnapshotName(uint64_t{1} << 48)).ok());
  for (const char* name : {"auto-0", "auto-120"}) EXPECT_TRUE(IsAutomaticSnapshotName(name));
  for (const char* name : {"auto-", "auto", "auto-1a", "auto--1", "my-auto-1", "Auto-1"}) {
    EXPECT_FALSE(IsAutomaticSnapshotName(name)) << name;
  }
}

TEST(AutomaticSnapshots, TheirNamesAreReserved) {
  const Status refused = CheckNewSnapshotName("auto-120");
  EXPECT_TRUE(FailsWith(refused, ErrorCode::kInvalidArgument, {"auto-120", "take another"}));
  EXPECT_TRUE(CheckNewSnapshotName("auto-best").ok());
  EXPECT_TRUE(CheckSnapshotName("auto-120").ok()) << "a run can go back to one";
}

}  // namespace
}  // namespace penstock::train
