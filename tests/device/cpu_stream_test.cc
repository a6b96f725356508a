// The order that streams keep, and the order that they do not keep.
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <latch>
#include <vector>

#include "device/cpu_stream.h"
#include "tests/device/support.h"

namespace penstock::device {
namespace {

using CpuStreamTest = CpuDeviceTest;

TEST_F(CpuStreamTest, WorkOfOneStreamRunsInTheOrderOfItsCalls) {
  auto stream = NewStream("compute");
  std::vector<int> order;  // not synchronised: only one thread may touch it
  for (int i = 0; i < 100; ++i) {
    if (i % 3 == 0) {
      stream->Launch([&order, i] { order.push_back(i); });
    } else if (i % 3 == 1) {
      stream->Transfer([&order, i]() -> Status {
        order.push_back(i);
        return {};
      });
    } else {
      stream->Call([&order, i] { order.push_back(i); });
    }
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[i], i);
}

TEST_F(CpuStreamTest, CopiesAndKernelsSeeWhatTheCommandBeforeThemWrote) {
  auto stream = NewStream("compute");
  DeviceBuffer a = std::move(device_->Allocate(64_B, "a")).value();
  DeviceBuffer b = std::move(device_->Allocate(64_B, "b")).value();
  std::array<int32_t, 16> in;
  std::array<int32_t, 16> out;
  std::array<int32_t, 16> zeros;
  for (int i = 0; i < 16; ++i) in[i] = i;
  stream->CopyToDevice(a.data(), reinterpret_cast<std::byte*>(in.data()), 64_B);
  stream->Launch([&] {
    for (int i = 0; i < 16; ++i) b.as<int32_t>()[i] = 2 * a.as<int32_t>()[i];
  });
  stream->CopyToHost(reinterpret_cast<std::byte*>(out.data()), b.data(), 64_B);
  stream->Zero(b.data(), 64_B);
  stream->CopyToHost(reinterpret_cast<std::byte*>(zeros.data()), b.data(), 64_B);
  ASSERT_TRUE(stream->Synchronize().ok());
  for (int i = 0; i < 16; ++i) {
    EXPECT_EQ(out[i], 2 * i);
    EXPECT_EQ(zeros[i], 0);
  }
}

TEST_F(CpuStreamTest, TheFeedingThreadDoesNotWaitForTheWork) {
  auto stream = NewStream("compute");
  std::latch go{1};
  bool ran = false;
  stream->Launch([&] {
    go.wait();
    ran = true;
  });
  const Event done = stream->Record();
  EXPECT_FALSE(done.reached());
  go.count_down();  // were Launch or Record synchronous, the test would hang above
  done.Wait();
  EXPECT_TRUE(done.reached());
  EXPECT_TRUE(ran);
}

TEST_F(CpuStreamTest, TwoStreamsRunAtTheSameTime) {
  auto one = NewStream("one");
  auto two = NewStream("two");
  std::latch both{2};
  one->Launch([&] { both.arrive_and_wait(); });  // returns only while the other one runs too
  two->Launch([&] { both.arrive_and_wait(); });
  EXPECT_TRUE(one->Synchronize().ok());
  EXPECT_TRUE(two->Synchronize().ok());
}

TEST_F(CpuStreamTest, WithoutAnEventTheStreamFedLaterMayRunFirst) {
  auto one = NewStream("one");
  auto two = NewStream("two");
  std::latch later_ran{1};
  one->Launch([&] { later_ran.wait(); });
  two->Launch([&] { later_ran.count_down(); });
  EXPECT_TRUE(one->Synchronize().ok());
}

TEST_F(CpuStreamTest, AStreamThatWaitsForAnEventSeesAllWorkBeforeIt) {
  auto copy = NewStream("copy-in");
  auto compute = NewStream("compute");
  std::latch go{1};
  int value = 0;  // not atomic: the event orders the two threads
  int seen = -1;
  copy->Launch([&] {
    go.wait();
    value = 7;
  });
  compute->Wait(copy->Record());
  compute->Launch([&] { seen = value; });
  go.count_down();
  ASSERT_TRUE(compute->Synchronize().ok());
  EXPECT_EQ(seen, 7);
}

TEST_F(CpuStreamTest, OnlyTheWorkBehindAWaitIsHeldBack) {
  auto stream = NewStream("compute");
  auto event = std::make_shared<ManualEvent>();
  std::latch before{1};
  std::atomic<bool> after = false;
  stream->Launch([&] { before.count_down(); });
  stream->Wait(Event(event));
  stream->Launch([&] { after = true; });
  before.wait();
  event->AwaitWaiter();
  EXPECT_FALSE(after);
  event->Fire();
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(after);
}

TEST_F(CpuStreamTest, ADefaultEventIsReachedAndBlocksNoThread) {
  const Event event;
  EXPECT_TRUE(event.reached());
  event.Wait();
  auto stream = NewStream("compute");
  bool ran = false;
  stream->Wait(event, WaitReason::kData);
  stream->Launch([&] { ran = true; });
  EXPECT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(ran);
}

TEST_F(CpuStreamTest, AStreamMayWaitForAnEventOfItsOwn) {
  auto stream = NewStream("compute");
  std::latch go{1};
  stream->Launch([&] { go.wait(); });
  stream->Wait(stream->Record(), WaitReason::kData);
  go.count_down();
  EXPECT_TRUE(stream->Synchronize().ok());
}

TEST_F(CpuStreamTest, CopiesOfAnEventAreTheSamePoint) {
  auto stream = NewStream("compute");
  std::latch go{1};
  stream->Launch([&] { go.wait(); });
  const Event event = stream->Record();
  const Event copy = event;
  EXPECT_FALSE(copy.reached());
  go.count_down();
  event.Wait();
  EXPECT_TRUE(copy.reached());
}

TEST_F(CpuStreamTest, AnEventOutlivesItsStream) {
  Event event;
  {
    auto stream = NewStream("compute");
    event = stream->Record();
  }
  EXPECT_TRUE(event.reached());
}

TEST_F(CpuStreamTest, ACallRunsWhenAllEarlierWorkIsDoneAndNotBefore) {
  auto stream = NewStream("compute");
  std::latch go{1};
  bool kernel_done = false;
  bool order_held = false;
  std::atomic<bool> called = false;
  stream->Launch([&] {
    go.wait();
    kernel_done = true;
  });
  stream->Call([&] {
    order_held = kernel_done;
    called = true;
  });
  EXPECT_FALSE(called);
  go.count_down();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_TRUE(called);
  EXPECT_TRUE(order_held);
}

TEST_F(CpuStreamTest, WhatACommandHoldsIsReleasedBeforeTheNextEventIsReached) {
  auto stream = NewStream("compute");
  auto held = std::make_shared<int>(1);
  std::weak_ptr<int> watch = held;
  stream->Launch([held = std::move(held)] {});
  stream->Record().Wait();
  EXPECT_TRUE(watch.expired());
}

TEST_F(CpuStreamTest, TheDestructorCompletesAllWork) {
  auto stream = NewStream("compute");
  std::latch go{1};
  int done = 0;
  stream->Launch([&] { go.wait(); });
  for (int i = 0; i < 50; ++i) stream->Launch([&] { ++done; });
  go.count_down();
  stream.reset();
  EXPECT_EQ(done, 50);
}

TEST_F(CpuStreamTest, AFeederFarAheadIsHeldBackAndLosesNothing) {
  auto stream = NewStream("compute");
  constexpr int kBound = static_cast<int>(ThreadStream::kMaxQueued);
  std::latch far_ahead{1};
  std::atomic<int> fed = 0;
  int done = 0;
  int lead = 0;
  stream->Launch([&] { far_ahead.wait(); });
  while (fed < 3 * kBound) {
    stream->Launch([&] { lead = std::max(lead, fed - done++); });
    if (++fed == kBound - 1) far_ahead.count_down();
  }
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(done, 3 * kBound);
  EXPECT_LE(lead, kBound + 1) << "a full queue, and the command being carried out";
}

TEST_F(CpuStreamTest, TheThreadCarriesTheNameOfTheStreamCutToWhatTheKernelTakes) {
  char name[16] = {};
  auto stream = NewStream("copy-in-of-a-long-name");
  stream->Call([&] { ::pthread_getname_np(::pthread_self(), name, sizeof(name)); });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_STREQ(name, "copy-in-of-a-lo");
}

TEST_F(CpuStreamTest, AKernelCountsAsCompute) {
  auto stream = NewStream("compute");
  stream->Launch([] { LetTheClockTick(); });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_GT(meter_.Totals().compute.count(), 0);
  EXPECT_EQ(meter_.Totals().io_wait.count(), 0);
}

TEST_F(CpuStreamTest, CopiesAndCallsDoNotCountAsCompute) {
  auto stream = NewStream("copy-in");
  DeviceBuffer buffer = std::move(device_->Allocate(256_B, "buffer")).value();
  std::array<std::byte, 256> host{};
  stream->CopyToDevice(buffer.data(), host.data(), 256_B);
  stream->CopyToHost(host.data(), buffer.data(), 256_B);
  stream->Zero(buffer.data(), 256_B);
  stream->Call([] { LetTheClockTick(); });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(meter_.Totals().compute.count(), 0);
}

TEST_F(CpuStreamTest, AStreamBlockedForDataCountsAsWaiting) {
  auto stream = NewStream("compute");
  auto event = std::make_shared<ManualEvent>();
  stream->Wait(Event(event), WaitReason::kData);
  event->AwaitWaiter();
  LetTheClockTick();
  event->Fire();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_GT(meter_.Totals().io_wait.count(), 0);
  EXPECT_EQ(meter_.Totals().compute.count(), 0);
}

TEST_F(CpuStreamTest, ATransferDoesNotCountAsCompute) {
  auto stream = NewStream("comm");
  stream->Transfer([]() -> Status {
    LetTheClockTick();
    return {};
  });
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(meter_.Totals().compute.count(), 0);
}

TEST_F(CpuStreamTest, AStreamBlockedForOrderDoesNotCountAsWaiting) {
  auto stream = NewStream("compute");
  auto event = std::make_shared<ManualEvent>();
  stream->Wait(Event(event), WaitReason::kOrder);
  event->AwaitWaiter();
  LetTheClockTick();
  event->Fire();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(meter_.Totals().io_wait.count(), 0);
}

TEST_F(CpuStreamTest, DataThatIsThereInTimeCostsNoWaiting) {
  auto stream = NewStream("compute");
  auto event = std::make_shared<ManualEvent>();
  std::latch go{1};
  stream->Call([&] { go.wait(); });
  stream->Wait(Event(event), WaitReason::kData);
  event->Fire();
  go.count_down();
  ASSERT_TRUE(stream->Synchronize().ok());
  EXPECT_EQ(meter_.Totals().io_wait.count(), 0);
}

}  // namespace
}  // namespace penstock::device
