// Jobs of several ranks, each a thread of this process, over sockets of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/environment.h"
#include "comm/job.h"
#include "comm/watch.h"
#include "comm/wire.h"
#include "tests/comm/job_support.h"
#include "tests/deadline.h"
#include "tests/temp_folder.h"

namespace penstock::comm {
namespace {

using std::chrono::seconds;
using testing::ElementsAre;
using Jobs = std::vector<std::unique_ptr<Job>>;

/// What all ranks' calls return, by rank.
template <typename Work>
auto OnAll(const Jobs& jobs, const Work& work) {
  return ForEachRank(static_cast<uint32_t>(jobs.size()),
                     [&](uint32_t rank) { return work(*jobs[rank], rank); });
}

/// The verdicts that a job's owners are called with.
class Verdicts {
 public:
  JobOptions Options(JobOptions options = {}) {
    options.on_failure = [this](const Error& verdict, const std::string& report) {
      MutexLock lock(mutex_);
      lines_.push_back(verdict.message);
      reports_.push_back(report);
    };
    return options;
  }
  std::vector<std::string> lines() const {
    MutexLock lock(mutex_);
    return lines_;
  }
  std::vector<std::string> reports() const {
    MutexLock lock(mutex_);
    return reports_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> lines_ GUARDED_BY(mutex_);
  std::vector<std::string> reports_ GUARDED_BY(mutex_);
};

/// Waits until the job has failed, and returns why.
Status AwaitFailure(const Job& job) {
  EXPECT_TRUE(BecomesTrue([&] { return !job.status().ok(); }));
  return job.status();
}

/// How many descriptors or threads this process has, by the folder that lists them.
ptrdiff_t CountOf(const char* listing) {
  return std::distance(std::filesystem::directory_iterator(listing), {});
}

TEST(OneRankJobTest, EveryCallReturnsAtOnce) {
  const std::unique_ptr<Job> job = Job::Join(EnvironmentOf({})).value();
  EXPECT_EQ(job->world(), World());
  EXPECT_THAT(job->hosts(), ElementsAre(HostName()));
  EXPECT_TRUE(job->Agree({}).ok());
  EXPECT_THAT(job->Gather("mine").value(), ElementsAre("mine"));
  EXPECT_TRUE(job->Vote(1, 2).ok());
  job->Doing("waits");
  job->Entered({1, 2, "x"}, OperationState::kBegun);
  EXPECT_TRUE(job->Finish().ok());
  EXPECT_TRUE(job->status().ok());
}

TEST(OneRankJobTest, NothingIsOpenedAndNoThreadIsStarted) {
  const ptrdiff_t descriptors = CountOf("/proc/self/fd");
  const ptrdiff_t threads = CountOf("/proc/self/task");
  const std::unique_ptr<Job> job = Job::Join(EnvironmentOf({{"WORLD_SIZE", "1"}})).value();
  EXPECT_EQ(CountOf("/proc/self/fd"), descriptors);
  EXPECT_EQ(CountOf("/proc/self/task"), threads);
}

TEST(OneRankJobTest, AnErrorIsKeptAsItIs) {
  const std::unique_ptr<Job> job = Job::Join(EnvironmentOf({{"WORLD_SIZE", "1"}})).value();
  EXPECT_TRUE(FailsWith(job->Agree(Error{ErrorCode::kIo, "mine"}), ErrorCode::kIo, {"mine"}));
  EXPECT_EQ(job->status().error().message, "mine");
  EXPECT_FALSE(job->Gather("").ok());
}

TEST(JobTest, TimeOutsThatCannotBeKeptAreRefused) {
  EXPECT_TRUE(FailsWith(Job::Join(EnvironmentOf({}), {.timeouts = {.heartbeat = seconds(1)}}),
                        ErrorCode::kInvalidArgument, {"2 s"}));
  EXPECT_TRUE(FailsWith(Job::Join(EnvironmentOf({}), {.timeouts = {.operation = seconds(0)}}),
                        ErrorCode::kInvalidArgument, {"2 s"}));
}

TEST(JobTest, AnEnvironmentThatContradictsItselfIsRefused) {
  EXPECT_TRUE(FailsWith(Job::Join(EnvironmentOf({{"RANK", "1"}})), ErrorCode::kInvalidArgument,
                        {"WORLD_SIZE"}));
}

class JobOfRanksTest : public testing::TestWithParam<uint32_t> {};

TEST_P(JobOfRanksTest, RanksAgreeGatherVoteAndFinish) {
  const uint32_t size = GetParam();
  const Jobs jobs = JoinRanks(size);
  const std::vector<Status> outcomes = OnAll(jobs, [&](Job& job, uint32_t rank) -> Status {
    EXPECT_EQ(job.world(), (World{size, rank, size, rank}));
    EXPECT_EQ(job.hosts(), std::vector<std::string>(size, HostName()));
    for (uint64_t round = 0; round < 20; ++round) {
      PENSTOCK_TRY(job.Agree({}));
      const std::string mine = std::to_string(rank) + " in " + std::to_string(round);
      PENSTOCK_ASSIGN(const std::vector<std::string> all, job.Gather(mine));
      for (uint32_t other = 0; other < size; ++other) {
        EXPECT_EQ(all.at(other), std::to_string(other) + " in " + std::to_string(round));
      }
      PENSTOCK_TRY(job.Vote(round, 17));
    }
    return job.Finish();
  });
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  for (const std::unique_ptr<Job>& job : jobs) {
    EXPECT_TRUE(job->status().ok());
    EXPECT_TRUE(job->Finish().ok());
    EXPECT_TRUE(FailsWith(job->Agree({}), ErrorCode::kInvalidArgument, {"Finish"}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, JobOfRanksTest, testing::Values(2, 3, 8));

TEST(JobTest, WhatWasOpenedIsClosedAgainHoweverTheJobEnds) {
  const ptrdiff_t descriptors = CountOf("/proc/self/fd");
  FinishAll(JoinRanks(3));
  EXPECT_EQ(CountOf("/proc/self/fd"), descriptors);
  { const Jobs left_without_a_word = JoinRanks(3); }
  EXPECT_EQ(CountOf("/proc/self/fd"), descriptors);
  const MeetingPlace place(2);
  EXPECT_FALSE(Job::Join(place.EnvironmentOf(0), {.join_timeout = seconds(0)}).ok());
  EXPECT_FALSE(Job::Join(place.EnvironmentOf(1), {.join_timeout = seconds(0)}).ok());
  EXPECT_EQ(CountOf("/proc/self/fd"), descriptors + 1);  // the place's own
}

TEST(JobTest, TextsUpToTheirLimitArriveWhole) {
  const Jobs jobs = JoinRanks(2);
  const std::vector<std::string> texts = {std::string(kMaxText, 'a'), std::string(100'000, 'b')};
  const auto outcomes =
      OnAll(jobs, [&](Job& job, uint32_t rank) { return job.Gather(texts[rank]); });
  for (const auto& outcome : outcomes) EXPECT_TRUE(outcome.value() == texts);
  EXPECT_TRUE(FailsWith(jobs[0]->Gather(std::string(kMaxText + 1, 'a')),
                        ErrorCode::kInvalidArgument, {"16777217"}));
  FinishAll(jobs);
}

TEST(JobTest, AllRanksReturnTheErrorOfTheLowestRankAndNoneFails) {
  Verdicts verdicts;
  Jobs jobs = JoinRanks(3, verdicts.Options());
  const std::vector<Status> outcomes = OnAll(jobs, [](Job& job, uint32_t rank) {
    return job.Agree(rank == 0 ? Status()
                               : Error{ErrorCode::kBudget, "of " + std::to_string(rank)});
  });
  for (const Status& outcome : outcomes) {
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kBudget, {"rank 1 (host " + HostName() + "): of 1"}));
  }
  for (const std::unique_ptr<Job>& job : jobs) {
    EXPECT_EQ(job->Gather("").status().error().message, outcomes[0].error().message);
    EXPECT_FALSE(job->status().ok());
    EXPECT_TRUE(job->ended_agreed());
  }
  jobs.clear();
  EXPECT_TRUE(verdicts.lines().empty());
}

TEST(JobTest, VotesRunBesideOtherCallsOnOtherThreads) {
  const Jobs jobs = JoinRanks(3);
  const std::vector<Status> outcomes = OnAll(jobs, [](Job& job, uint32_t rank) -> Status {
    Status voted;
    std::thread commits([&] {
      for (uint64_t step = 1; step <= 50 && voted.ok(); ++step) voted = job.Vote(step, 5);
    });
    Status gathered;
    for (int i = 0; i < 50 && gathered.ok(); ++i) gathered = job.Gather("x").status();
    job.Entered({1, rank, "x"}, OperationState::kBegun);
    commits.join();
    PENSTOCK_TRY(voted);
    PENSTOCK_TRY(gathered);
    return job.Finish();
  });
  for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
}

TEST(JobTest, TwoCallsOfOneKindAtOnceAreRefused) {
  const Jobs jobs = JoinRanks(2);
  std::vector<Status> outcomes(2);
  std::atomic<int> returned = 0;
  std::vector<std::thread> threads;
  for (Status& outcome : outcomes) {
    threads.emplace_back([&] {
      outcome = jobs[0]->Agree({});
      ++returned;
    });
  }
  // The other one waits for rank 1.
  EXPECT_TRUE(BecomesTrue([&] { return returned == 1; }));
  EXPECT_TRUE(jobs[1]->Agree({}).ok());
  for (std::thread& thread : threads) thread.join();
  EXPECT_NE(outcomes[0].ok(), outcomes[1].ok());
  const Status& refused = outcomes[0].ok() ? outcomes[1] : outcomes[0];
  EXPECT_TRUE(FailsWith(refused, ErrorCode::kInvalidArgument, {"two threads"}));
  FinishAll(jobs);
}

TEST(JobTest, AnotherVoteIsEveryonesFailure) {
  Verdicts verdicts;
  Jobs jobs = JoinRanks(2, verdicts.Options());
  const std::vector<Status> outcomes =
      OnAll(jobs, [](Job& job, uint32_t rank) { return job.Vote(10 + rank, 1); });
  for (const Status& outcome : outcomes) {
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kUnavailable, {"votes for step 10", "for step 11"}));
  }
  jobs.clear();
  EXPECT_EQ(verdicts.lines(), std::vector<std::string>(2, outcomes[0].error().message));
}

TEST(JobTest, AFailureIsEveryonesWithTheRankAndTheCode) {
  for (uint32_t failing = 0; failing < 3; ++failing) {
    Verdicts verdicts;
    Jobs jobs = JoinRanks(3, verdicts.Options());
    const std::vector<Status> outcomes = OnAll(jobs, [&](Job& job, uint32_t rank) {
      if (rank == failing) job.Fail({ErrorCode::kOutOfSpace, "the drive is full"});
      return job.Gather("").status();
    });
    const std::string line =
        "rank " + std::to_string(failing) + " (host " + HostName() + "): the drive is full";
    for (const Status& outcome : outcomes) {
      EXPECT_TRUE(FailsWith(outcome, ErrorCode::kOutOfSpace, {line}));
    }
    for (const std::unique_ptr<Job>& job : jobs) {
      EXPECT_FALSE(job->status().ok());
      EXPECT_FALSE(job->ended_agreed());
    }
    jobs.clear();
    EXPECT_EQ(verdicts.lines(), std::vector<std::string>(3, line));
  }
}

TEST(JobTest, ARankThatFailsAndLeavesAtOnceIsHeard) {
  for (uint32_t failing = 0; failing < 2; ++failing) {
    Jobs jobs = JoinRanks(2);
    const std::vector<Status> outcomes = OnAll(jobs, [&](Job& job, uint32_t rank) {
      if (rank != failing) return job.Agree({});
      job.Fail({ErrorCode::kNumeric, "not a number"});
      jobs[rank].reset();
      return Status();
    });
    EXPECT_TRUE(FailsWith(outcomes[1 - failing], ErrorCode::kNumeric,
                          {"rank " + std::to_string(failing), "not a number"}));
  }
}

TEST(JobTest, ARankThatLeavesWithoutAWordIsNamed) {
  for (uint32_t leaving = 0; leaving < 3; ++leaving) {
    Verdicts verdicts;
    Jobs jobs = JoinRanks(3, verdicts.Options());
    jobs[leaving]->Doing("waits for weights of h.2");
    jobs[leaving]->Entered({12, 3, "weights of h.2"}, OperationState::kEnqueued);
    const std::vector<Status> outcomes = OnAll(jobs, [&](Job& job, uint32_t rank) -> Status {
      PENSTOCK_TRY(job.Agree({}));
      if (rank != leaving) return job.Gather("").status();
      jobs[rank].reset();
      return Status();
    });
    const std::string line = "rank " + std::to_string(leaving) + " (host " + HostName() + ", pid " +
                             std::to_string(::getpid()) +
                             ") ended in step 12 while it waits for weights of h.2";
    for (uint32_t rank = 0; rank < 3; ++rank) {
      if (rank == leaving) continue;
      EXPECT_TRUE(FailsWith(outcomes[rank], ErrorCode::kUnavailable, {line})) << rank;
    }
    jobs.clear();
    EXPECT_EQ(verdicts.lines().size(), 2U);
  }
}

TEST(JobTest, AnOperationInWhichARankIsMissingEndsTheJob) {
  const Jobs jobs = JoinRanks(3, {.timeouts = {.operation = seconds(2)}});
  const std::vector<Status> outcomes = OnAll(jobs, [](Job& job, uint32_t rank) {
    job.Entered({3, 4, "norm"}, OperationState::kEnqueued);
    job.Entered({3, 4, "norm"}, OperationState::kBegun);
    if (rank == 1) {
      job.Entered({3, 4, "norm"}, OperationState::kEnded);
    } else {
      job.Entered({3, 5, "weights of h.0"}, OperationState::kBegun);
    }
    job.Doing(rank == 1 ? "computes h.0" : "waits");
    return AwaitFailure(job);
  });
  for (const Status& outcome : outcomes) {
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kUnavailable,
                          {"weights of h.0 (operation 5 of step 3): rank 1 (host",
                           "did not arrive within 2 s; rank 1 computes h.0"}));
  }
}

TEST(JobTest, ARankThatDoesNotVoteIsNamed) {
  JobOptions options;
  options.timeouts.operation = kMinTimeout;
  const Jobs jobs = JoinRanks(2, options);
  const std::vector<Status> outcomes = OnAll(jobs, [](Job& job, uint32_t rank) {
    if (rank == 0) return job.Vote(10, 7);
    job.Doing("waits for the commit of step 10");
    return job.Gather("").status();
  });
  for (const Status& outcome : outcomes) {
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kUnavailable,
                          {"the commit of step 10: rank 1 (host ",
                           " has not made its part within 2 s; rank 1 waits for the commit"}));
  }
}

