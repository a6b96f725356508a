// What is particular to Gloo: the job that brings ranks together and is told of operations, and the
// notes that ranks send each other.
#include <gloo/transport/context.h>
#include <gloo/transport/tcp/device.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/gloo_mesh.h"
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

TEST(GlooTest, AJobThatHasFailedConnectsNoRank) {
  const std::vector<std::unique_ptr<Job>> jobs = MakeJobOfThreads(2);
  const auto device = device::CreateCpuDevice({.memory = 1_MiB}).value();
  jobs[1]->Fail(Error{ErrorCode::kUnavailable, "rank 1 is gone"});
  const auto communicator = CreateGloo(*jobs[0], *device);
  ASSERT_FALSE(communicator.ok());
  EXPECT_EQ(communicator.error().message, "rank 1 is gone");
}

/// Says whether its rank has all its connections.
class AnnouncingJob final : public JobOfThreads {
 public:
  using JobOfThreads::JobOfThreads;

  /// The second time, GlooMesh says how connecting has gone.
  Status Agree(const Status& mine) override {
    if (++agreements_ == 2) connected.set_value(mine.ok());
    return JobOfThreads::Agree(mine);
  }

  std::promise<bool> connected;

 private:
  int agreements_ = 0;
};

// Gloo connects from the higher address to the lower one: rank 0 waits for rank 1, and rank 2 for
// rank 0.
TEST(GlooTest, ARankThatComesLateHoldsUpNoConnectionOfOthers) {
  std::signal(SIGPIPE, SIG_IGN);
  const auto shared = std::make_shared<JobOfThreads::Shared>(3);
  JobOfThreads first(shared, 3, 0, "127.0.0.2");
  JobOfThreads late(shared, 3, 1, "127.0.0.3");
  AnnouncingJob last(shared, 3, 2, "127.0.0.1");
  auto of_first = std::async(std::launch::async, [&] { return GlooMesh::Connect(first).status(); });
  auto of_last = std::async(std::launch::async, [&] { return GlooMesh::Connect(last).status(); });

  const auto device = gloo::transport::tcp::CreateDevice(late.address().c_str());
  const auto context = device->createContext(1, 3);
  context->setTimeout(std::chrono::seconds(12));
  std::string addresses;
  for (const int rank : {0, 2}) {
    const std::vector<char> bytes = context->createPair(rank)->address().bytes();
    addresses.append(bytes.data(), bytes.size());
  }
  ASSERT_TRUE(late.Agree({}).ok());
  const std::vector<std::string> all = late.Gather(addresses).value();
  const size_t size = addresses.size() / 2;
  // Rank 0 has rank 1 first, rank 2 has it second.
  const std::vector<char> at_first(all[0].begin(), all[0].begin() + static_cast<ptrdiff_t>(size));
  const std::vector<char> at_last(all[2].begin() + static_cast<ptrdiff_t>(size), all[2].end());

  context->getPair(2)->connect(at_last);
  const bool connected = last.connected.get_future().get();
  EXPECT_TRUE(connected) << "rank 0 connects to rank 2 after rank 1 alone";
  if (connected) {
    context->getPair(0)->connect(at_first);
    EXPECT_TRUE(late.Agree({}).ok());
  } else {
    late.Fail(Error{ErrorCode::kCancelled, "the test has failed"});
  }
  EXPECT_EQ(of_first.get().ok(), connected);
  EXPECT_EQ(of_last.get().ok(), connected);
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
  EXPECT_EQ(note.Text(), std::string(GlooNote::kMaxText, 'x'));
  note.length = 0xffffffff;  // whatever comes over a wire
  EXPECT_EQ(note.Text().size(), GlooNote::kMaxText);
}

}  // namespace
}  // namespace penstock::comm
