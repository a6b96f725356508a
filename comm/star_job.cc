#include "comm/star_job.h"

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/thread.h"

namespace penstock::comm {
namespace {

using std::chrono::steady_clock;

/// How long rank 0 waits for the others to have heard its last word.
constexpr std::chrono::seconds kLastWord{1};

/// Rank 0 judges operations, because it hears of all ranks.
Watch::Limits LimitsOf(const World& world, const Timeouts& timeouts) {
  Watch::Limits limits = {.heartbeat = timeouts.heartbeat};
  if (world.rank == 0) limits.operation = timeouts.operation;
  return limits;
}

/// The end as rank 0 tells of it.
Ending EndingOf(const Message& message) {
  if (message.number == static_cast<uint64_t>(EndKind::kFinished)) return {};
  Status why = StatusOf(message);
  if (why.ok()) why = Error{ErrorCode::kUnavailable, "rank 0 has ended the job"};
  const bool agreed = message.number == static_cast<uint64_t>(EndKind::kAgreed);
  return {agreed ? EndKind::kAgreed : EndKind::kVerdict, std::move(why)};
}

/// The address of this end of the connections. Where ranks are on several hosts, one that others
/// reach: ranks on the host of rank 0 may have met it over the loopback interface.
std::string OwnAddress(const MeetingPoint& meeting) {
  std::string own;
  for (const Connection& connection : meeting.connections) {
    own = LocalAddress(connection.descriptor());
    if (!own.empty() && !IsLoopback(own)) return own;
  }
  const bool one_host = std::ranges::all_of(meeting.members, [&](const Member& member) {
    return member.host == meeting.members.front().host;
  });
  const std::vector<std::string> others =
      one_host ? std::vector<std::string>() : InterfaceAddresses();
  return others.empty() ? own : others.front();
}

}  // namespace

Result<std::unique_ptr<Job>> StarJob::Start(MeetingPoint meeting, JobOptions options) {
  PENSTOCK_ASSIGN(std::unique_ptr<Calls> calls, Calls::Create());
  PENSTOCK_ASSIGN(Peers peers, Peers::Create(calls->wakes()));
  std::string address = OwnAddress(meeting);
  uint32_t peer = meeting.world.rank == 0 ? 1 : 0;
  for (Connection& connection : meeting.connections) {
    PENSTOCK_TRY(peers.Add(peer++, std::move(connection)));
  }
  std::unique_ptr<StarJob> job(new StarJob(meeting.world, meeting.members, std::move(address),
                                           std::move(calls), std::move(peers), std::move(options)));
  PENSTOCK_ASSIGN(job->thread_, StartThread("the job", [raw = job.get()] { raw->Run(); }));
  return std::unique_ptr<Job>(std::move(job));
}

StarJob::StarJob(World world, const std::vector<Member>& members, std::string address,
                 std::unique_ptr<Calls> calls, Peers peers, JobOptions options)
    : world_(world),
      options_(std::move(options)),
      address_(std::move(address)),
      calls_(std::move(calls)),
      peers_(std::move(peers)),
      hub_(members),
      watch_(members, LimitsOf(world_, options_.timeouts), steady_clock::now()),
      timeouts_(options_.timeouts) {
  for (const Member& member : members) hosts_.push_back(member.host);
}

StarJob::~StarJob() {
  calls_->Leave();
  if (thread_.joinable()) thread_.join();
}

void StarJob::SetTimeouts(const Timeouts& timeouts) {
  PENSTOCK_CHECK(timeouts.heartbeat >= kMinTimeout && timeouts.operation >= kMinTimeout,
                 "a job is given time-outs of {} and {} s", timeouts.heartbeat.count(),
                 timeouts.operation.count());
  MutexLock lock(progress_mutex_);
  timeouts_ = timeouts;
}

Status StarJob::Agree(const Status& mine) {
  Message message{.type = MessageType::kAgree};
  SetStatus(mine, &message);
  return calls_->Make(std::move(message), 1).status();
}

Result<std::vector<std::string>> StarJob::Gather(std::string mine) {
  if (mine.size() > kMaxText) {
    return MakeError(ErrorCode::kInvalidArgument, "a job takes texts of at most {} bytes, not {}",
                     kMaxText, mine.size());
  }
  return calls_->Make({.type = MessageType::kGather, .text = std::move(mine)}, world_.size);
}

Status StarJob::Vote(uint64_t step, uint64_t session) {
  return calls_->Make({.type = MessageType::kVote, .a = step, .b = session}, 1).status();
}

void StarJob::Doing(std::string_view what) {
  MutexLock lock(progress_mutex_);
  progress_.doing = what.substr(0, 2 * kMaxDoing);  // and exactly where it is sent
}

void StarJob::Progressed() {
  MutexLock lock(progress_mutex_);
  ++progress_.pieces;
}

void StarJob::Entered(const Operation& operation, OperationState state) {
  const SteadyTime now = steady_clock::now();
  MutexLock lock(progress_mutex_);
  log_.Add(operation, state, now);
  switch (state) {
    case OperationState::kEnqueued:
      progress_.enqueued = operation;
      break;
    case OperationState::kBegun:
      progress_.begun = operation;
      break;
    case OperationState::kEnded:
      progress_.ended = operation;
      break;
  }
}

void StarJob::Fail(const Error& why) {
  Message message{.type = MessageType::kFail};
  SetStatus(why, &message);
  calls_->Tell(std::move(message));
}

Status StarJob::Finish() { return calls_->Make({.type = MessageType::kFinish}, 1).status(); }

void StarJob::Run() {
  ::pthread_setname_np(::pthread_self(), "penstock-job");
  for (uint32_t rank = 0; rank < world_.size; ++rank) {
    if (peers_.Find(rank) == nullptr) continue;
    watch_.Alive(rank);
    Hear(rank);  // what arrived behind the last message of the meeting
  }
  SteadyTime next_heartbeat = steady_clock::now();
  bool leaves = false;
  while (!ending_.has_value() && !leaves) {
    const Peers::Ready ready = peers_.Wait(std::min(next_heartbeat, watch_.due()));
    Calls::Taken taken;
    if (ready.also) taken = calls_->Take();
    leaves = taken.leaves;
    // What a rank did before a call is known where the call is.
    if (!taken.messages.empty()) next_heartbeat = SendProgress();
    for (const uint32_t peer : ready.peers) Hear(peer);
    // A call may be the consequence of what another rank has sent, which is heard first.
    if (!taken.messages.empty()) {
      for (const uint32_t peer : peers_.Wait(steady_clock::now()).peers) Hear(peer);
    }
    for (Message& message : taken.messages) HandOn(std::move(message));
    const SteadyTime now = steady_clock::now();
    if (now >= next_heartbeat) next_heartbeat = SendProgress();
    if (std::optional<Error> verdict = watch_.Judge(now)) Verdict(*std::move(verdict));
  }
  Leave();
}

void StarJob::HandOn(Message message) {
  if (is_hub()) return ReceiveAtHub(0, std::move(message));
  peers_.Send(0, EncodeMessage(message));
}

void StarJob::Hear(uint32_t peer) {
  Connection* connection = peers_.Find(peer);
  const Connection::Received received = connection->Receive();
  if (received.bytes > 0) watch_.Alive(peer);
  while (!ending_.has_value()) {
    Result<std::optional<Message>> message = connection->arrived().Next();
    if (!message.ok()) return Blame(peer, message.error());
    if (!message->has_value()) break;
    if (is_hub()) {
      ReceiveAtHub(peer, **std::move(message));
    } else {
      ReceiveFromHub(**std::move(message));
    }
  }
  if (received.open || ending_.has_value()) return;
  peers_.Close(peer);
  watch_.Closed(peer, is_hub() && hub_.has_finished(peer));
}

void StarJob::ReceiveAtHub(uint32_t rank, Message message) {
  if (ending_.has_value()) return;
  if (message.type == MessageType::kHeartbeat) return HearProgress(rank, message);
  const Status why = StatusOf(message);
  if (message.type == MessageType::kEnd && !why.ok()) return Verdict(why.error());
  if (message.type == MessageType::kFail && !why.ok()) {
    return watch_.Failed(rank, why.error(), steady_clock::now());
  }
  // Once a rank has told of an error, no call succeeds any more.
  if (watch_.failure().has_value()) return;
  if (message.type == MessageType::kVote) watch_.Voted(rank, message.a);
  for (Message& reply : hub_.Receive(rank, std::move(message))) {
    peers_.SendToAll(EncodeMessage(reply));
    ReceiveFromHub(std::move(reply));
  }
  if (hub_.ending().has_value()) End(*hub_.ending());
}

void StarJob::ReceiveFromHub(Message message) {
  switch (message.type) {
    case MessageType::kHeartbeat:
      return HearProgress(0, message);
    case MessageType::kEnd:
      return End(EndingOf(message));
    case MessageType::kReply:
      if (calls_->Reply(std::move(message))) return;
      [[fallthrough]];
    default:
      Blame(0, {ErrorCode::kUnavailable, "it answers what this rank has not asked"});
  }
}

void StarJob::HearProgress(uint32_t rank, const Message& message) {
  Result<Progress> progress = DecodeProgress(message.text);
  if (!progress.ok()) return Blame(rank, progress.error());
  watch_.Heard(rank, *std::move(progress));
}

SteadyTime StarJob::SendProgress() {
  Progress progress;
  {
    MutexLock lock(progress_mutex_);
    progress = progress_;
    watch_.set_limits(LimitsOf(world_, timeouts_));
  }
  const Frame frame =
      EncodeMessage({.type = MessageType::kHeartbeat, .text = EncodeProgress(progress)});
  // One that waits for room shows as well that this rank lives, and more would only add up.
  for (uint32_t rank = 0; rank < world_.size; ++rank) {
    const Connection* connection = peers_.Find(rank);
    if (connection != nullptr && !connection->has_output()) peers_.Send(rank, frame);
  }
  if (is_hub()) watch_.Heard(0, std::move(progress));
  return steady_clock::now() + Watch::kTick;
}

void StarJob::Blame(uint32_t rank, const Error& why) {
  Verdict({why.code, fmt::format("rank {} (host {}): {}", rank, hosts_[rank], why.message)});
}

void StarJob::Verdict(Error why) {
  Message message{.type = MessageType::kEnd};
  SetStatus(why, &message);
  // Rank 0 may only have been stopped, and then learns here that it was given up.
  if (!is_hub()) peers_.Send(0, EncodeMessage(message));
  End({EndKind::kVerdict, std::move(why)});
}

std::string StarJob::Report() {
  std::string report =
      fmt::format("rank {} of {} (host {}, pid {})\n", world_.rank, world_.size,
                  OneLine(hosts_[world_.rank], kMaxHost), static_cast<int64_t>(::getpid()));
  {
    MutexLock lock(progress_mutex_);
    if (!progress_.doing.empty()) report += OneLine(progress_.doing, kMaxDoing) + "\n";
    report += "\nits operations with the other ranks, the newest last:\n" +
              log_.Text(steady_clock::now());
  }
  if (is_hub()) report += "\nthe ranks, when they were last heard:\n" + watch_.Table();
  return report;
}

void StarJob::End(Ending ending) {
  if (ending_.has_value()) return;
  if (is_hub()) {
    Message message{.type = MessageType::kEnd, .number = static_cast<uint64_t>(ending.kind)};
    SetStatus(ending.why, &message);
    peers_.SendToAll(EncodeMessage(message));
  }
  calls_->End(ending);
  ending_ = std::move(ending);
}

void StarJob::Leave() {
  // An error that was told of just before, and has not settled.
  if (is_hub() && !ending_.has_value() && watch_.failure().has_value()) Verdict(*watch_.failure());
  const SteadyTime deadline = steady_clock::now() + kLastWord;
  if (is_hub()) {
    if (ending_.has_value()) peers_.AwaitClosed(deadline);
  } else if (Connection* connection = peers_.Find(0); connection != nullptr) {
    while (connection->has_output() && WaitFor(connection->descriptor(), POLLOUT, deadline)) {
      connection->Flush();
    }
    connection->HalfClose();
    if (!ending_.has_value()) peers_.AwaitClosed(deadline);
  }
  const bool failed = ending_.has_value() && ending_->kind == EndKind::kVerdict;
  if (failed && options_.on_failure) options_.on_failure(ending_->why.error(), Report());
}

}  // namespace penstock::comm
