// What ranks learn when one of them makes another call, is aborted or ends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "tests/comm/back_ends.h"

namespace penstock::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Bytes kPart = 1000_B;

class CommunicatorFailureTest : public RanksTest {
 protected:
  /// The rank that does what the test is of.
  static uint32_t last() { return size() - 1; }
  static std::string LastRank() { return "rank " + std::to_string(last()); }
  /// What the other ranks say of its end. Over TCP they may hear first of a rank that has ended for
  /// the same reason.
  static std::string LastHasEnded() {
    return (GetParam().back_end.name == "gloo" ? "" : LastRank()) + " has ended";
  }
  static void Gather(const Rank& rank, const device::DeviceBuffer& data, uint32_t index = 7) {
    rank.communicator.AllGather(data.data(), kPart, TheOperation(index));
  }
  static device::DeviceBuffer AllocateFor(const Rank& rank) {
    return rank.Allocate(rank.size * (2 * kPart).value);
  }
};

/// Another call than the gather of kPart bytes that the other ranks make.
struct OtherCall {
  const char* name;
  void (*make)(const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer& to);
  const char* words;  ///< in the message, which name it
};

Operation With(void (*change)(Operation&)) {
  Operation operation = TheOperation();
  change(operation);
  return operation;
}

const OtherCall kOtherCalls[] = {
    {"of another step",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer&) {
       rank.communicator.AllGather(data.data(), kPart, With([](Operation& o) { o.step = 4; }));
     },
     "(step 4, operation 7: all-gather of 1000 bytes a rank)"},
    {"one behind",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer&) {
       rank.communicator.AllGather(data.data(), kPart, TheOperation(8));
     },
     "(step 3, operation 8: all-gather of 1000 bytes a rank)"},
    {"of another module",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer&) {
       rank.communicator.AllGather(data.data(), kPart,
                                   With([](Operation& o) { o.what = "weights of h.4"; }));
     },
     "weights of h.4 (step 3, operation 7: all-gather of 1000 bytes a rank)"},
    {"of more bytes",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer&) {
       rank.communicator.AllGather(data.data(), Bytes{1001}, TheOperation());
     },
     "(step 3, operation 7: all-gather of 1001 bytes a rank)"},
    {"of no bytes",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer&) {
       rank.communicator.AllGather(data.data(), 0_B, TheOperation());
     },
     "(step 3, operation 7: all-gather of 0 bytes a rank)"},
    {"of another kind",
     [](const Rank& rank, const device::DeviceBuffer& data, const device::DeviceBuffer& to) {
       rank.communicator.AllToAll(data.data(), Bytes{1001}, to.data(), kPart, TheOperation());
     },
     "(step 3, operation 7: all-to-all of 1000 bytes a rank, 1001 bytes apart)"},
};

TEST_P(CommunicatorFailureTest, ARankInAnotherCallIsNamedWithBothCallsOnAllRanks) {
  if (size() == 1) return;  // no other rank to differ from
  for (const OtherCall& other : kOtherCalls) {
    SCOPED_TRACE(other.name);
    Make();
    // The threads outlive the calls of all ranks: no rank ends before the others know.
    ranks_.Run([&](const Rank& rank) {
      const device::DeviceBuffer data = AllocateFor(rank);
      const device::DeviceBuffer to = AllocateFor(rank);
      if (rank.number == last()) {
        other.make(rank, data, to);
      } else {
        Gather(rank, data);
      }
      const Status status = rank.stream().Synchronize();
      ASSERT_FALSE(status.ok()) << "rank " << rank.number;
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(status.error().message,
                  AllOf(HasSubstr(LastRank() + " is in "), HasSubstr(other.words),
                        HasSubstr("weights of h.3 (step 3, operation 7: all-gather of 1000 bytes a "
                                  "rank)")));
    });
  }
}

TEST_P(CommunicatorFailureTest, AnAbortedRankFailsWithTheReasonAndTheOthersNameIt) {
  ranks_.Run([&](const Rank& rank) {
    const device::DeviceBuffer data = AllocateFor(rank);
    if (rank.number == last()) {
      rank.communicator.Abort(Error{ErrorCode::kOutOfSpace, "the drive is full"});
      rank.communicator.Abort(Error{ErrorCode::kIo, "another reason"});
    }
    Gather(rank, data);
    const Status status = rank.stream().Synchronize();
    ASSERT_FALSE(status.ok()) << "rank " << rank.number;
    if (rank.number == last()) {
      EXPECT_EQ(status.error().code, ErrorCode::kOutOfSpace);
      EXPECT_EQ(status.error().message, "the drive is full");
    } else {
      EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
      EXPECT_THAT(status.error().message, AllOf(HasSubstr("weights of h.3 (step 3, operation 7"),
                                                HasSubstr(LastHasEnded())));
    }
  });
}

