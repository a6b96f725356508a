// A job whose ranks are threads of one process, for tests of what needs a job and is none.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "comm/job.h"

namespace penstock::comm {

class JobOfThreads : public Job {
 public:
  /// What the ranks of a job share.
  class Shared {
   public:
    explicit Shared(uint32_t ranks) : texts_(ranks) {}

    /// Returns the texts of all ranks, which wait for each other.
    Result<std::vector<std::string>> Exchange(uint32_t rank, std::string mine) EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      // Those of the last round may not have left yet.
      while (leaving_ > 0 && status_.ok()) changed_.Wait(mutex_);
      texts_[rank] = std::move(mine);
      if (++arrived_ == texts_.size()) leaving_ = texts_.size();
      changed_.NotifyAll();
      while (leaving_ == 0 && status_.ok()) changed_.Wait(mutex_);
      if (!status_.ok()) return status_.error();
      std::vector<std::string> all = texts_;
      if (--leaving_ == 0) arrived_ = 0;
      changed_.NotifyAll();
      return all;
    }
    void Fail(const Error& why) EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      if (status_.ok()) status_ = why;
      changed_.NotifyAll();
    }
    Status status() const EXCLUDES(mutex_) {
      MutexLock lock(mutex_);
      return status_;
    }

   private:
    mutable Mutex mutex_;
    CondVar changed_;
    std::vector<std::string> texts_ GUARDED_BY(mutex_);
    size_t arrived_ GUARDED_BY(mutex_) = 0;
    size_t leaving_ GUARDED_BY(mutex_) = 0;
    Status status_ GUARDED_BY(mutex_);
  };

  /// What an operation was said to have come to.
  struct Entry {
    Operation operation;
    OperationState state;

    bool operator==(const Entry&) const = default;
  };

  JobOfThreads(std::shared_ptr<Shared> shared, uint32_t ranks, uint32_t rank,
               std::string address = "127.0.0.1")
      : shared_(std::move(shared)),
        world_{.size = ranks, .rank = rank, .local_size = ranks, .local_rank = rank},
        hosts_(ranks, "localhost"),
        address_(std::move(address)) {}

  const World& world() const override { return world_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::string& address() const override { return address_; }

  void SetTimeouts(const Timeouts&) override {}
  Status Agree(const Status& mine) override {
    PENSTOCK_ASSIGN(const std::vector<std::string> all,
                    shared_->Exchange(world_.rank, mine.ok() ? "" : "!" + mine.error().message));
    for (uint32_t rank = 0; rank < world_.size; ++rank) {
      if (all[rank].empty()) continue;
      return MakeError(mine.ok() ? ErrorCode::kUnavailable : mine.error().code, "rank {}: {}", rank,
                       all[rank].substr(1));
    }
    return {};
  }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    return shared_->Exchange(world_.rank, std::move(mine));
  }
  Status Vote(uint64_t, uint64_t) override { return Agree({}); }
  void Doing(std::string_view) override {}
  void Progressed() override {}
  void Entered(const Operation& operation, OperationState state) override EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    entries_.push_back({operation, state});
  }
  void Fail(const Error& why) override { shared_->Fail(why); }
  Status status() const override { return shared_->status(); }
  bool ended_agreed() const override { return false; }
  Status Finish() override { return Agree({}); }

  std::vector<Entry> entries() const EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return entries_;
  }

 private:
  const std::shared_ptr<Shared> shared_;
  const World world_;
  const std::vector<std::string> hosts_;
  const std::string address_;
  mutable Mutex mutex_;
  std::vector<Entry> entries_ GUARDED_BY(mutex_);
};

/// Makes the jobs of all ranks.
inline std::vector<std::unique_ptr<Job>> MakeJobOfThreads(uint32_t ranks) {
  const auto shared = std::make_shared<JobOfThreads::Shared>(ranks);
  std::vector<std::unique_ptr<Job>> jobs;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    jobs.push_back(std::make_unique<JobOfThreads>(shared, ranks, rank));
  }
  return jobs;
}

}  // namespace penstock::comm
