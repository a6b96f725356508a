#include "base/mutex.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>

namespace penstock {
namespace {

#ifdef NDEBUG

TEST(Mutex, ReleaseBuildsPayNothingForAssertHeld) {
  const Mutex mutex;
  mutex.AssertHeld();
  EXPECT_EQ(sizeof(Mutex), sizeof(std::mutex));
}

#else

TEST(MutexDeathTest, AMutexThatNoThreadHoldsIsNotHeld) {
  Mutex mutex;
  EXPECT_DEATH(mutex.AssertHeld(), "not held");
  const MutexLock lock(mutex);
  mutex.AssertHeld();
}

TEST(MutexDeathTest, AMutexThatAnotherThreadHoldsIsNotHeld) {
  Mutex mutex;
  const MutexLock lock(mutex);
  EXPECT_DEATH(std::thread([&] { mutex.AssertHeld(); }).join(), "not held");
}

TEST(MutexDeathTest, AMutexThatWasGivenUpIsNotHeld) {
  Mutex mutex;
  const MutexLock lock(mutex);
  {
    const MutexUnlock unlocked(mutex);
    EXPECT_DEATH(mutex.AssertHeld(), "not held");
  }
  mutex.AssertHeld();
}

#endif

TEST(Mutex, IsHeldAgainAfterAWaitInWhichAnotherThreadHeldIt) {
  Mutex mutex;
  CondVar changed;
  bool set = false;
  std::thread other;
  {
    const MutexLock lock(mutex);
    other = std::thread([&] {
      const MutexLock theirs(mutex);
      mutex.AssertHeld();
      set = true;
      changed.NotifyAll();
    });
    while (!set) changed.Wait(mutex);
    mutex.AssertHeld();
    EXPECT_FALSE(changed.WaitUntil(mutex, std::chrono::steady_clock::now()));
    mutex.AssertHeld();
  }
  other.join();
}

}  // namespace
}  // namespace penstock
