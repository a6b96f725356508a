// Ranks of one process: what they know of each other, and how slow a link makes them.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/meeting.h"
#include "tests/comm/ranks.h"

namespace penstock::comm {
namespace {

using std::chrono::milliseconds;

Ranks MakeRanks(uint32_t size, std::optional<LinkSpeed> link) {
  Ranks ranks;
  std::vector<device::Device*> devices;
  for (uint32_t rank = 0; rank < size; ++rank) {
    ranks.devices.push_back(std::move(device::CreateCpuDevice({.memory = 4_MiB})).value());
    devices.push_back(ranks.devices.back().get());
  }
  ranks.communicators = CreateLocal(devices, link).value();
  return ranks;
}

TEST(LocalTest, AllRanksAreOnOneNode) {
  const Ranks ranks = MakeRanks(3, std::nullopt);
  EXPECT_EQ(ranks[2].communicator.world(),
            (World{.size = 3, .rank = 2, .local_size = 3, .local_rank = 2}));
  EXPECT_EQ(ranks[2].communicator.device_bytes(), 0_B);
}

TEST(LocalTest, ALinkPassesThePartsOfTheOtherRanksAfterItsLatency) {
  const LinkSpeed link{.gigabytes_per_second = 0.5, .latency_seconds = 1e-3};
  EXPECT_EQ(Meeting::TimeOf(link, Bytes{1'000'000}, 4), milliseconds(1 + 3 * 2));
  EXPECT_EQ(Meeting::TimeOf(link, 0_B, 4), milliseconds(1));
  EXPECT_EQ(Meeting::TimeOf(link, Bytes{1'000'000}, 1), milliseconds(0));
  EXPECT_EQ(Meeting::TimeOf({.latency_seconds = 1e-3}, Bytes{1'000'000}, 4), milliseconds(1));
}

TEST(LocalTest, AnOperationIsNotOverBeforeTheLinkIsDone) {
  const Ranks ranks =
      MakeRanks(2, LinkSpeed{.gigabytes_per_second = 0.05, .latency_seconds = 5e-3});
  ranks.Run([](const Rank& rank) {
    const device::DeviceBuffer data = rank.Allocate(2 << 20);
    const auto begin = std::chrono::steady_clock::now();
    rank.communicator.AllGather(data.data(), Bytes{1'000'000}, TheOperation());
    ASSERT_TRUE(rank.stream().Synchronize().ok());
    EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(5 + 20));
  });
}

TEST(LocalTest, AnAbortDoesNotWaitForTheLink) {
  const Ranks ranks = MakeRanks(2, LinkSpeed{.latency_seconds = 3600});
  const device::DeviceBuffer data[] = {ranks[0].Allocate(2), ranks[1].Allocate(2)};
  for (uint32_t rank = 0; rank < 2; ++rank) {
    ranks[rank].communicator.AllGather(data[rank].data(), 1_B, TheOperation());
  }
  ranks[1].communicator.Abort(Error{ErrorCode::kCancelled, "interrupted"});
  EXPECT_FALSE(ranks[0].stream().Synchronize().ok());
  EXPECT_FALSE(ranks[1].stream().Synchronize().ok());
}

}  // namespace
}  // namespace penstock::comm
