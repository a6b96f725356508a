#include "train/trainer/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>

#include "base/thread.h"
#include "run/rank_reports.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

/// "rank 2 (host b)"
std::string NameOf(const comm::Job& job, size_t rank) {
  return fmt::format("rank {} (host {})", rank, job.hosts()[rank]);
}

/// Whether a verdict names a rank.
bool Names(const Error& verdict, uint32_t rank) {
  return verdict.message.starts_with(fmt::format("rank {} (", rank));
}

/// How long a failing rank waits for rank 0's verdict, which takes at most two seconds.
constexpr std::chrono::seconds kLastWord{5};

/// How long the cleanup waits for files that are being made. Afterwards it leaves all files, and
/// RUN, which names them.
constexpr std::chrono::seconds kFilesMade{2};

/// How long a report may take: a hanging file system may be the reason of the failure.
constexpr std::chrono::seconds kReport{1};

/// Calls `write` on its own thread, and abandons it if it takes too long, until the process ends:
/// `write` uses nothing that is destroyed before.
void WriteInTime(std::function<void()> write) {
  struct Writing {
    Mutex mutex;
    CondVar changed;
    bool done GUARDED_BY(mutex) = false;
  };
  const auto writing = std::make_shared<Writing>();
  Result<std::thread> thread = StartThread("a report", [writing, write = std::move(write)] {
    write();
    MutexLock lock(writing->mutex);
    writing->done = true;
    writing->changed.NotifyAll();
  });
  if (!thread.ok()) return;
  thread->detach();
  const auto deadline = std::chrono::steady_clock::now() + kReport;
  MutexLock lock(writing->mutex);
  while (!writing->done && writing->changed.WaitUntil(writing->mutex, deadline)) {
  }
}

}  // namespace

std::optional<std::string> ReadEnvironment(const std::string& name) {
  // Only the main thread changes the environment (PrepareCuda), and not meanwhile.
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  if (value == nullptr) return std::nullopt;
  return std::string(value);
}

Result<std::unique_ptr<Ranks>> Ranks::Join(const comm::Environment& environment) {
  std::unique_ptr<Ranks> ranks(new Ranks());
  comm::JobOptions options;
  options.on_failure = [raw = ranks.get()](const Error& verdict, const std::string& report) {
    raw->OnVerdict(verdict, report);
  };
  {
    // A verdict may come before the job is assigned.
    MutexLock lock(ranks->mutex_);
    PENSTOCK_ASSIGN(ranks->job_, comm::Job::Join(environment, std::move(options)));
  }
  if (ranks->alone()) return ranks;
  if (!ranks->first()) SilenceNotices();
  PrepareCuda(environment, ranks->world().local_rank);
  PENSTOCK_ASSIGN(ranks->share_, ShareProcessors(*ranks->job_));
  return ranks;
}

std::function<void(std::string_view what)> Ranks::doing() {
  if (alone()) return {};
  return [&job = *job_](std::string_view what) { job.Doing(what); };
}

std::function<void()> Ranks::progressed() {
  if (alone()) return {};
  return [&job = *job_] { job.Progressed(); };
}

void Ranks::ReportTo(std::string run, std::string run_uuid) {
  MutexLock lock(mutex_);
  run_ = std::move(run);
  run_uuid_ = std::move(run_uuid);
}

void Ranks::Committed(uint64_t step) {
  MutexLock lock(mutex_);
  committed_ = step;
}

Error Ranks::Said(Error verdict) const {
  if (committed_) verdict.message += fmt::format("; step {} is committed", *committed_);
  return verdict;
}

/// A new run that ends before its first step leaves nothing.
void Ranks::LeaveReport(const Error& verdict, const std::string& report) const {
  if (run_.empty() || cleanup_) return;
  WriteInTime([run = run_, uuid = run_uuid_, rank = world().rank,
               text = Said(verdict).message + "\n\n" + report] {
    static_cast<void>(WriteRankReport(run, uuid, rank, text));
  });
}

Result<std::string> Ranks::FromFirst(std::string text) {
  if (alone()) return text;
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job_->Gather(first() ? text : ""));
  return all.front();
}

