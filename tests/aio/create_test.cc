// CreateEngine: what it refuses, what it chooses, and what it says about it.
#include <gmock/gmock.h>
#include <sched.h>

#include <limits>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

void ExpectInvalid(const EngineOptions& options, const std::string& option) {
  const auto engine = CreateEngine(options);
  ASSERT_FALSE(engine.ok()) << option;
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(engine.error().message, HasSubstr(option));
}

int AnAllowedCpu() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  int cpu = 0;
  while (!CPU_ISSET(cpu, &allowed)) ++cpu;
  return cpu;
}

TEST(CreateEngine, OptionsOutOfRangeAreRefusedByName) {
  for (const Bytes size : {0_B, 2_KiB, 4097_B, 2_GiB}) {
    ExpectInvalid({.block_size = size}, "block_size");
  }
  for (const int depth : {0, -1, 4097}) ExpectInvalid({.queue_depth = depth}, "queue_depth");
  for (const int count : {0, 65}) ExpectInvalid({.thread_count = count}, "thread_count");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double speed : {-1.0, nan}) {
    ExpectInvalid({.simulate = SimulatedDrive{.read_gbps = speed}}, "read_gbps");
    ExpectInvalid({.simulate = SimulatedDrive{.write_gbps = speed}}, "write_gbps");
    ExpectInvalid({.simulate = SimulatedDrive{.latency_us = speed}}, "latency_us");
  }
  for (const double chance : {-0.1, 1.1}) {
    ExpectInvalid({.faults = FaultPlan{.error_chance = chance}}, "error_chance");
    ExpectInvalid({.faults = FaultPlan{.transient_chance = chance}}, "transient_chance");
    ExpectInvalid({.faults = FaultPlan{.short_chance = chance}}, "short_chance");
    ExpectInvalid({.faults = FaultPlan{.delay_chance = chance}}, "delay_chance");
  }
  ExpectInvalid({.kind = EngineKind::kUring, .simulate = SimulatedDrive{}}, "simulated");
  ExpectInvalid({.faults = FaultPlan{.crash_at_block = 1}}, "crash_at_block");
  ExpectInvalid({.faults = FaultPlan{.crash_at_sync = 1}}, "crash_at_sync");
}

TEST(CreateEngine, TheEndsOfTheRangesAreAccepted) {
  for (const Bytes size : {4_KiB, 1_GiB}) {
    for (const int depth : {1, 4096}) {
      const auto engine =
          CreateEngine({.kind = EngineKind::kThreads, .block_size = size, .queue_depth = depth});
      EXPECT_TRUE(engine.ok());
    }
  }
}

TEST(CreateEngine, PollingIsForTheRingOnly) {
  for (const EngineKind kind : {EngineKind::kLibaio, EngineKind::kThreads}) {
    ExpectInvalid({.kind = kind, .sqpoll = true}, "sqpoll");
    ExpectInvalid({.kind = kind, .iopoll = true}, "iopoll");
  }
  ExpectInvalid({.sqpoll = true, .simulate = SimulatedDrive{}}, "simulated");
}

TEST(CreateEngine, PollingNeverEndsInAnotherEngine) {
  std::string notice;
  const auto engine = CreateEngine({.sqpoll = true}, &notice);
  if (engine.ok()) {
    EXPECT_EQ(notice, "aio engine io_uring: as asked for");
  } else {
    EXPECT_EQ(engine.error().code, ErrorCode::kUnavailable);
    EXPECT_THAT(engine.error().message, HasSubstr("switch sqpoll and iopoll off"));
  }
}

TEST(CreateEngine, ThreadsAreBoundToTheGivenCpusOrTheErrorNamesThem) {
  for (const EngineKind kind : {EngineKind::kAuto, EngineKind::kLibaio, EngineKind::kThreads}) {
    cpu_set_t bound;
    CPU_ZERO(&bound);
    {
      ScratchFile file;
      Buffer buffer(4096);
      const auto engine = CreateEngine({.kind = kind, .cpus = {AnAllowedCpu()}});
      ASSERT_TRUE(engine.ok());
      Request request = WriteRequest(file.get(), 0, buffer.bytes());
      request.on_complete = [&](const Status&) { sched_getaffinity(0, sizeof(bound), &bound); };
      (*engine)->Submit(std::move(request));
    }
    EXPECT_EQ(CPU_COUNT(&bound), 1);
    EXPECT_TRUE(CPU_ISSET(AnAllowedCpu(), &bound));
    const auto refused = CreateEngine({.kind = kind, .cpus = {CPU_SETSIZE - 1}});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message, HasSubstr("CPUs 1023"));
  }
  ExpectInvalid({.cpus = {-1}}, "cpus");
  ExpectInvalid({.cpus = {CPU_SETSIZE}}, "cpus");
}

TEST(CreateEngine, AutoTakesTheFirstOfRingLibaioAndThreads) {
  const bool has_ring = CreateEngine({.kind = EngineKind::kUring}).ok();
  const bool has_libaio = CreateEngine({.kind = EngineKind::kLibaio}).ok();
  std::string notice;
  const auto engine = CreateEngine({}, &notice);
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->name(), has_ring ? "io_uring" : has_libaio ? "libaio" : "threads");
  EXPECT_THAT(notice, HasSubstr("aio engine " + (*engine)->name()));
  EXPECT_THAT(notice, testing::Not(HasSubstr("\n")));
}

TEST(CreateEngine, NamesAndNoticesSayWhatRuns) {
  std::string notice;
  auto engine = CreateEngine({.kind = EngineKind::kThreads}, &notice);
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->name(), "threads");
  EXPECT_EQ(notice, "aio engine threads: as asked for");
  engine = CreateEngine({.simulate = SimulatedDrive{.read_gbps = 3}}, &notice);
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->name(), "simulated");
  EXPECT_THAT(notice, HasSubstr("read 3 GB/s"));
  engine = CreateEngine({.kind = EngineKind::kThreads, .faults = FaultPlan{}});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->name(), "threads with faults");
}

TEST(Names, OfKindsAndOperationsAreThoseOfTheConfig) {
  EXPECT_STREQ(ToString(EngineKind::kAuto), "auto");
  EXPECT_STREQ(ToString(EngineKind::kUring), "io_uring");
  EXPECT_STREQ(ToString(EngineKind::kLibaio), "libaio");
  EXPECT_STREQ(ToString(EngineKind::kThreads), "threads");
  EXPECT_STREQ(ToString(Operation::kRead), "read");
  EXPECT_STREQ(ToString(Operation::kWrite), "write");
  EXPECT_STREQ(ToString(Operation::kSync), "sync");
}

TEST(WaitAll, OfNothingIsSuccess) { EXPECT_OK(WaitAll({})); }

TEST(TicketDeathTest, WaitingForNoRequestIsABug) {
  EXPECT_FALSE(Ticket().valid());
  EXPECT_DEATH((void)Ticket().Wait(), "ticket of no request");
  EXPECT_DEATH((void)Ticket().done(), "ticket of no request");
}

}  // namespace
}  // namespace penstock::aio
