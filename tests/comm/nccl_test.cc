// What is particular to NCCL: its memory, and that nothing can be ended that runs.
#include <gtest/gtest.h>

#include <vector>

#include "comm/communicator.h"
#include "tests/comm/back_ends.h"
#include "tests/comm/job_of_threads.h"

namespace penstock::comm {
namespace {

class NcclTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const BackEnd back_end = BackEnds().front();
    PENSTOCK_SKIP_WHERE_MISSING(back_end.missing(1));
    auto made = back_end.make(1);
    ASSERT_TRUE(made.ok()) << made.error().message;
    ranks_ = std::move(made).value();
  }
  Rank rank() const { return ranks_[0]; }

  Ranks ranks_;
};

TEST_F(NcclTest, ItsMemoryIsKnownAndDoesNotGrow) {
  EXPECT_GT(rank().communicator.device_bytes(), 0_B);
  const Bytes free = device::FreeCudaMemory().value();
  const device::DeviceBuffer data = rank().Allocate(32 << 20);
  const device::DeviceBuffer to = rank().Allocate(32 << 20);
  rank().communicator.AllGather(data.data(), data.size(), TheOperation(1));
  rank().communicator.AllToAll(data.data(), data.size(), to.data(), to.size(), TheOperation(2));
  ASSERT_TRUE(rank().stream().Synchronize().ok());
  EXPECT_EQ(device::FreeCudaMemory().value(), free);
}

TEST_F(NcclTest, WhatComesAfterAnAbortFailsWithItsReason) {
  const device::DeviceBuffer data = rank().Allocate(1000);
  rank().communicator.AllGather(data.data(), data.size(), TheOperation(1));
  rank().communicator.Abort(Error{ErrorCode::kOutOfSpace, "the drive is full"});
  rank().communicator.Abort(Error{ErrorCode::kIo, "another reason"});
  EXPECT_TRUE(rank().stream().Synchronize().ok());
  rank().communicator.AllGather(data.data(), data.size(), TheOperation(2));
  const Status status = rank().stream().Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kOutOfSpace);
  EXPECT_EQ(status.error().message, "the drive is full");
}

TEST_F(NcclTest, TheJobIsToldOfEachOperation) {
  const device::DeviceBuffer data = rank().Allocate(1000);
  rank().communicator.AllGather(data.data(), data.size(), TheOperation(1));
  ASSERT_TRUE(rank().stream().Synchronize().ok());
  using enum OperationState;
  const std::vector<JobOfThreads::Entry> expected = {
      {TheOperation(1), kEnqueued}, {TheOperation(1), kBegun}, {TheOperation(1), kEnded}};
  EXPECT_EQ(static_cast<const JobOfThreads&>(*ranks_.jobs[0]).entries(), expected);
}

}  // namespace
}  // namespace penstock::comm
