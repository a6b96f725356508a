// The policy of every engine, step by step, on a drive that the test plays.
#include "aio/io_loop.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

/// Records what it is given and reports what the test tells it to.
class ScriptedDrive final : public Drive {
 public:
  void Submit(const BlockOperation& block) override { submitted.push_back(block); }
  void Reap(bool, std::vector<BlockResult>& results) override {
    results.insert(results.end(), next.begin(), next.end());
    next.clear();
  }
  void Wake() override {}
  const std::string& name() const override { return name_; }

  std::vector<BlockOperation> submitted;
  std::vector<BlockResult> next;

 private:
  const std::string name_ = "scripted";
};

class IoLoopTest : public testing::Test {
 protected:
  void Start(const EngineOptions& options) {
    loop_ = std::make_unique<IoLoop>(
        drive_, options, [this](const auto& request) { finished_.push_back(request->outcome); });
  }

  void Add(Request request) {
    auto pending = std::make_shared<PendingRequest>();
    pending->request = std::move(request);
    loop_->Add(std::move(pending));
  }

  /// Reports `result` for the block that was submitted `index`-th, and lets the loop act on it.
  void Report(size_t index, int64_t result) {
    drive_.next.push_back({drive_.submitted.at(index).slot, result});
    loop_->Reap(results_);
    loop_->Fill();
  }

  /// Reports every block from the `first`-th on as complete.
  void ReportFull(size_t first) {
    for (size_t i = first; i < drive_.submitted.size(); ++i) {
      Report(i, static_cast<int64_t>(drive_.submitted[i].data.size()));
    }
  }

  ScriptedDrive drive_;
  std::unique_ptr<IoLoop> loop_;
  std::vector<Status> finished_;
  std::vector<BlockResult> results_;
  File file_ = File::Adopt(UniqueFd(), "the-file", 512_B);
  Buffer buffer_{16 * 4096};
};

TEST_F(IoLoopTest, FillsTheQueueAcrossRequestsAndNoFurther) {
  Start({.block_size = 4_KiB, .queue_depth = 4});
  for (size_t i = 0; i < 3; ++i) {
    Add(ReadRequest(file_, i * 8192, buffer_.bytes().subspan(i * 8192, 8192)));
  }
  loop_->Fill();
  EXPECT_EQ(drive_.submitted.size(), 4u);
  EXPECT_FALSE(loop_->has_room());
  Report(2, 4096);
  EXPECT_EQ(drive_.submitted.size(), 5u) << "one came back, one goes out";
  EXPECT_EQ(loop_->stats().max_in_flight, 4);
  Report(0, 4096);
  Report(1, 4096);
  Report(3, 4096);
  Report(4, 4096);
  Report(5, 4096);
  EXPECT_EQ(finished_.size(), 3u);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(IoLoopTest, WithoutOverlapTheWholeQueueComesBackFirst) {
  Start({.block_size = 4_KiB, .queue_depth = 2, .overlap_events = false});
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4 * 4096)));
  loop_->Fill();
  EXPECT_EQ(drive_.submitted.size(), 2u);
  Report(0, 4096);
  EXPECT_EQ(drive_.submitted.size(), 2u);
  EXPECT_FALSE(loop_->has_room());
  Report(1, 4096);
  EXPECT_EQ(drive_.submitted.size(), 4u);
}

TEST_F(IoLoopTest, AParameterReadOvertakesAWriteBackThatIsUnderWay) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(3 * 4096)));
  loop_->Fill();
  Add(ReadRequest(file_, 1 << 20, buffer_.bytes().subspan(3 * 4096, 4096)));
  ReportFull(0);
  std::vector<Operation> order;
  for (const BlockOperation& block : drive_.submitted) order.push_back(block.operation);
  EXPECT_THAT(order, testing::ElementsAre(Operation::kWrite, Operation::kRead, Operation::kWrite,
                                          Operation::kWrite));
  EXPECT_EQ(finished_.size(), 2u);
}

TEST_F(IoLoopTest, AShortTransferIsContinuedBehindItsWholeAlignmentUnits) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(ReadRequest(file_, 4096, buffer_.bytes().first(4096)));
  loop_->Fill();
  Report(0, 1000);  // one unit of 512 and a piece that does not count
  ASSERT_EQ(drive_.submitted.size(), 2u);
  EXPECT_EQ(drive_.submitted[1].offset, FileOffset{4096 + 512});
  EXPECT_EQ(drive_.submitted[1].data.data(), buffer_.bytes().data() + 512);
  EXPECT_EQ(drive_.submitted[1].data.size(), 4096u - 512);
  Report(1, 4096 - 512);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_OK(finished_[0]);
  EXPECT_EQ(loop_->stats().continuations, 1u);
  EXPECT_EQ(loop_->stats().read_bytes, 4096u);
}

