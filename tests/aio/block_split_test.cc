// How requests are cut, at every kind of offset, size and address.
#include "aio/block_split.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

struct Part {
  uint64_t begin = 0;
  uint64_t size = 0;
  bool buffered = false;
  bool operator==(const Part&) const = default;
};

std::vector<Part> Split(const Request& request, Bytes block_size) {
  std::vector<Part> parts;
  const BlockPlan plan = PlanBlocks(request, block_size);
  Bytes begin;
  while (begin.value < request.buffer.size()) {
    const BlockPart part = BlockAt(plan, begin);
    parts.push_back({begin.value, part.size.value, part.buffered});
    if (part.size.value == 0) break;
    begin += part.size;
  }
  return parts;
}

class BlockSplitTest : public testing::Test {
 protected:
  File file_ = File::Adopt(UniqueFd(), "nowhere", 512_B);
  Buffer buffer_{64 * 4096};
};

TEST_F(BlockSplitTest, AnAlignedRequestIsDirectThroughout) {
  EXPECT_EQ(Split(ReadRequest(file_, 512, buffer_.bytes().subspan(512, 9 * 512)), 4_KiB),
            (std::vector<Part>{{0, 4096, false}, {4096, 512, false}}));
}

TEST_F(BlockSplitTest, HeadAndTailPagesAreBufferedAndTheMiddleIsDirect) {
  EXPECT_EQ(Split(ReadRequest(file_, 4000, buffer_.bytes().subspan(4000, 3 * 4096)), 8_KiB),
            (std::vector<Part>{{0, 96, true}, {96, 8192, false}, {8288, 4000, true}}));
}

TEST_F(BlockSplitTest, OnlyATailIsBufferedWhereTheStartIsAligned) {
  EXPECT_EQ(Split(WriteRequest(file_, 8192, buffer_.bytes().first(4097)), 4_KiB),
            (std::vector<Part>{{0, 4096, false}, {4096, 1, true}}));
}

TEST_F(BlockSplitTest, WithinOnePageEverythingIsBuffered) {
  EXPECT_EQ(Split(WriteRequest(file_, 4097, buffer_.bytes().subspan(1, 4000)), 4_KiB),
            (std::vector<Part>{{0, 4000, true}}));
  EXPECT_EQ(Split(WriteRequest(file_, 4000, buffer_.bytes().subspan(4000, 200)), 4_KiB),
            (std::vector<Part>{{0, 200, true}}));
}

TEST_F(BlockSplitTest, AnAddressThatDiffersFromTheOffsetMakesAllOfItBuffered) {
  EXPECT_EQ(Split(WriteRequest(file_, 0, buffer_.bytes().subspan(1, 10'000)), 8_KiB),
            (std::vector<Part>{{0, 8192, true}, {8192, 1808, true}}));
}

TEST_F(BlockSplitTest, AFileWithoutAlignmentIsCutAsIfAligned) {
  file_ = File::Adopt(UniqueFd(), "nowhere", 1_B);
  EXPECT_EQ(Split(ReadRequest(file_, 7, buffer_.bytes().subspan(3, 5000)), 4_KiB),
            (std::vector<Part>{{0, 4096, false}, {4096, 904, false}}));
}

TEST_F(BlockSplitTest, ASyncIsOneEmptyBlock) {
  const BlockPlan plan = PlanBlocks({.operation = Operation::kSync, .file = &file_}, 4_KiB);
  const BlockPart part = BlockAt(plan, 0_B);
  EXPECT_EQ(part.size, 0_B);
  EXPECT_FALSE(part.buffered);
}

TEST_F(BlockSplitTest, EveryRequestIsCoveredOnceAndDirectBlocksAreAligned) {
  std::mt19937 random(1);
  const auto draw = [&](size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(random);
  };
  for (int i = 0; i < 20'000; ++i) {
    file_ = File::Adopt(UniqueFd(), "nowhere", Bytes{uint64_t{512} << draw(4)});
    const size_t address = draw(2) == 0 ? draw(20'000) : draw(30) * 512;
    const size_t offset = draw(2) == 0 ? address + draw(9) * 4096 : draw(20'000);
    const size_t size = 1 + draw(100'000);
    const Request request = ReadRequest(file_, offset, buffer_.bytes().subspan(address, size));
    uint64_t end = 0;
    for (const Part& part : Split(request, Bytes{4096 * (1 + draw(8))})) {
      ASSERT_EQ(part.begin, end);
      ASSERT_GT(part.size, 0u);
      end += part.size;
      if (part.buffered) continue;
      const uint64_t unit = file_.alignment().value;
      ASSERT_EQ((offset + part.begin) % unit, 0u);
      ASSERT_EQ((address + part.begin) % unit, 0u);
      ASSERT_EQ(part.size % unit, 0u);
    }
    ASSERT_EQ(end, size);
  }
}

}  // namespace
}  // namespace penstock::aio
