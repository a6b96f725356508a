#include "aio/request_queue.h"

#include <gmock/gmock.h>

#include <vector>

#include "aio/unfinished.h"
#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

class RequestQueueTest : public testing::Test {
 protected:
  std::shared_ptr<PendingRequest> Pending(Priority priority, std::span<std::byte> buffer,
                                          uint64_t offset = 0) {
    auto pending = std::make_shared<PendingRequest>();
    pending->request = ReadRequest(file_, offset, buffer);
    pending->request.priority = priority;
    if (priority == Priority::kWriteBack) pending->request.operation = Operation::kWrite;
    pending->sequence = sequence_++;
    return pending;
  }

  /// The classes of the next blocks, a letter each: p, s, w.
  static std::string Order(RequestQueue& queue) {
    std::string order;
    while (!queue.empty()) {
      order += "psw"[static_cast<size_t>(queue.Cut().request->request.priority)];
    }
    return order;
  }

  File file_ = File::Adopt(UniqueFd(), "nowhere", 512_B);
  uint64_t sequence_ = 0;
};

TEST_F(RequestQueueTest, RequestsBeyondTwoAndFourGiBAreCutWithoutGapOrOverlap) {
  // Address space only: no page of it is ever touched.
  const Bytes size = 5_GiB + 512_B;
  Result<Mapping> space = Mapping::Create(size);
  ASSERT_TRUE(space.ok());
  RequestQueue queue(1_GiB);
  queue.Push(Pending(Priority::kParameterRead, {space->data(), size.value}, (7_GiB).value));
  Bytes expected;
  std::vector<uint64_t> sizes;
  while (!queue.empty()) {
    const Block block = queue.Cut();
    EXPECT_EQ(block.begin, expected);
    expected += block.size;
    sizes.push_back(block.size.value);
  }
  EXPECT_EQ(expected, size);
  const uint64_t whole = (1_GiB).value;
  EXPECT_THAT(sizes, testing::ElementsAre(whole, whole, whole, whole, whole, 512));
}

TEST_F(RequestQueueTest, BlocksOfAnySizeStartOnTheAlignmentOfTheFile) {
  file_ = File::Adopt(UniqueFd(), "nowhere", 2_KiB);
  Buffer buffer(3 * 2048);
  RequestQueue small(1_KiB);
  small.Push(Pending(Priority::kParameterRead, buffer.bytes()));
  EXPECT_EQ(small.Cut().size, 2_KiB);
  RequestQueue uneven(5_KiB);
  uneven.Push(Pending(Priority::kParameterRead, buffer.bytes()));
  EXPECT_EQ(uneven.Cut().size, 4_KiB);
  EXPECT_EQ(uneven.Cut().size, 2_KiB);
}

TEST_F(RequestQueueTest, HigherClassesGoFirstAndEachClassInOrder) {
  RequestQueue queue(4_KiB);
  Buffer buffer(2 * 4096);
  queue.Push(Pending(Priority::kWriteBack, buffer.bytes()));
  queue.Push(Pending(Priority::kStateRead, buffer.bytes()));
  const auto first = Pending(Priority::kParameterRead, buffer.bytes());
  queue.Push(first);
  queue.Push(Pending(Priority::kParameterRead, buffer.bytes()));
  EXPECT_EQ(queue.Cut().request, first);
  EXPECT_EQ(queue.Cut().request, first);
  EXPECT_EQ(Order(queue), "ppssww");
}

TEST_F(RequestQueueTest, LowerClassesGetABlockAfterTheStarvationBound) {
  RequestQueue queue(4_KiB);
  Buffer many(40 * 4096);
  Buffer few(2 * 4096);
  queue.Push(Pending(Priority::kWriteBack, few.bytes()));
  queue.Push(Pending(Priority::kParameterRead, many.bytes()));
  const std::string bound(kStarvationBound, 'p');
  EXPECT_EQ(Order(queue), bound + "w" + bound + "w" + std::string(40 - 2 * kStarvationBound, 'p'));
}

