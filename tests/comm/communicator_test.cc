// The contract of communicator.h: which bytes arrive where, in which order, and what waiting costs.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "tests/comm/back_ends.h"

namespace penstock::comm {
namespace {

using Block = std::vector<std::byte>;

constexpr std::byte kUntouched{0xee};

void Put(Block& into, size_t at, const Block& block) {
  std::copy(block.begin(), block.end(), into.begin() + static_cast<ptrdiff_t>(at));
}
Block Cut(const Block& from, size_t at, size_t size) {
  const auto begin = from.begin() + static_cast<ptrdiff_t>(at);
  return {begin, begin + static_cast<ptrdiff_t>(size)};
}

/// Gathers `part` bytes of each rank, and looks at every byte up to one behind the last.
void GatherAndCheck(const Rank& rank, size_t part) {
  const device::DeviceBuffer data = rank.Allocate(rank.size * part + 1);
  Block sent(data.size().value, kUntouched);
  Put(sent, rank.number * part, Pattern(rank.number, part));
  Block expected(sent.size(), kUntouched);
  for (uint32_t other = 0; other < rank.size; ++other) {
    Put(expected, other * part, Pattern(other, part));
  }
  Block received(sent.size());
  rank.Write(data, sent);
  rank.communicator.AllGather(data.data(), Bytes{part}, TheOperation());
  rank.Read(received, data);
  const Status status = rank.stream().Synchronize();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(received == expected) << "rank " << rank.number << ", parts of " << part;
}

/// The seed of what one rank sends to another.
uint32_t SeedOf(uint32_t from, uint32_t to) { return 100 * from + to; }

/// The same for an exchange, at odd addresses.
void ExchangeAndCheck(const Rank& rank, size_t part, size_t stride) {
  const device::DeviceBuffer from = rank.Allocate(rank.size * stride + 2);
  const device::DeviceBuffer to = rank.Allocate(rank.size * part + 2);
  Block sent(from.size().value, kUntouched);
  Block expected(to.size().value, kUntouched);
  for (uint32_t other = 0; other < rank.size; ++other) {
    Put(sent, 1 + other * stride, Pattern(SeedOf(rank.number, other), part));
    Put(expected, 1 + other * part, Pattern(SeedOf(other, rank.number), part));
  }
  Block kept(sent.size());
  Block received(expected.size(), kUntouched);
  rank.Write(from, sent);
  rank.Write(to, received);
  rank.communicator.AllToAll(from.data() + 1, Bytes{stride}, to.data() + 1, Bytes{part},
                             TheOperation());
  rank.Read(kept, from);
  rank.Read(received, to);
  const Status status = rank.stream().Synchronize();
  ASSERT_TRUE(status.ok()) << status.error().message;
  EXPECT_TRUE(received == expected) << "rank " << rank.number << ", parts of " << part;
  EXPECT_TRUE(kept == sent) << "rank " << rank.number << ", parts of " << part;
}

using CommunicatorTest = RanksTest;

TEST_P(CommunicatorTest, EveryRankKnowsWhichOneItIs) {
  for (uint32_t rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(ranks_[rank].communicator.world().size, size());
    EXPECT_EQ(ranks_[rank].communicator.world().rank, rank);
  }
}

TEST_P(CommunicatorTest, AGatherBringsEveryPartToEveryRankInPlace) {
  ranks_.Run([](const Rank& rank) {
    for (const size_t part : {0, 1, 7, 4096, 100'003}) GatherAndCheck(rank, part);
  });
}

TEST_P(CommunicatorTest, AnExchangeBringsEachRankItsPartOfEveryRank) {
  ranks_.Run([](const Rank& rank) {
    for (const size_t part : {0, 1, 7, 4096, 100'003}) ExchangeAndCheck(rank, part, part);
  });
}

TEST_P(CommunicatorTest, PartsThatAreSentMayLieApart) {
  ranks_.Run([](const Rank& rank) {
    ExchangeAndCheck(rank, 0, 1);
    ExchangeAndCheck(rank, 1, 2);
    ExchangeAndCheck(rank, 1000, 4099);
  });
}

TEST_P(CommunicatorTest, LargePartsArriveWhole) {
  if (size() > 3) return;  // three ranks are as many as this needs
  ranks_.Run([](const Rank& rank) {
    constexpr size_t kLarge = (size_t{5} << 20) + 3;
    GatherAndCheck(rank, kLarge);
    ExchangeAndCheck(rank, kLarge, kLarge + 5);
  });
}

/// What `rounds` of an exchange from a to b, a gather in b, and the same back, leave in a.
std::vector<Block> AfterRounds(int rounds, size_t part, std::vector<Block> a) {
  const size_t size = a.size();
  std::vector<Block> b = a;
  for (int operation = 0; operation < 2 * rounds; ++operation) {
    for (size_t to = 0; to < size; ++to) {
      for (size_t from = 0; from < size; ++from) {
        Put(b[to], from * part, Cut(a[from], to * part, part));
      }
    }
    for (size_t from = 0; from < size; ++from) {
      const Block gathered = Cut(b[from], from * part, part);
      for (Block& block : b) Put(block, from * part, gathered);
    }
    std::swap(a, b);
  }
  return a;
}

TEST_P(CommunicatorTest, OperationsSeeWhatTheOnesBeforeThemBrought) {
  constexpr int kRounds = 12;
  constexpr size_t kPart = 517;
  std::vector<Block> begin;
  for (uint32_t rank = 0; rank < size(); ++rank) begin.push_back(Pattern(rank, size() * kPart));
  const std::vector<Block> end = AfterRounds(kRounds, kPart, begin);
  ranks_.Run([&](const Rank& rank) {
    const device::DeviceBuffer a = rank.Allocate(rank.size * kPart);
    const device::DeviceBuffer b = rank.Allocate(rank.size * kPart);
    rank.Write(a, begin[rank.number]);
    uint32_t index = 0;
    for (int round = 0; round < kRounds; ++round) {
      for (const auto& [from, to] :
           {std::pair(a.data(), b.data()), std::pair(b.data(), a.data())}) {
        rank.communicator.AllToAll(from, Bytes{kPart}, to, Bytes{kPart}, TheOperation(index++));
        rank.communicator.AllGather(to, Bytes{kPart}, TheOperation(index++));
      }
    }
    Block received(a.size().value);
    rank.Read(received, a);
    const Status status = rank.stream().Synchronize();
    ASSERT_TRUE(status.ok()) << status.error().message;
    EXPECT_TRUE(received == end[rank.number]) << "rank " << rank.number;
  });
}

TEST_P(CommunicatorTest, EventsOrderOperationsWithTheWorkOfOtherStreams) {
  ranks_.Run([](const Rank& rank) {
    constexpr size_t kPart = 64 << 10;
    constexpr uint32_t kRounds = 10;
    const std::unique_ptr<device::Stream> in = rank.device.CreateStream("in").value();
    const std::unique_ptr<device::Stream> out = rank.device.CreateStream("out").value();
    const device::DeviceBuffer data = rank.Allocate(rank.size * kPart);
    Block received(data.size().value);
    for (uint32_t round = 0; round < kRounds; ++round) {
      const Block sent = Pattern(SeedOf(rank.number, round), kPart);
      in->CopyToDevice(data.data() + rank.number * kPart, sent.data(), Bytes{kPart});
      rank.stream().Wait(in->Record());
      rank.communicator.AllGather(data.data(), Bytes{kPart}, TheOperation(round));
      out->Wait(rank.stream().Record());
      out->CopyToHost(received.data(), data.data(), data.size());
      in->Wait(out->Record());
      ASSERT_TRUE(out->Synchronize().ok());
      for (uint32_t other = 0; other < rank.size; ++other) {
        ASSERT_TRUE(Cut(received, other * kPart, kPart) == Pattern(SeedOf(other, round), kPart))
            << "rank " << rank.number << ", round " << round << ", from " << other;
      }
    }
    ASSERT_TRUE(in->Synchronize().ok());
  });
}

TEST_P(CommunicatorTest, TheCallingThreadDoesNotWait) {
  constexpr size_t kPart = 100;
  std::vector<device::DeviceBuffer> data;
  std::vector<device::Event> done;
  for (uint32_t rank = 0; rank < size(); ++rank) {
    // Were a call to wait for the others, whose turn it is later, the test would hang here.
    for (const device::Event& event : done) EXPECT_FALSE(event.reached());
    data.push_back(ranks_[rank].Allocate(size() * kPart));
    ranks_[rank].stream().Zero(data[rank].data(), data[rank].size());
    ranks_[rank].communicator.AllGather(data[rank].data(), Bytes{kPart}, TheOperation());
    done.push_back(ranks_[rank].stream().Record());
  }
  for (uint32_t rank = 0; rank < size(); ++rank) {
    EXPECT_TRUE(ranks_[rank].stream().Synchronize().ok());
  }
}

std::chrono::microseconds CpuTimeOfProcess() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::microseconds(time.tv_usec);
  };
  return of(usage.ru_utime) + of(usage.ru_stime);
}

TEST_P(CommunicatorTest, RanksThatWaitForALateOneSleep) {
  constexpr auto kLate = std::chrono::milliseconds(500);
  ranks_.Run([](const Rank& rank) { GatherAndCheck(rank, 1); });
  const std::chrono::microseconds before = CpuTimeOfProcess();
  ranks_.Run([&](const Rank& rank) {
    // It is late by the clock because what others would spend meanwhile is measured.
    if (rank.number + 1 == rank.size) std::this_thread::sleep_for(kLate);
    GatherAndCheck(rank, 1);
  });
  EXPECT_LT(CpuTimeOfProcess() - before, kLate / 2);
}

INSTANTIATE_TEST_SUITE_P(, CommunicatorTest, ::testing::ValuesIn(TestedWorlds()), NameOf);

}  // namespace
}  // namespace penstock::comm