TEST_P(CommunicatorFailureTest, AnAbortEndsTheOperationThatWaits) {
  if (size() == 1) return;  // it never waits
  const device::DeviceBuffer data = AllocateFor(ranks_[0]);
  Gather(ranks_[0], data);
  const device::Event ended = ranks_[0].stream().Record();
  EXPECT_FALSE(ended.reached());
  ranks_[0].communicator.Abort(Error{ErrorCode::kCancelled, "interrupted"});
  ended.Wait();
  const Status status = ranks_[0].stream().Synchronize();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().message, "interrupted");
}

TEST_P(CommunicatorFailureTest, AnAbortAtAnyMomentEndsAllRanks) {
  constexpr size_t kLarge = size_t{1} << 20;
  if (size() > 4) return;  // four ranks are as many as this needs
  for (int round = 0; round < 10; ++round) {
    Make();
    std::vector<device::DeviceBuffer> data;
    for (uint32_t rank = 0; rank < size(); ++rank) {
      data.push_back(ranks_[rank].Allocate(size() * kLarge));
      for (uint32_t index = 0; index < 3; ++index) {
        ranks_[rank].communicator.AllGather(data[rank].data(), Bytes{kLarge}, TheOperation(index));
      }
    }
    // What takes longer each time moves the moment.
    const size_t work = static_cast<size_t>(round) << 15;
    ASSERT_EQ(Pattern(last(), work).size(), work);
    ranks_[last()].communicator.Abort(Error{ErrorCode::kCancelled, "interrupted"});
    for (uint32_t rank = 0; rank < size(); ++rank) {
      const Status status = ranks_[rank].stream().Synchronize();
      if (status.ok()) continue;
      // A rank may first hear of another that has ended for the same reason.
      EXPECT_THAT(status.error().message, HasSubstr(rank == last() ? "interrupted" : " has ended"));
    }
  }
}

TEST_P(CommunicatorFailureTest, WhatEndedBeforeAnAbortStaysGood) {
  ranks_.Run([&](const Rank& rank) {
    const device::DeviceBuffer data = AllocateFor(rank);
    Gather(rank, data);
    EXPECT_TRUE(rank.stream().Synchronize().ok());
    rank.communicator.Abort(Error{ErrorCode::kCancelled, "interrupted"});
    EXPECT_TRUE(rank.stream().Synchronize().ok());
  });
}

TEST_P(CommunicatorFailureTest, RanksThatWaitForOneThatEndsLearnIt) {
  const std::vector<device::DeviceBuffer> data = [&] {
    std::vector<device::DeviceBuffer> all;
    for (uint32_t rank = 0; rank < size(); ++rank) all.push_back(AllocateFor(ranks_[rank]));
    return all;
  }();
  for (uint32_t rank = 0; rank < last(); ++rank) Gather(ranks_[rank], data[rank]);
  ranks_.communicators[last()].reset();
  for (uint32_t rank = 0; rank < last(); ++rank) {
    const Status status = ranks_[rank].stream().Synchronize();
    ASSERT_FALSE(status.ok()) << "rank " << rank;
    EXPECT_EQ(status.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(status.error().message, HasSubstr(LastHasEnded()));
  }
}

TEST_P(CommunicatorFailureTest, ARankMayEndAsSoonAsItsOperationsHave) {
  for (int round = 0; round < 5; ++round) {
    Make();
    ranks_.Run([&](const Rank& rank) {
      const device::DeviceBuffer data = AllocateFor(rank);
      for (uint32_t index = 0; index < 3; ++index) Gather(rank, data, index);
      const Status status = rank.stream().Synchronize();
      EXPECT_TRUE(status.ok()) << "rank " << rank.number << ": " << status.error().message;
      ranks_.communicators[rank.number].reset();
    });
  }
}

TEST_P(CommunicatorFailureTest, NoOrderOfEndingHangs) {
  if (size() > 3) return;  // all orders of three are enough
  std::vector<uint32_t> order(size());
  std::iota(order.begin(), order.end(), 0);
  do {
    for (uint32_t calling = 0; calling < (1U << size()); ++calling) {
      Make();
      std::vector<device::DeviceBuffer> data;
      for (uint32_t rank = 0; rank < size(); ++rank) {
        data.push_back(AllocateFor(ranks_[rank]));
        if ((calling >> rank & 1) != 0) Gather(ranks_[rank], data[rank]);
      }
      for (const uint32_t rank : order) {
        ranks_.communicators[rank].reset();
        data[rank] = device::DeviceBuffer();
      }
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

INSTANTIATE_TEST_SUITE_P(, CommunicatorFailureTest, ::testing::ValuesIn(TestedWorlds()), NameOf);

}  // namespace
}  // namespace penstock::comm
