#include "base/cpu_set.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cerrno>

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

/// A kernel of 3072 CPUs, of which the thread may use three.
int OfALargeMachine(size_t bytes, cpu_set_t* set) {
  if (bytes < 3 * sizeof(cpu_set_t)) return EINVAL;
  for (const size_t cpu : {0, 1024, 3071}) CPU_SET_S(cpu, bytes, set);
  return 0;
}

TEST(CpuSetTest, TheCpusOfAMachineOfMoreThan1024AreAllFound) {
  EXPECT_THAT(UsableCpus(OfALargeMachine), ElementsAre(0, 1024, 3071));
}

TEST(CpuSetTest, WhatTheKernelDoesNotSayIsNone) {
  EXPECT_THAT(UsableCpus([](size_t, cpu_set_t*) { return EINVAL; }), IsEmpty());
  EXPECT_THAT(UsableCpus([](size_t, cpu_set_t*) { return EPERM; }), IsEmpty());
  EXPECT_THAT(UsableCpus(), Not(IsEmpty()));
}

TEST(CpuSetTest, ASetHoldsCpusOfAnyNumberThatAKernelHas) {
  const CpuSet set({3, 5000, -1, 1 << 30});
  EXPECT_EQ(CPU_COUNT_S(set.bytes(), set.data()), 2);
  EXPECT_TRUE(CPU_ISSET_S(size_t{3}, set.bytes(), set.data()));
  EXPECT_TRUE(CPU_ISSET_S(size_t{5000}, set.bytes(), set.data()));
}

}  // namespace
}  // namespace penstock
