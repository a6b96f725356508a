// Mapping, UniqueFd and the lock types: what owns a resource gives it back.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace penstock {
namespace {

TEST(Mapping, IsZeroedAlignedAndRoundedUpToPages) {
  Result<Mapping> mapping = Mapping::Create(5000_B);
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->size(), 8_KiB);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(mapping->data()) % 4096, 0u);
  EXPECT_TRUE(std::all_of(mapping->data(), mapping->data() + 8192,
                          [](std::byte b) { return b == std::byte{0}; }));
  mapping->data()[8191] = std::byte{1};
}

TEST(Mapping, OfNothingIsEmpty) {
  const Result<Mapping> mapping = Mapping::Create(0_B);
  ASSERT_TRUE(mapping.ok());
  EXPECT_EQ(mapping->size(), 0_B);
  EXPECT_EQ(mapping->data(), nullptr);
}

TEST(Mapping, PreferredNodesAreThePolicyOfItsPages) {
  for (const std::vector<int>& nodes : {std::vector<int>{0}, std::vector<int>{0, 0}}) {
    Result<Mapping> mapping = Mapping::Create(64_KiB);
    ASSERT_TRUE(mapping.ok());
    const Status placed = mapping->PreferNodes(nodes);
    if (!placed.ok()) GTEST_SKIP() << placed.error().message;
    int policy = -1;
    unsigned long mask = 0;  // NOLINT(google-runtime-int): the system call's
    const long answer =      // NOLINT(google-runtime-int)
        ::syscall(SYS_get_mempolicy, &policy, &mask, 64 + 1, mapping->data(), MPOL_F_ADDR);
    if (answer != 0) GTEST_SKIP() << "get_mempolicy is not allowed here";
    EXPECT_EQ(policy, nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE);
    EXPECT_EQ(mask, 1);
  }
}

TEST(Mapping, ANodeThatTheMachineHasNotIsAnError) {
  Result<Mapping> mapping = Mapping::Create(64_KiB);
  ASSERT_TRUE(mapping.ok());
  EXPECT_FALSE(mapping->PreferNodes(std::vector<int>{1000}).ok());
}

TEST(Mapping, MovesItsMemory) {
  Result<Mapping> made = Mapping::Create(4_KiB);
  ASSERT_TRUE(made.ok());
  std::byte* const data = made->data();
  Mapping first = std::move(made).value();
  Mapping second(std::move(first));
  EXPECT_EQ(second.data(), data);
  Mapping third;
  third = std::move(second);
  EXPECT_EQ(third.data(), data);
  EXPECT_EQ(third.size(), 4_KiB);
}

bool IsMapped(std::byte* page) {
  unsigned char resident = 0;
  return ::mincore(page, 4096, &resident) == 0;
}

TEST(Mapping, AssigningToOneUnmapsItsOldMemoryAtOnce) {
  Mapping first = Mapping::Create(4_KiB).value();
  Mapping second = Mapping::Create(4_KiB).value();
  std::byte* const old = first.data();
  ASSERT_TRUE(IsMapped(old));
  first = std::move(second);
  EXPECT_FALSE(IsMapped(old));
  EXPECT_TRUE(IsMapped(first.data()));
}

TEST(Mapping, MoreThanTheAddressSpaceIsOutOfMemory) {
  const Result<Mapping> mapping = Mapping::Create(Bytes{uint64_t{1} << 62});
  ASSERT_FALSE(mapping.ok());
  EXPECT_EQ(mapping.error().code, ErrorCode::kOutOfMemory);
}

bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFd, ClosesOnceWhenItsLastOwnerGoes) {
  EXPECT_FALSE(UniqueFd().valid());
  int number = -1;
  {
    UniqueFd outer;
    {
      UniqueFd inner(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      ASSERT_TRUE(inner.valid());
      number = inner.get();
      UniqueFd moved(std::move(inner));
      outer = std::move(moved);
    }
    EXPECT_EQ(outer.get(), number);
    EXPECT_TRUE(IsOpen(number));
  }
  EXPECT_FALSE(IsOpen(number));
}

TEST(UniqueFd, AssigningToOneClosesItsOldDescriptorAtOnce) {
  UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  UniqueFd second(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(first.valid() && second.valid());
  const int old = first.get();
  first = std::move(second);
  EXPECT_FALSE(IsOpen(old));
  EXPECT_TRUE(IsOpen(first.get()));
}

TEST(CondVar, WakesAWaiterThatSeesWhatWasDoneUnderTheLock) {
  Mutex mutex;
  CondVar changed;
  int value = 0;
  std::thread writer([&] {
    MutexLock lock(mutex);
    value = 7;
    changed.NotifyAll();
  });
  {
    MutexLock lock(mutex);
    while (value == 0) changed.Wait(mutex);
    EXPECT_EQ(value, 7);
  }
  writer.join();
}

TEST(CondVar, ADeadlineThatPassedEndsTheWait) {
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  EXPECT_FALSE(never.WaitUntil(mutex, std::chrono::steady_clock::now()));
}

TEST(DType, SizesAndNamesBelongTogether) {
  EXPECT_EQ(SizeOf(DType::kFloat32), 4_B);
  EXPECT_EQ(SizeOf(DType::kBFloat16), 2_B);
  EXPECT_EQ(SizeOf(DType::kFloat16), 2_B);
  EXPECT_STREQ(ToString(DType::kFloat32), "fp32");
  EXPECT_STREQ(ToString(DType::kBFloat16), "bf16");
  EXPECT_STREQ(ToString(DType::kFloat16), "fp16");
}

}  // namespace
}  // namespace penstock
