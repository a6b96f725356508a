// Whether the emulated NCCL ends the program where the ranks' operations do not fit.
#include <gtest/gtest.h>

#include <utility>

#include "comm/communicator.h"
#include "tests/comm/back_ends.h"

namespace penstock::comm {
namespace {

constexpr Bytes kPart = 100_B;

class NcclDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { ::testing::FLAGS_gtest_death_test_style = "threadsafe"; }
  /// Rank 0 gathers parts of kPart, while rank 1 does something else.
  static void Differ(void (*other)(const Rank&, std::byte* data, std::byte* to)) {
    const Ranks ranks = BackEnds().front().make(2).value();
    ranks.Run([&](const Rank& rank) {
      const device::DeviceBuffer data = rank.Allocate(4096);
      const device::DeviceBuffer to = rank.Allocate(4096);
      if (rank.number == 0) {
        rank.communicator.AllGather(data.data(), kPart, TheOperation());
      } else {
        other(rank, data.data(), to.data());
      }
      static_cast<void>(rank.stream().Synchronize());
    });
  }
};

TEST_F(NcclDeathTest, AnotherKindEndsTheProgram) {
  EXPECT_DEATH(Differ([](const Rank& rank, std::byte* data, std::byte* to) {
                 rank.communicator.AllToAll(data, kPart, to, kPart, TheOperation());
               }),
               "are in other operations");
}

TEST_F(NcclDeathTest, AnotherSizeEndsTheProgram) {
  EXPECT_DEATH(Differ([](const Rank& rank, std::byte* data, std::byte*) {
                 rank.communicator.AllGather(data, Bytes{101}, TheOperation());
               }),
               "sends 10. bytes, of which rank . receives 10.");
}

TEST(EmulatedNcclTest, WhatItTakesOfTheDeviceIsFoundOut) {
  const Ranks ranks = BackEnds().front().make(1).value();
  EXPECT_EQ(ranks[0].communicator.device_bytes(), 6_MiB);
}

}  // namespace
}  // namespace penstock::comm