Status Ranks::CheckAlike(const NamedValues& mine) {
  return alone() ? Status() : train::CheckAlike(*job_, mine);
}

Result<std::vector<zero::StepNote>> Ranks::ExchangeNotes(const zero::StepNote& note) {
  if (alone()) return std::vector{note};
  std::string bytes(sizeof note, '\0');
  std::memcpy(bytes.data(), note.data(), sizeof note);
  PENSTOCK_ASSIGN(const std::vector<std::string> all, job_->Gather(std::move(bytes)));
  std::vector<zero::StepNote> notes(all.size());
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].size() != sizeof note) {
      return MakeError(ErrorCode::kUnavailable, "{} sent {} bytes instead of a step's note",
                       NameOf(*job_, rank), all[rank].size());
    }
    std::memcpy(notes[rank].data(), all[rank].data(), sizeof note);
  }
  return notes;
}

Result<std::unique_ptr<comm::Communicator>> Ranks::CreateCommunicator(device::Device& device,
                                                                      ActivityMeter* meter) {
  if (alone()) return std::unique_ptr<comm::Communicator>();
  return device.kind() == device::Kind::kCuda ? comm::CreateNccl(*job_, device, meter)
                                              : comm::CreateGloo(*job_, device, meter);
}

void Ranks::SetCleanup(std::function<void()> cleanup) {
  MutexLock lock(mutex_);
  cleanup_ = std::move(cleanup);
}

Ranks::MakingFiles::MakingFiles(Ranks& ranks) : ranks_(ranks) {
  MutexLock lock(ranks_.mutex_);
  ranks_.making_files_ = true;
}

Ranks::MakingFiles::~MakingFiles() {
  MutexLock lock(ranks_.mutex_);
  ranks_.making_files_ = false;
  ranks_.files_made_.NotifyAll();
}

void Ranks::AwaitFiles() {
  const auto deadline = std::chrono::steady_clock::now() + kFilesMade;
  while (cleanup_ && making_files_ && files_made_.WaitUntil(mutex_, deadline)) continue;
}

/// The process ends with the mutex held, so that no more files are made.
void Ranks::CleanUp() {
  if (cleanup_ && !making_files_) cleanup_();
}

/// The main thread may wait for a lost rank in a library that never returns. Rank 0 reports for
/// all, unless it is the lost one.
void Ranks::OnVerdict(const Error& verdict, const std::string& report) {
  MutexLock lock(mutex_);
  AwaitFiles();
  if (failing_) {
    LeaveReport(verdict, report);
    verdict_ = verdict;
    judged_.NotifyAll();
    return;
  }
  CleanUp();
  const bool speaks = first() || Names(verdict, 0);
  const int code = speaks ? ReportError(Said(verdict)) : ExitCode(verdict.code);
  LeaveReport(verdict, report);
  std::_Exit(code);
}

void Ranks::Tell(const Error& why) {
  if (alone() || job_->ended_agreed()) return;
  {
    MutexLock lock(mutex_);
    failing_ = true;
  }
  if (why.code != ErrorCode::kNumeric) job_->Fail(why);
}

void Ranks::End(const Error& why) {
  if (alone() || job_->ended_agreed()) return;
  {
    MutexLock lock(mutex_);
    failing_ = true;
  }
  job_->Fail(why);
  MutexLock lock(mutex_);
  const auto deadline = std::chrono::steady_clock::now() + kLastWord;
  while (!verdict_ && judged_.WaitUntil(mutex_, deadline)) continue;
  const Error verdict = verdict_.value_or(why);
  CleanUp();
  const bool mine = !verdict_ || Names(verdict, world().rank);
  // All ranks find the same numeric failure. A failure of another rank has the same text whether
  // this thread or the job's received it first.
  Error said = mine || why.code == ErrorCode::kNumeric ? why : Said(verdict);
  if (!first() && mine)
    said.message = fmt::format("{}: {}", NameOf(*job_, world().rank), said.message);
  const bool speaks = first() || (mine && why.code != ErrorCode::kNumeric) || Names(verdict, 0);
  std::_Exit(speaks ? ReportError(said) : ExitCode(said.code));
}

Status Ranks::Finish() { return alone() ? Status() : job_->Finish(); }

}  // namespace penstock::train
