// A job of several ranks: a star of connections to rank 0, which each rank's thread "penstock-job"
// serves.
//
// The thread takes messages from callers (comm/calls.h), sends and receives (comm/peers.h), reports
// this rank's progress to the others each second, and monitors them (comm/watch.h). The thread of
// rank 0 answers the calls of all ranks, including its own (comm/hub.h), and decides. The others
// monitor only rank 0, and get all other verdicts from it.
//
// The thread ends with the job, and nothing of this object runs after it: the destructor waits for
// it, and for the owner's function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "comm/calls.h"
#include "comm/hub.h"
#include "comm/job.h"
#include "comm/operation_log.h"
#include "comm/peers.h"
#include "comm/rendezvous.h"
#include "comm/watch.h"

namespace penstock::comm {

class StarJob final : public Job {
 public:
  static Result<std::unique_ptr<Job>> Start(MeetingPoint meeting, JobOptions options);
  ~StarJob() override;

  const World& world() const override { return world_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::string& address() const override { return address_; }
  void SetTimeouts(const Timeouts& timeouts) override;
  Status Agree(const Status& mine) override;
  Result<std::vector<std::string>> Gather(std::string mine) override;
  Status Vote(uint64_t step, uint64_t session) override;
  void Doing(std::string_view what) override;
  void Progressed() override;
  void Entered(const Operation& operation, OperationState state) override;
  void Fail(const Error& why) override;
  Status status() const override { return calls_->status(); }
  bool ended_agreed() const override { return calls_->ended_agreed(); }
  Status Finish() override;

 private:
  StarJob(World world, const std::vector<Member>& members, std::string address,
          std::unique_ptr<Calls> calls, Peers peers, JobOptions options);

  // All that follows is of the thread.
  void Run();
  bool is_hub() const { return world_.rank == 0; }
  /// What a caller on this rank has handed on.
  void HandOn(Message message);
  void Hear(uint32_t peer);
  /// A message from a rank to rank 0, and one from rank 0 to this rank.
  void ReceiveAtHub(uint32_t rank, Message message);
  void ReceiveFromHub(Message message);
  void HearProgress(uint32_t rank, const Message& message);
  /// Tells the others how far this rank is. Returns when to do it again.
  SteadyTime SendProgress();
  /// Ends the job on this rank and, where this one is rank 0, on all.
  void End(Ending ending);
  void Verdict(Error why);
  /// What is left of this rank for people; see JobOptions::on_failure.
  std::string Report();
  /// Ends the job for what a rank has sent.
  void Blame(uint32_t rank, const Error& why);
  /// What is left to do when the job has ended or is being left.
  void Leave();

  const World world_;
  const JobOptions options_;
  std::vector<std::string> hosts_;
  const std::string address_;
  const std::unique_ptr<Calls> calls_;
  Peers peers_;
  Hub hub_;
  Watch watch_;
  std::optional<Ending> ending_;

  Mutex progress_mutex_;
  Progress progress_ GUARDED_BY(progress_mutex_);
  OperationLog log_ GUARDED_BY(progress_mutex_);
  Timeouts timeouts_ GUARDED_BY(progress_mutex_);

  std::thread thread_;
};

}  // namespace penstock::comm