TEST_F(IoLoopTest, AReadThatGetsLessThanAUnitHasMetTheEndOfTheFile) {
  for (const int64_t result : {0, 511}) {
    finished_.clear();
    drive_.submitted.clear();
    Start({.block_size = 4_KiB, .queue_depth = 1});
    Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));
    loop_->Fill();
    Report(0, result);
    ASSERT_EQ(finished_.size(), 1u);
    EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("the file shrank"));
  }
}

TEST_F(IoLoopTest, AWriteThatTakesNothingIsTriedWithABound) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  for (size_t i = 0; i <= kMaxAttempts; ++i) {
    ASSERT_TRUE(finished_.empty());
    Report(i, 0);
  }
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_FALSE(finished_[0].ok());
  EXPECT_EQ(drive_.submitted.size(), kMaxAttempts + 1u);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(IoLoopTest, ProgressRenewsTheBoundOnAttempts) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  size_t sent = 0;
  for (int i = 0; i < kMaxAttempts; ++i) Report(sent++, -EINTR);
  Report(sent++, 512);
  for (int i = 0; i < kMaxAttempts; ++i) Report(sent++, -EAGAIN);
  Report(sent++, 4096 - 512);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_OK(finished_[0]);
  EXPECT_EQ(loop_->stats().retries, 2u * kMaxAttempts);
}

TEST_F(IoLoopTest, ABlockThatIsRefusedAgainAndAgainWaitsForAnotherToEnd) {
  Start({.block_size = 4_KiB, .queue_depth = 2});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(4096)));
  Add(WriteRequest(file_, 4096, buffer_.bytes().first(4096)));
  loop_->Fill();
  size_t sent = 0;
  for (int i = 0; i < kPatientAttempts - 1; ++i) {
    Report(sent, -EAGAIN);
    sent = drive_.submitted.size() - 1;
  }
  EXPECT_EQ(drive_.submitted.size(), 2u + kPatientAttempts - 1) << "sent again at once";
  Report(sent, -EAGAIN);
  EXPECT_EQ(drive_.submitted.size(), 2u + kPatientAttempts - 1) << "held back";
  Report(1, 4096);
  ASSERT_EQ(drive_.submitted.size(), 2u + kPatientAttempts) << "something was given back";
  Report(drive_.submitted.size() - 1, 4096);
  EXPECT_EQ(finished_.size(), 2u);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(IoLoopTest, ACancelLetsABlockGoThatIsHeldBack) {
  Start({.block_size = 4_KiB, .queue_depth = 2});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(4096)));
  Add(WriteRequest(file_, 4096, buffer_.bytes().first(4096)));
  loop_->Fill();
  size_t sent = 0;
  for (int i = 0; i < kPatientAttempts; ++i) {
    Report(sent, -EAGAIN);
    sent = drive_.submitted.size() - 1;
  }
  loop_->Cancel();
  loop_->Fill();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].error().code, ErrorCode::kCancelled);
}

TEST_F(IoLoopTest, MoreBytesThanAskedForAreAnError) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  Report(0, 4097);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("4097 bytes, more than were asked for"));
}

TEST_F(IoLoopTest, AFailedRequestWaitsForItsSiblingsAndStartsNoMore) {
  Start({.block_size = 4_KiB, .queue_depth = 3});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(8 * 4096)));
  loop_->Fill();
  Report(1, -EIO);
  EXPECT_EQ(drive_.submitted.size(), 3u);
  EXPECT_TRUE(finished_.empty()) << "two blocks of its buffer are still with the drive";
  Report(0, -EINTR);  // would be tried again, had its sibling not failed
  Report(2, 4096);
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("Input/output error"));
  EXPECT_EQ(drive_.submitted.size(), 3u);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(IoLoopTest, CancelFailsWhatTheDriveDoesNotHaveAndAwaitsTheRest) {
  Start({.block_size = 4_KiB, .queue_depth = 2});
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));         // in the drive
  Add(ReadRequest(file_, 4096, buffer_.bytes().first(2 * 4096)));  // half of it is
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));         // nothing of it is
  loop_->Fill();
  loop_->Cancel();
  ASSERT_EQ(finished_.size(), 1u) << "what is in the drive is awaited";
  EXPECT_EQ(finished_[0].error().code, ErrorCode::kCancelled);
  EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("read of 4096 bytes at offset 0 of the-file"));
  ReportFull(0);
  ASSERT_EQ(finished_.size(), 3u);
  EXPECT_OK(finished_[1]);
  EXPECT_EQ(finished_[2].error().code, ErrorCode::kCancelled);
  EXPECT_TRUE(loop_->idle());
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  ReportFull(2);
  ASSERT_EQ(finished_.size(), 4u);
  EXPECT_OK(finished_[3]) << "a later request is served";
}

