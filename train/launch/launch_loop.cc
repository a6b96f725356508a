#include "train/launch/launch_loop.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/message_text.h"
#include "train/launch/rank_lines.h"
#include "train/launch/signal_queue.h"

namespace penstock::train {
namespace {

using Time = std::chrono::steady_clock::time_point;

Time Now() { return std::chrono::steady_clock::now(); }

/// Milliseconds for poll(2): until `deadline`, -1 for ever.
int PollTime(std::optional<Time> deadline, Time now) {
  if (!deadline.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*deadline - now);
  return static_cast<int>(std::clamp<int64_t>(left.count(), 0, 60'000));
}

/// Writes whole lines to stderr. Rank 0 may have its line of progress on the same terminal: it is
/// erased (ECMA-48 EL), and rank 0 shows the next one.
void WriteLines(const std::string& lines) {
  if (lines.empty()) return;
  const std::string all = (::isatty(STDERR_FILENO) != 0 ? "\r\x1b[K" : "") + lines;
  std::fwrite(all.data(), 1, all.size(), stderr);  // an unread pipe must not end the work
}

/// A rank's name has its host's name, and an error may have a library's text: control characters
/// are removed.
void Say(std::string_view line) { WriteLines(fmt::format("penstock: {}\n", MessageLine(line))); }

class LaunchLoop {
 public:
  LaunchLoop(SignalQueue signals, size_t ranks, const Patience& patience)
      : signals_(std::move(signals)), lines_(ranks), patience_(patience), fates_(patience) {}

  int Run(const std::vector<RankCommand>& commands) {
    for (const RankCommand& command : commands) {
      if (!Start(command)) break;  // the others would wait for it
    }
    while (!fates_.over()) Turn();
    SayWhy();
    for (RankProcess& rank : ranks_) rank.Leave();
    return fates_.exit_code();
  }

 private:
  /// The first failure, until it is reported.
  struct Failure {
    std::string name;  ///< of the rank
    Ending ending;
  };

  bool Start(const RankCommand& command) {
    Result<RankProcess> process = RankProcess::Start(command);
    if (process.ok()) {
      fates_.Started();
      ranks_.push_back(*std::move(process));
      return true;
    }
    Say(fmt::format("error: rank {} cannot be started: {}", command.rank, process.error().message));
    fates_.NotStarted(Now());
    return false;
  }

  /// Waits for the next events, and handles them.
  void Turn() {
    std::vector<pollfd> polls = {{.fd = signals_.fd(), .events = POLLIN}};
    // poll(2) ignores invalid descriptors.
    for (const RankProcess& rank : ranks_) {
      polls.push_back({.fd = rank.output().get(), .events = POLLIN});
    }
    if (::poll(polls.data(), polls.size(), PollTime(NextDeadline(), Now())) > 0) {
      for (size_t i = 0; i < ranks_.size(); ++i) {
        if (polls[i + 1].revents != 0) Read(ranks_[i]);
      }
    }
    HandleSignals();
    EndHungConnections();
    GiveOrders();
  }

  std::optional<Time> NextDeadline() const {
    const std::optional<Time> order = fates_.deadline();
    if (!asked_until_ || (order && *order < *asked_until_)) return order;
    return asked_until_;
  }

  /// A rank may take any time for its commit. But if ssh has not even read the request, it never
  /// connected, and there is nothing to commit.
  void EndHungConnections() {
    if (!asked_until_ || Now() < *asked_until_) return;
    asked_until_.reset();
    for (RankProcess& rank : ranks_) {
      if (!rank.HasUnreadInput()) continue;
      Say(fmt::format("ending the connection to {}, which hangs", rank.name()));
      rank.EndConnection();
    }
  }

  void Read(RankProcess& rank) {
    Write(lines_.Add(rank.rank(), rank.Read()));
    if (!rank.output().valid()) Write(lines_.Finish(rank.rank()));
  }

  void Write(const std::string& lines) const {
    if (!fates_.quitting()) WriteLines(lines);
  }

  void HandleSignals() {
    for (const int signal : signals_.Take()) {
      if (signal == SIGCHLD) {
        Reap();
      } else if (signal == SIGTSTP) {
        SignalAll(SIGSTOP);
        SignalQueue::StopUntilContinued();
        SignalAll(SIGCONT);
      } else if (fates_.Interrupted(signal, Now())) {
        SignalAll(signal);
        asked_until_ = Now() + patience_.terminate;
      }
    }
  }

  void SignalAll(int signal) {
    for (const RankProcess& rank : ranks_) rank.Signal(signal);
  }

  /// Finds the ranks that have ended.
  void Reap() {
    std::vector<Ending> endings;
    std::vector<RankProcess> running;
    std::vector<RankProcess> ended;
    for (RankProcess& rank : ranks_) {
      const std::optional<Ending> ending = rank.Poll();
      if (ending.has_value()) endings.push_back(*ending);
      (ending.has_value() ? ended : running).push_back(std::move(rank));
    }
    ranks_ = std::move(running);
    const std::optional<Ending> failure = fates_.Ended(endings, Now());
    for (size_t i = 0; i < ended.size(); ++i) {
      Write(lines_.Add(ended[i].rank(), ended[i].ReadRest()));
      Write(lines_.Finish(ended[i].rank()));
      if (ended[i].rank() == 0) first_has_reported_ = HasReported(endings[i]);
      if (failure == endings[i]) failure_ = Failure{ended[i].name(), endings[i]};
    }
  }

  void GiveOrders() {
    const RankFates::Order order = fates_.Due(Now());
    if (order != RankFates::Order::kNone) SayWhy();
    switch (order) {
      case RankFates::Order::kNone:
        return;
      case RankFates::Order::kTerminate:
        return EndAll(SIGTERM, "SIGTERM");
      case RankFates::Order::kKill:
        return EndAll(SIGKILL, "SIGKILL");
      case RankFates::Order::kLeave:
        Say(fmt::format("{} cannot be killed and may still run", RunningRanks()));
    }
  }

  /// Reports how the rank that failed first has ended: as the error of the launch, unless rank 0
  /// has reported one; then only the signal, which that cannot report.
  void SayWhy() {
    const std::optional<Failure> failure = std::exchange(failure_, std::nullopt);
    if (!failure.has_value()) return;
    if (first_has_reported_ && failure->ending.signal == 0) return;
    Say(fmt::format("{}{} {}", first_has_reported_ ? "" : "error: ", failure->name,
                    EndingText(failure->ending)));
  }

  void EndAll(int signal, const char* name) {
    Say(fmt::format("ending {}, still running ({})", RunningRanks(), name));
    SignalAll(signal);
  }

  /// "rank 2 (pid 4711)", or the names of several.
  std::string RunningRanks() const {
    constexpr size_t kMaxNamed = 8;
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(ranks_.size(), kMaxNamed); ++i) {
      names.push_back(ranks_[i].name());
    }
    std::string text = fmt::format("{}", fmt::join(names, ", "));
    if (ranks_.size() > names.size()) {
      text += fmt::format(" and {} more", ranks_.size() - names.size());
    }
    return text;
  }

  SignalQueue signals_;
  RankLines lines_;
  const Patience patience_;
  RankFates fates_;
  std::optional<Time> asked_until_;  ///< by when ssh must have read the signal
  std::vector<RankProcess> ranks_;   ///< running ranks
  std::optional<Failure> failure_;
  bool first_has_reported_ = false;  ///< rank 0 has ended with an error that it reported
};

}  // namespace

Result<int> RunRanks(const std::vector<RankCommand>& commands, const Patience& patience) {
  PENSTOCK_ASSIGN(SignalQueue signals, SignalQueue::Create());
  return LaunchLoop(std::move(signals), commands.size(), patience).Run(commands);
}

}  // namespace penstock::train
