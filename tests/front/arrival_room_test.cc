// The ring in which gradients arrive.
#include "front/arrival_room.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <random>
#include <thread>
#include <vector>

#include "front/model_text.h"
#include "tests/front/c_engine.h"
#include "zero/plan/partitioner.h"

namespace penstock::front {
namespace {

constexpr uint64_t kRoom = 64 << 10;

TEST(ArrivalRoomTest, APieceIsNoOthersWhileItIsTaken) {
  ArrivalRoom room;
  ASSERT_TRUE(room.Create(Bytes{kRoom}).ok());
  std::minstd_rand random(1);
  std::deque<std::pair<std::span<std::byte>, std::byte>> taken;
  uint64_t held = 0;
  for (int i = 0; i < 20'000; ++i) {
    const Bytes wanted{1 + random() % 12'000};
    // As much as a piece may have, and what the end of the ring may cut off.
    while (held + kRoom / ArrivalRoom::kMinPieces > kRoom ||
           (!taken.empty() && random() % 3 == 0)) {
      const auto [piece, filling] = taken.front();
      taken.pop_front();
      for (const std::byte byte : piece) ASSERT_EQ(byte, filling);
      held -= piece.size();
      room.GiveBack(piece);
    }
    const std::span<std::byte> piece = room.Take(wanted);
    ASSERT_GE(piece.size(), ArrivalRoom::kAlignment.value);
    ASSERT_LE(piece.size(), kRoom / ArrivalRoom::kMinPieces);
    ASSERT_LT(piece.size(), wanted.value + ArrivalRoom::kAlignment.value);
    ASSERT_GE(piece.data(), room.bytes().data());
    ASSERT_LE(piece.data() + piece.size(), room.bytes().data() + kRoom);
    const auto filling = static_cast<std::byte>(i);
    std::memset(piece.data(), i, piece.size());
    taken.emplace_back(piece, filling);
    held += piece.size();
  }
  EXPECT_EQ(room.waits(), 0) << "there was always room";
}

TEST(ArrivalRoomTest, AllOfTheRoomIsTakenBeforeOneWaitsAndThatIsCounted) {
  ArrivalRoom room;
  ASSERT_TRUE(room.Create(Bytes{kRoom}).ok());
  std::deque<std::span<std::byte>> taken;
  for (uint64_t held = 0; held < kRoom; held += taken.back().size()) {
    taken.push_back(room.Take(Bytes{3000}));
  }
  EXPECT_EQ(room.waits(), 0);
  std::thread gives([&] { room.GiveBack(taken.front()); });
  room.Take(Bytes{1});
  gives.join();
  EXPECT_LE(room.waits(), 1);  // the other thread may have been first
  taken.pop_front();
  // What the last one left of the first piece's room.
  uint64_t left = 3072 - 256;
  while (left > 0) left -= room.Take(Bytes{left}).size();
  const uint64_t before = room.waits();
  std::thread waits([&] { room.Take(Bytes{1}); });
  while (room.waits() == before) std::this_thread::yield();
  room.GiveBack(taken.front());
  waits.join();
  EXPECT_EQ(room.waits(), before + 1);
}

TEST(ArrivalRoomDeathTest, PiecesComeBackInTheirOrder) {
  ArrivalRoom room;
  ASSERT_TRUE(room.Create(Bytes{kRoom}).ok());
  room.Take(Bytes{100});
  const std::span<std::byte> second = room.Take(Bytes{100});
  EXPECT_DEATH(room.GiveBack(second), "before those that were taken before it");
}

TEST(ArrivalRoomTest, TheLargestRoomHoldsAMicroBatchIfSeveralAreAddedUp) {
  const offload::ShardLayout layout =
      zero::MakeLayout(ParseModel(ModelOf("bf16").dump()).value(), DType::kFloat32, 4096);
  const Bytes minimum = ArrivalRoom::Minimum(layout);
  EXPECT_EQ(minimum.value, 8 * 36864);  // of 100 x 91 fp32, in whole pages
  EXPECT_EQ(ArrivalRoom::Maximum(layout, 1), minimum);
  EXPECT_EQ(ArrivalRoom::Maximum(layout, 3), minimum) << "which holds the small model's already";
  constexpr uint64_t kLarge = 40 << 20;
  json model = ModelOf("bf16");
  model["units"][0]["tensors"][0]["shape"] = {kLarge};
  const offload::ShardLayout large =
      zero::MakeLayout(ParseModel(model.dump()).value(), DType::kFloat32, 1 << 20);
  EXPECT_EQ(ArrivalRoom::Minimum(large), 32_MiB);
  EXPECT_EQ(ArrivalRoom::Maximum(large, 1), 32_MiB);
  const uint64_t all = 2 * kLarge + 3 * 18432 + 4 * 256;
  EXPECT_EQ(ArrivalRoom::Maximum(large, 2).value, (all + 4095) / 4096 * 4096);
}

}  // namespace
}  // namespace penstock::front