TEST(JobTest, AReportSaysWhatEachRankDid) {
  Verdicts verdicts;
  Jobs jobs = JoinRanks(3, verdicts.Options());
  OnAll(jobs, [](Job& job, uint32_t rank) {
    job.Doing("computes with h." + std::to_string(rank));
    job.Entered({11, 3, "weights of h.3"}, OperationState::kEnqueued);
    job.Entered({11, 3, "weights of h.3"}, OperationState::kBegun);
    return job.Agree({});
  });
  const std::vector<Status> outcomes = ForEachRank(3, [&](uint32_t rank) -> Status {
    if (rank == 1) {
      jobs[1].reset();
      return {};
    }
    return jobs[rank]->Gather("").status();
  });
  for (const uint32_t rank : {0U, 2U}) {
    EXPECT_TRUE(FailsWith(outcomes[rank], ErrorCode::kUnavailable,
                          {"rank 1 (host", "ended in step 11 while it computes with h.1"}));
  }
  jobs.clear();
  ASSERT_EQ(verdicts.reports().size(), 2U);
  for (const std::string& report : verdicts.reports()) {
    const bool of_first = report.starts_with("rank 0 of 3 (host ");
    EXPECT_TRUE(of_first || report.starts_with("rank 2 of 3 (host ")) << report;
    EXPECT_NE(report.find(")\ncomputes with h."), std::string::npos) << report;
    EXPECT_NE(report.find("begun     weights of h.3 (operation 3 of step 11)\n"),
              std::string::npos);
    // Rank 0 alone hears of all.
    EXPECT_EQ(report.find("); in weights of h.3 (operation 3 of step 11); computes with h.1\n") !=
                  std::string::npos,
              of_first)
        << report;
  }
}

TEST(JobTest, RanksAreJudgedByTheTimeoutsThatWereSetLast) {
  const Jobs jobs = JoinRanks(2);
  const std::vector<Status> outcomes = OnAll(jobs, [](Job& job, uint32_t rank) {
    job.SetTimeouts({.heartbeat = seconds(20), .operation = seconds(2)});
    if (rank == 0) job.Entered({3, 4, "norm"}, OperationState::kBegun);
    return AwaitFailure(job);
  });
  for (const Status& outcome : outcomes) {
    EXPECT_TRUE(FailsWith(outcome, ErrorCode::kUnavailable, {"did not arrive within 2 s"}));
  }
}

}  // namespace
}  // namespace penstock::comm
