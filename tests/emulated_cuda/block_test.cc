// What the emulation promises of the threads of a block: code that breaks CUDA's rules gets an
// error, and a barrier that is missing is missed.
#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "tests/emulated_cuda/device.h"

namespace penstock::emulated_cuda {
namespace {

constexpr unsigned kEveryLane = 0xffffffff;

/// The sum of 0 … 127 in every thread, with or without the barrier between writing and reading.
std::vector<int> SumsOfBlocks(bool barrier) {
  constexpr unsigned kThreads = 128;
  std::vector<int> sums;
  RunGrid("a sum", 8, dim3(kThreads), kThreads * sizeof(int), [&] {
    auto* const values = reinterpret_cast<int*>(DynamicShared());
    values[threadIdx.x] = static_cast<int>(threadIdx.x);
    if (barrier) __syncthreads();
    int sum = 0;
    for (unsigned i = 0; i < kThreads; ++i) sum += values[i];
    sums.push_back(sum);
  });
  return sums;
}

TEST(BlockTest, ABarrierMakesAllThreadsSeeWhatAllWrote) {
  EXPECT_EQ(SumsOfBlocks(true), std::vector<int>(8 * 128, 127 * 128 / 2));
}

TEST(BlockTest, AMissingBarrierIsMissed) {
  EXPECT_NE(SumsOfBlocks(false), std::vector<int>(8 * 128, 127 * 128 / 2));
}

TEST(BlockTest, SharedMemoryIsNotZero) {
  RunGrid("a look", 1, dim3(32), 4, [] { EXPECT_NE(DynamicShared()[threadIdx.x % 4], 0); });
}

TEST(BlockTest, LanesGetWhatTheOthersBring) {
  RunGrid("a shuffle", 2, dim3(64), 0, [] {
    EXPECT_EQ(__shfl_xor_sync(kEveryLane, threadIdx.x, 5), threadIdx.x ^ 5);
    EXPECT_EQ(__ballot_sync(kEveryLane, threadIdx.x % 2 == 0), 0x55555555);
    EXPECT_EQ(__syncthreads_and(threadIdx.x != 3 ? 1 : 0), 0);
    EXPECT_EQ(__syncthreads_and(1), 1);
  });
}

TEST(BlockTest, TheOrderIsAnotherOneForEveryStream) {
  const auto order = [] {
    std::vector<unsigned> began;
    std::thread([&] {
      RunGrid("an order", 4, dim3(96), 0, [&] { began.push_back(threadIdx.x); });
    }).join();
    return began;
  };
  EXPECT_NE(order(), order());
}

TEST(BlockTest, ABarrierDoesNotWaitForThreadsThatHaveEnded) {
  int reached = 0;
  RunGrid("it", 4, dim3(64), 0, [&] {
    if (threadIdx.x >= 32) return;
    __syncthreads();
    ++reached;
  });
  EXPECT_EQ(reached, 4 * 32);
}

void PartLanes() {
  if (threadIdx.x < 16) {
    __ballot_sync(kEveryLane, true);
  } else {
    __shfl_xor_sync(kEveryLane, 1, 1);
  }
}

void LoseALane() {
  if (threadIdx.x != 7) __ballot_sync(kEveryLane, true);
}

void PartWarps() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads_and(1);
  }
}

TEST(BlockDeathTest, ThreadsInDifferentOperationsEndTheProgram) {
  EXPECT_DEATH(RunGrid("it", 1, dim3(32), 0, PartLanes), "it: threads that should be together");
  EXPECT_DEATH(RunGrid("it", 1, dim3(64), 0, PartWarps), "it: threads that should be together");
}

TEST(BlockDeathTest, AnOperationWithoutALaneEndsTheProgram) {
  // The lane ends before the others come, or while they wait.
  EXPECT_DEATH(RunGrid("it", 16, dim3(32), 0, LoseALane),
               "it: (a lane has ended|1 lanes of a warp have ended)");
}

void SplitAWarp() {
  if (threadIdx.x < 16) {
    __syncthreads();
  } else {
    __ballot_sync(kEveryLane, true);
  }
}

TEST(BlockDeathTest, ABarrierThatSomeNeverReachEndsTheProgram) {
  EXPECT_DEATH(RunGrid("it", 1, dim3(32), 0, SplitAWarp), "it: 32 threads of a block wait for");
}

}  // namespace
}  // namespace penstock::emulated_cuda
