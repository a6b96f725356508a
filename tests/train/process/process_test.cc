#include "train/process/process.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <stdexcept>
#include <thread>
#include <utility>

namespace penstock::train {
namespace {

constexpr size_t kMinStack = size_t{2} << 20;

/// In a process of a death test: it has the handlers and the stacks from then on.
void Prepare() {
  // So that it is not started anew. No other thread exists yet.
  ::setenv("OMP_WAIT_POLICY", "passive", 1);  // NOLINT(concurrency-mt-unsafe)
  char* argv[] = {nullptr};
  if (!PrepareProcess(argv).ok()) ::_exit(1);
}

size_t StackOfNewThreads() {
  pthread_attr_t attributes;
  size_t size = 0;
  if (pthread_getattr_default_np(&attributes) != 0) return 0;
  pthread_attr_getstacksize(&attributes, &size);
  pthread_attr_destroy(&attributes);
  return size;
}

void SetStackOfNewThreads(size_t size) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, size);
  pthread_setattr_default_np(&attributes);
  pthread_attr_destroy(&attributes);
}

TEST(ProcessDeathTest, ThreadsHaveTheStackThatTheUserAskedForAndNoneTooSmall) {
  for (const auto& [asked, expected] :
       {std::pair{kMinStack / 4, kMinStack}, {8 * kMinStack, 8 * kMinStack}}) {
    EXPECT_EXIT(
        {
          SetStackOfNewThreads(asked);  // as glibc does by the limit when the program begins
          Prepare();
          ::_exit(StackOfNewThreads() == expected ? 0 : 1);
        },
        testing::ExitedWithCode(0), "")
        << asked;
  }
}

TEST(ProcessDeathTest, AnExceptionThatEndsAThreadIsNamedByItsTypeInOneLine) {
  EXPECT_EXIT(
      {
        Prepare();
        std::thread([] { throw std::runtime_error("it broke\nin two\n"); }).join();
      },
      testing::ExitedWithCode(3),
      "^penstock: error: unexpected failure in a library: std::runtime_error; the program cannot "
      "continue; committed steps are kept\n$");
}

TEST(ProcessDeathTest, MemoryThatRunsOutInAThreadIsSaidAsThat) {
  EXPECT_EXIT(
      {
        Prepare();
        std::thread([] { throw std::bad_alloc(); }).join();
      },
      testing::ExitedWithCode(3), "^penstock: error: the machine has no memory left; [^\n]*\n$");
}

}  // namespace
}  // namespace penstock::train
