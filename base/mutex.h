// A mutex whose discipline clang's thread-safety analysis can check (-Wthread-safety in
// clang-tidy). Builds without NDEBUG (debug and sanitizers) also check what the analysis is told.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifndef NDEBUG
#include <atomic>
#include <thread>

#include "base/check.h"
#endif

#if defined(__clang__)
#define PENSTOCK_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define PENSTOCK_THREAD_ATTRIBUTE(x)
#endif

/// On data: may be touched only while the mutex is held.
#define GUARDED_BY(x) PENSTOCK_THREAD_ATTRIBUTE(guarded_by(x))
/// On a function: the caller holds the mutex.
#define REQUIRES(...) PENSTOCK_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// On a function: the caller must not hold the mutex.
#define EXCLUDES(...) PENSTOCK_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))

namespace penstock {
namespace internal {

/// Which thread holds a mutex. With NDEBUG it knows nothing, costs nothing and checks nothing.
class MutexHolder {
 public:
#ifdef NDEBUG
  void Enter() {}
  void Leave() {}
  void Check() const {}
#else
  void Enter() { thread_.store(std::this_thread::get_id(), std::memory_order_relaxed); }
  void Leave() { thread_.store(std::thread::id(), std::memory_order_relaxed); }
  void Check() const {
    PENSTOCK_CHECK(thread_.load(std::memory_order_relaxed) == std::this_thread::get_id(),
                   "a mutex is not held by the thread that needs it");
  }

 private:
  std::atomic<std::thread::id> thread_;
#endif
};

}  // namespace internal

class PENSTOCK_THREAD_ATTRIBUTE(capability("mutex")) Mutex {
 public:
  void Lock() PENSTOCK_THREAD_ATTRIBUTE(acquire_capability()) {
    mutex_.lock();
    holder_.Enter();
  }
  void Unlock() PENSTOCK_THREAD_ATTRIBUTE(release_capability()) {
    holder_.Leave();
    mutex_.unlock();
  }
  /// Tells the analysis, in a function it cannot see through (a callback), that this thread holds
  /// the mutex. Without NDEBUG it is checked.
  void AssertHeld() const PENSTOCK_THREAD_ATTRIBUTE(assert_capability(this)) { holder_.Check(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
  [[no_unique_address]] internal::MutexHolder holder_;
};

/// Holds a Mutex for a scope.
class PENSTOCK_THREAD_ATTRIBUTE(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) PENSTOCK_THREAD_ATTRIBUTE(acquire_capability(mutex))
      : mutex_(mutex) {
    mutex_.Lock();
  }
  ~MutexLock() PENSTOCK_THREAD_ATTRIBUTE(release_capability()) { mutex_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Releases a Mutex that is held for a scope.
class PENSTOCK_THREAD_ATTRIBUTE(scoped_lockable) MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) PENSTOCK_THREAD_ATTRIBUTE(release_capability(mutex))
      : mutex_(mutex) {
    mutex_.Unlock();
  }
  ~MutexUnlock() PENSTOCK_THREAD_ATTRIBUTE(release_capability()) { mutex_.Lock(); }
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

/// A condition variable for Mutex. Wait in a loop over the condition, in the function that holds
/// the lock, so that the analysis sees the guarded reads.
class CondVar {
 public:
  void Wait(Mutex& mutex) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    mutex.holder_.Leave();
    condition_.wait(lock);
    mutex.holder_.Enter();
    lock.release();
  }
  /// Returns false when the deadline passed without a notification.
  bool WaitUntil(Mutex& mutex, std::chrono::steady_clock::time_point deadline) REQUIRES(mutex) {
    std::unique_lock<std::mutex> lock(mutex.mutex_, std::adopt_lock);
    mutex.holder_.Leave();
    const bool notified = condition_.wait_until(lock, deadline) == std::cv_status::no_timeout;
    mutex.holder_.Enter();
    lock.release();
    return notified;
  }
  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace penstock
