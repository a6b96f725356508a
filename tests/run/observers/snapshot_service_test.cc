#include "run/observers/snapshot_service.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <optional>

#include "base/check.h"
#include "run/snapshot_request.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

/// While it lives, no thread can be started: its stack would not fit the address space.
class LargestStacks {
 public:
  LargestStacks() {
    PENSTOCK_CHECK(::pthread_getattr_default_np(&before_) == 0);
    pthread_attr_t largest;
    PENSTOCK_CHECK(::pthread_getattr_default_np(&largest) == 0);
    PENSTOCK_CHECK(::pthread_attr_setstacksize(&largest, size_t{1} << 62) == 0);
    PENSTOCK_CHECK(::pthread_setattr_default_np(&largest) == 0);
    ::pthread_attr_destroy(&largest);
  }
  ~LargestStacks() {
    ::pthread_setattr_default_np(&before_);
    ::pthread_attr_destroy(&before_);
  }
  LargestStacks(const LargestStacks&) = delete;
  LargestStacks& operator=(const LargestStacks&) = delete;

 private:
  pthread_attr_t before_{};
};

class SnapshotServiceTest : public ::testing::Test {
 protected:
  SnapshotRequest Ask(const std::string& name) const {
    return std::move(SnapshotRequest::Make(folder_, "0123", name)).value();
  }

  const TempFolder run_;
  const Folder folder_ = run_.Open();
  /// Of a state that is not there.
  SnapshotService service_{folder_,
                           {.run_uuid = "0123",
                            .place = run_.Path(""),
                            .state = StateFiles::OfOneRank({run_.Path("state")}, "0123")},
                           true,
                           2,
                           [] { return false; },
                           [](const std::string&) {}};
};

TEST_F(SnapshotServiceTest, ARequestThatIsNoLongerLockedIsNone) {
  EXPECT_FALSE(service_.Requested());
  std::optional<SnapshotRequest> request(Ask("kept"));
  EXPECT_TRUE(service_.Requested());
  request.reset();  // as a kill does
  EXPECT_TRUE(run_.Has("snapshots/.kept.request"));
  EXPECT_FALSE(service_.Requested());
  ASSERT_TRUE(service_.AfterCommit().ok());
  EXPECT_FALSE(service_.copying());
  EXPECT_FALSE(run_.Has("snapshots/.kept.answer"));
  const SnapshotRequest again = Ask("kept");
  EXPECT_TRUE(service_.Requested());
}

TEST_F(SnapshotServiceTest, ARequestThatFailsIsAnsweredWithTheReason) {
  const SnapshotRequest request = Ask("kept");
  ASSERT_TRUE(service_.AfterCommit().ok());
  service_.Wait();
  ASSERT_TRUE(request.answered());
  EXPECT_TRUE(FailsWith(request.Answer(), ErrorCode::kIo, {"kept", run_.Path("state")}));
  EXPECT_FALSE(service_.Requested());
}

TEST_F(SnapshotServiceTest, WithoutAThreadForTheCopyTheReasonIsTheAnswerAndTrainingContinues) {
  const SnapshotRequest request = Ask("kept");
  {
    const LargestStacks no_thread_starts;
    ASSERT_TRUE(service_.AfterCommit().ok());
  }
  EXPECT_FALSE(service_.copying());
  ASSERT_TRUE(request.answered());
  EXPECT_TRUE(FailsWith(request.Answer(), ErrorCode::kIo, {"kept", "thread"}));
}

TEST_F(SnapshotServiceTest, TheAnswerOfAnEarlierVersionIsIgnoredAndStays) {
  run_.Write("snapshots/.kept.failed", "no space");
  const SnapshotRequest request = Ask("kept");
  ASSERT_TRUE(service_.AfterCommit().ok());
  service_.Wait();
  EXPECT_TRUE(FailsWith(request.Answer(), ErrorCode::kIo, {"kept", run_.Path("state")}));
  EXPECT_EQ(run_.Read("snapshots/.kept.failed"), "no space");
}

TEST_F(SnapshotServiceTest, AnAnswerThatOnlyMentionsTheRunIsSomebodyElses) {
  run_.Write("snapshots/.kept.answer", "notes on 0123");
  EXPECT_TRUE(FailsWith(SnapshotRequest::Make(folder_, "0123", "kept").status(),
                        ErrorCode::kInvalidArgument, {".kept.answer"}));
  const SnapshotRequest request = Ask("other");
  run_.Write("snapshots/.other.answer", "notes on 0123");
  ASSERT_TRUE(service_.AfterCommit().ok());
  service_.Wait();
  EXPECT_TRUE(request.answered());
  EXPECT_EQ(run_.Read("snapshots/.other.answer"), "notes on 0123");
}

TEST_F(SnapshotServiceTest, AnAutomaticSnapshotThatFailsLeavesNothingAndTrainingContinues) {
  service_.KeepCommit();
  service_.Wait();
  EXPECT_FALSE(service_.copying());
  {
    const LargestStacks no_thread_starts;
    service_.KeepCommit();
  }
  EXPECT_FALSE(service_.copying());
  EXPECT_FALSE(run_.Has("snapshots"));
}

TEST_F(SnapshotServiceTest, ARequestThatWasTakenBackIsNone) {
  const SnapshotRequest request = Ask("kept");
  request.TakeBack();
  EXPECT_FALSE(service_.Requested());
}

}  // namespace
}  // namespace penstock::train
