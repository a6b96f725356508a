#include "comm/job.h"

#include <utility>

#include "base/mutex.h"
#include "comm/environment.h"
#include "comm/rendezvous.h"
#include "comm/star_job.h"

namespace penstock::comm {
namespace {

/// A single rank: collective operations return at once.
class OneRankJob final : public Job {
 public:
  explicit OneRankJob(std::string host) : hosts_{std::move(host)} {}

  const World& world() const override { return world_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::string& address() const override { return address_; }
  void SetTimeouts(const Timeouts& /*timeouts*/) override {}
  Status Agree(const Status& mine) override {
    if (!mine.ok()) Fail(mine.error());
    return status();
  }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    PENSTOCK_TRY(status());
    return std::vector<std::string>{std::move(mine)};
  }
  Status Vote(uint64_t /*step*/, uint64_t /*session*/) override { return status(); }
  void Doing(std::string_view /*what*/) override {}
  void Progressed() override {}
  void Entered(const Operation& /*operation*/, OperationState /*state*/) override {}
  void Fail(const Error& why) override {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
  }
  Status status() const override {
    MutexLock lock(mutex_);
    return failure_;
  }
  bool ended_agreed() const override { return false; }
  Status Finish() override { return status(); }

 private:
  const World world_;
  const std::vector<std::string> hosts_;
  mutable Mutex mutex_;
  Status failure_ GUARDED_BY(mutex_);
  const std::string address_;  ///< empty, as there is no other rank
};

}  // namespace

Result<std::unique_ptr<Job>> Job::Join(const Environment& environment, JobOptions options) {
  const Timeouts& timeouts = options.timeouts;
  if (timeouts.heartbeat < kMinTimeout || timeouts.operation < kMinTimeout) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the time-outs of a job are at least {} s: its ranks are heard of each second",
                     kMinTimeout.count());
  }
  PENSTOCK_ASSIGN(Launch launch, ReadLaunch(environment));
  PENSTOCK_ASSIGN(MeetingPoint meeting, Meet(std::move(launch), options.join_timeout));
  if (meeting.world.size == 1) {
    return std::unique_ptr<Job>(std::make_unique<OneRankJob>(meeting.members.front().host));
  }
  return StarJob::Start(std::move(meeting), std::move(options));
}

Result<bool> Job::HasSeveralRanks(const Environment& environment) {
  PENSTOCK_ASSIGN(const Launch launch, ReadLaunch(environment));
  if (!launch.by_pmix || launch.rank > 0) return launch.size > 1 || launch.rank > 0;
  // PMIx tells the number of ranks only to processes that join; its launchers set it in the
  // environment, too.
  for (const char* size : {"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (environment(size).value_or("1") != "1") return true;
  }
  return false;
}

}  // namespace penstock::comm