TEST_F(IoLoopTest, CancelLetsABlockGoThatWasToBeTriedAgain) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(WriteRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  drive_.next.push_back({drive_.submitted[0].slot, -EAGAIN});
  loop_->Reap(results_);
  loop_->Cancel();
  loop_->Fill();
  ASSERT_EQ(finished_.size(), 1u);
  EXPECT_EQ(finished_[0].error().code, ErrorCode::kCancelled);
  EXPECT_EQ(drive_.submitted.size(), 1u);
  EXPECT_TRUE(loop_->idle());
}

TEST_F(IoLoopTest, ASyncIsOneEmptyBlockThatIsNeverTriedAgainAfterAnError) {
  for (const int error_number : {EAGAIN, EIO}) {
    finished_.clear();
    drive_.submitted.clear();
    Start({.block_size = 4_KiB, .queue_depth = 1});
    Add({.operation = Operation::kSync, .file = &file_});
    loop_->Fill();
    ASSERT_EQ(drive_.submitted.size(), 1u);
    EXPECT_TRUE(drive_.submitted[0].data.empty());
    Report(0, -EINTR);
    Report(1, -error_number);
    ASSERT_EQ(finished_.size(), 1u);
    EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("sync of the-file (fdatasync): "));
    EXPECT_THAT(MessageOf(finished_[0]), HasSubstr("since the last sync may be lost"));
    EXPECT_EQ(drive_.submitted.size(), 2u);
    EXPECT_EQ(loop_->stats().syncs, 0u);
  }
}

TEST_F(IoLoopTest, UnalignedPartsGoThroughThePageCacheAndMayEndAnywhere) {
  Start({.block_size = 64_KiB, .queue_depth = 4});
  Add(ReadRequest(file_, 100, buffer_.bytes().subspan(100, 3 * 4096)));
  loop_->Fill();
  ASSERT_EQ(drive_.submitted.size(), 3u);
  EXPECT_EQ(drive_.submitted[0].alignment, 1_B);
  EXPECT_EQ(drive_.submitted[1].alignment, 512_B);
  EXPECT_EQ(drive_.submitted[2].alignment, 1_B);
  EXPECT_EQ(drive_.submitted[1].offset, FileOffset{4096});
  EXPECT_EQ(drive_.submitted[1].data.size(), 2u * 4096);
  Report(0, 7);
  ASSERT_EQ(drive_.submitted.size(), 4u);
  EXPECT_EQ(drive_.submitted[3].offset, FileOffset{107}) << "continued at the very byte";
}

TEST_F(IoLoopTest, ARequestThatIsMalformedFinishesWithoutTheDrive) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  auto pending = std::make_shared<PendingRequest>();
  pending->outcome = MakeError(ErrorCode::kInvalidArgument, "bad");
  loop_->Add(std::move(pending));
  EXPECT_EQ(finished_.size(), 1u);
  EXPECT_EQ(loop_->stats().errors, 1u);
  EXPECT_TRUE(loop_->idle());
}

using IoLoopDeathTest = IoLoopTest;

TEST_F(IoLoopDeathTest, AResultForNoBlockIsABug) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  drive_.next.push_back({0, 4096});
  EXPECT_DEATH(loop_->Reap(results_), "holds no block");
}

TEST_F(IoLoopDeathTest, ASecondResultOfABlockThatWaitsToBeSentAgainIsABug) {
  Start({.block_size = 4_KiB, .queue_depth = 1});
  Add(ReadRequest(file_, 0, buffer_.bytes().first(4096)));
  loop_->Fill();
  drive_.next = {{0, -EAGAIN}, {0, 4096}};
  EXPECT_DEATH(loop_->Reap(results_), "holds no block");
}

}  // namespace
}  // namespace penstock::aio
