// What is particular to Gloo: the job that brings ranks together and is told of operations, and the
// notes that ranks send each other.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gloo_note.h"
#include "tests/comm/back_ends.h"
#include "tests/comm/job_of_threads.h"

namespace penstock::comm {
namespace {

BackEnd Gloo() {
  for (const BackEnd& back_end : BackEnds()) {
    if (back_end.name == "gloo") return back_end;
  }
  ADD_FAILURE() << "there is no such back end";
  return {};
}

TEST(GlooTest, TheJobIsToldOfEachOperation) {
  const Ranks ranks = Gloo().make(2).value();
  ranks.Run([](const Rank& rank) {
    const device::DeviceBuffer data = rank.Allocate(2);
    rank.communicator.AllGather(data.data(), 1_B, TheOperation(1));
    ASSERT_TRUE(rank.stream().Synchronize().ok());
    rank.communicator.Abort(Error{ErrorCode::kCancelled, "interrupted"});
    rank.communicator.AllGather(data.data(), 1_B, TheOperation(2));
    ASSERT_FALSE(rank.stream().Synchronize().ok());
  });
  using enum OperationState;
  const std::vector<JobOfThreads::Entry> expected = {{TheOperation(1), kEnqueued},
                                                     {TheOperation(1), kBegun},
                                                     {TheOperation(1), kEnded},
                                                     {TheOperation(2), kEnqueued},
                                                     {TheOperation(2), kBegun}};
  for (const auto& job : ranks.jobs) {
    EXPECT_EQ(static_cast<const JobOfThreads&>(*job).entries(), expected);
  }
}

TEST(GlooTest, AJobThatHasFailedConnectsNobody) {
  const std::vector<std::unique_ptr<Job>> jobs = MakeJobOfThreads(2);
  const auto device = device::CreateCpuDevice({.memory = 1_MiB}).value();
  jobs[1]->Fail(Error{ErrorCode::kUnavailable, "rank 1 is gone"});
  const auto communicator = CreateGloo(*jobs[0], *device);
  ASSERT_FALSE(communicator.ok());
  EXPECT_EQ(communicator.error().message, "rank 1 is gone");
}

TEST(GlooTest, CallsThatDifferHaveOtherNumbers) {
  const Exchange call{.collective = Collective::kAllToAll,
                      .operation = TheOperation(),
                      .part = 1000_B,
                      .stride = 1000_B};
  const uint64_t number = Fingerprint(call);
  EXPECT_EQ(number >> 63, 1U);
  std::vector<Exchange> others(7, call);
  others[0].collective = Collective::kAllGather;
  others[1].part = 999_B;
  others[2].stride = 1001_B;
  others[3].operation.step += 1;
  others[4].operation.index += 1;
  others[5].operation.what = "weights of h.4";
  others[6].operation.what = "";
  for (const Exchange& other : others) {
    EXPECT_FALSE(SameCall(call, other)) << ToString(other);
    EXPECT_NE(Fingerprint(other), number) << ToString(other);
  }
  Exchange elsewhere = call;
  std::byte memory{};
  elsewhere.from = elsewhere.to = &memory;
  EXPECT_TRUE(SameCall(call, elsewhere));
  EXPECT_EQ(Fingerprint(elsewhere), number);
}

TEST(GlooTest, ANoteKeepsAsMuchTextAsThereIsRoomFor) {
  GlooNote note;
  note.Set(7, "short");
  EXPECT_EQ(note.fingerprint, 7U);
  EXPECT_EQ(note.Text(), "short");
  note.Set(8, std::string(5000, 'x'));
  EXPECT_EQ(note.Text(), std::string(GlooNote::kMostText, 'x'));
  note.length = 0xffffffff;  // whatever comes over a wire
  EXPECT_EQ(note.Text().size(), GlooNote::kMostText);
}

}  // namespace
}  // namespace penstock::comm