TEST_F(RequestQueueTest, OfTwoStarvingClassesTheOlderRequestGoesFirst) {
  RequestQueue queue(4_KiB);
  Buffer many(20 * 4096);
  Buffer one(4096);
  queue.Push(Pending(Priority::kWriteBack, one.bytes()));
  queue.Push(Pending(Priority::kStateRead, one.bytes()));
  queue.Push(Pending(Priority::kParameterRead, many.bytes()));
  const std::string bound(kStarvationBound, 'p');
  EXPECT_EQ(Order(queue), bound + "ws" + std::string(20 - kStarvationBound, 'p'));
}

TEST_F(RequestQueueTest, StateReadsLeaveHalfOfThePlacesToWriteBacksThatWait) {
  RequestQueue queue(4_KiB, /*places=*/4);
  Buffer buffer(6 * 4096);
  queue.Push(Pending(Priority::kStateRead, buffer.bytes()));
  queue.Push(Pending(Priority::kWriteBack, buffer.bytes()));
  const Block write = queue.Cut();
  EXPECT_EQ(write.request->request.priority, Priority::kWriteBack);
  EXPECT_EQ(queue.Cut().request->request.priority, Priority::kWriteBack);
  EXPECT_EQ(queue.Cut().request->request.priority, Priority::kStateRead);
  const Block read = queue.Cut();
  EXPECT_EQ(read.request->request.priority, Priority::kStateRead);
  queue.GiveBack(read);
  EXPECT_EQ(queue.Cut().request->request.priority, Priority::kStateRead);
  queue.GiveBack(write);
  EXPECT_EQ(queue.Cut().request->request.priority, Priority::kWriteBack);
}

TEST_F(RequestQueueTest, StateReadsLeaveReadsOfTheLowestClassNoPlaces) {
  RequestQueue queue(4_KiB, /*places=*/4);
  Buffer buffer(2 * 4096);
  const auto verifying = Pending(Priority::kWriteBack, buffer.bytes());
  verifying->request.operation = Operation::kRead;
  queue.Push(verifying);
  queue.Push(Pending(Priority::kStateRead, buffer.bytes()));
  EXPECT_EQ(Order(queue), "ssww");
}

TEST_F(RequestQueueTest, ParameterReadsLeaveWriteBacksNoPlaces) {
  RequestQueue queue(4_KiB, /*places=*/4);
  Buffer buffer(2 * 4096);
  queue.Push(Pending(Priority::kWriteBack, buffer.bytes()));
  queue.Push(Pending(Priority::kParameterRead, buffer.bytes()));
  EXPECT_EQ(Order(queue), "ppww");
}

TEST_F(RequestQueueTest, AnAbandonedRequestYieldsNoMoreBlocks) {
  RequestQueue queue(4_KiB);
  Buffer buffer(4 * 4096);
  const auto failed = Pending(Priority::kStateRead, buffer.bytes());
  queue.Push(failed);
  queue.Push(Pending(Priority::kStateRead, buffer.bytes().first(4096)));
  queue.Cut();
  queue.Abandon(*failed);
  EXPECT_NE(queue.Cut().request, failed);
  EXPECT_TRUE(queue.empty());
}

TEST(Unfinished, TheOldestIsBehindAllThatHaveFinishedInAnyOrder) {
  Unfinished unfinished;
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(unfinished.Add(), i);
  EXPECT_EQ(unfinished.end(), 5u);
  unfinished.Finish(1);
  unfinished.Finish(2);
  EXPECT_EQ(unfinished.oldest(), 0u);
  unfinished.Finish(0);
  EXPECT_EQ(unfinished.oldest(), 3u);
  unfinished.Finish(4);
  EXPECT_EQ(unfinished.oldest(), 3u);
  EXPECT_EQ(unfinished.Add(), 5u);
  unfinished.Finish(3);
  EXPECT_EQ(unfinished.oldest(), 5u);
  unfinished.Finish(5);
  EXPECT_EQ(unfinished.oldest(), unfinished.end());
}

}  // namespace
}  // namespace penstock::aio
