// Rank 0's side of a meeting.
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/token.h"
#include "comm/rendezvous.h"

namespace penstock::comm {
namespace {

using std::chrono::steady_clock;

/// How long the last word may take to arrive.
constexpr std::chrono::seconds kLastWordTime{1};
/// Max connections that have not joined yet.
constexpr ptrdiff_t kStrangers = 64;

/// Compares in a time that does not tell how much is the same.
bool SameSecret(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  unsigned different = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    different |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b[i]);
  }
  return different == 0;
}

/// Makes a descriptor that is readable when one of the listeners is.
Result<UniqueFd> WaitForAny(std::span<const Listener> listeners) {
  UniqueFd all(::epoll_create1(EPOLL_CLOEXEC));
  if (!all.valid()) return ErrnoError(errno, "rank 0 cannot wait for the others");
  for (const Listener& listener : listeners) {
    epoll_event event = {.events = EPOLLIN, .data = {}};
    if (::epoll_ctl(all.get(), EPOLL_CTL_ADD, listener.socket.get(), &event) != 0) {
      return ErrnoError(errno, "rank 0 cannot wait for the others");
    }
  }
  return all;
}

class Reception {
 public:
  Reception(const Launch& launch, std::span<const Listener> listeners, Peers peers,
            std::chrono::milliseconds greeting_time)
      : launch_(launch),
        listeners_(listeners),
        greeting_time_(greeting_time),
        peers_(std::move(peers)),
        members_(launch.size),
        guests_of_ranks_(launch.size) {
    members_[0] = {.host = HostName(), .pid = static_cast<uint64_t>(::getpid())};
  }

  Result<MeetingPoint> Run(std::chrono::seconds timeout) {
    const SteadyTime deadline = steady_clock::now() + timeout;
    while (joined_ + 1 < launch_.size && !failure_.has_value()) {
      // What had arrived by then counts, also where this process was stopped for a while.
      const bool is_over = steady_clock::now() >= deadline;
      const Peers::Ready ready = peers_.Wait(std::min(deadline, NextGreetingEnd(deadline)));
      for (const uint32_t number : ready.peers) Hear(number);
      if (ready.also) {
        for (const Listener& listener : listeners_) Accept(listener.socket.get());
      }
      DropLateStrangers();
      if (is_over && joined_ + 1 < launch_.size && !failure_.has_value()) {
        failure_ = Missing(timeout);
      }
    }
    if (failure_.has_value()) return GiveUp();
    return Start();
  }

 private:
  /// A connection, and whose it is.
  struct Guest {
    std::optional<uint32_t> rank = {};
    bool joined = false;
    SteadyTime greets_until = {};
  };

  /// Takes some of the connections that wait, so that a flood of them does not keep the others.
  void Accept(int listener) {
    for (ptrdiff_t i = 0; i < kStrangers; ++i) {
      UniqueFd socket(::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      if (!socket.valid()) {
        const int why = errno;
        if (why == EINTR || why == ECONNABORTED) continue;
        // These stay, and the listener would be ready for ever. Others are of that one connection.
        if (why == EMFILE || why == ENFILE || why == ENOBUFS || why == ENOMEM) {
          failure_ = ErrnoError(why, "rank 0 cannot accept the connection of a rank");
        }
        return;
      }
      DropOldestStranger();
      const uint32_t number = next_guest_++;
      if (const Status added = peers_.Add(number, Connection(std::move(socket), kMaxGreeting));
          !added.ok()) {
        failure_ = added.error();
        return;
      }
      guests_[number] = {.greets_until = steady_clock::now() + greeting_time_};
      // A rank has greeted at once, and is not taken for a stranger when many come.
      Hear(number);
    }
  }

  void Hear(uint32_t number) {
    Connection* connection = peers_.Find(number);
    if (connection == nullptr) return;  // replaced a moment ago
    const bool open = connection->Receive().open;
    while (peers_.Find(number) != nullptr) {
      Result<std::optional<Message>> message = connection->arrived().Next();
      if (!message.ok()) return Drop(number);
      if (!message->has_value()) break;
      Heard(number, **message);
    }
    if (!open) Gone(number);
  }

  void Heard(uint32_t number, const Message& message) {
    Guest& guest = guests_.at(number);
    if (message.type == MessageType::kHello && !guest.rank.has_value()) {
      return Greeted(number, message);
    }
    if (message.type == MessageType::kJoined && guest.rank.has_value() && !guest.joined) {
      guest.joined = true;
      ++joined_;
      return;
    }
    Drop(number);
  }

  void Greeted(uint32_t number, const Message& hello) {
    // The rank that came before may have joined, which is not read yet.
    if (hello.number < launch_.size && guests_of_ranks_[hello.number].has_value()) {
      Hear(*guests_of_ranks_[hello.number]);
    }
    const Result<Greeting> greeting = DecodeGreeting(hello.text);
    const Member member = {.host = greeting.ok() ? greeting->host : "", .pid = hello.b};
    const std::string problem = greeting.ok() ? ProblemOf(hello, member, greeting->token)
                                              : "a greeting of another version of penstock";
    if (!problem.empty()) {
      last_refusal_ = problem;
      Message refusal{.type = MessageType::kEnd,
                      .number = static_cast<uint64_t>(EndKind::kVerdict)};
      SetStatus(Error{ErrorCode::kInvalidArgument, problem}, &refusal);
      peers_.Send(number, EncodeMessage(refusal));
      return Drop(number);
    }
    const auto rank = static_cast<uint32_t>(hello.number);
    // It gave up waiting for the welcome, and has come again.
    if (guests_of_ranks_[rank].has_value()) Drop(*guests_of_ranks_[rank]);
    guests_of_ranks_[rank] = number;
    guests_.at(number).rank = rank;
    members_[rank] = member;
    peers_.Send(number, EncodeMessage({.type = MessageType::kWelcome}));
  }

  /// What is wrong with a greeting; nothing if it is right.
  std::string ProblemOf(const Message& hello, const Member& member,
                        const std::string& token) const {
    const uint64_t rank = hello.number;
    const std::string name =
        fmt::format("rank {} (host {}, pid {})", rank, member.host, member.pid);
    if (!SameSecret(token, launch_.token)) {
      return fmt::format("{} has {}; all ranks of a run have the same {}, or none", name,
                         token.empty()           ? "no token, and rank 0 has one"
                         : launch_.token.empty() ? "a token, and rank 0 has none"
                                                 : "another token than rank 0",
                         kTokenVariable);
    }
    if (hello.key != launch_.run) {
      return fmt::format("{} is of another run ({}) than rank 0 on host {} ({})", name,
                         OneLine(hello.key, kMaxHost), members_[0].host, launch_.run);
    }
    if (hello.a != launch_.size) {
      return fmt::format(
          "{} says that there are {} ranks, and rank 0 (host {}, pid {}) that there are {}; all "
          "ranks of a run have the same WORLD_SIZE, and each run has a MASTER_PORT of its own",
          name, hello.a, members_[0].host, members_[0].pid, launch_.size);
    }
    if (rank == 0 || rank >= launch_.size) return name + " is none that rank 0 waits for";
    const std::optional<uint32_t>& other = guests_of_ranks_[rank];
    if (other.has_value() && guests_.at(*other).joined) {
      return fmt::format(
          "{} has joined already, from host {} with pid {}; each process has a RANK "
          "of its own",
          name, members_[rank].host, members_[rank].pid);
    }
    return {};
  }

  void Gone(uint32_t number) {
    const auto guest = guests_.find(number);
    if (guest == guests_.end()) return;
    if (guest->second.joined) {
      const uint32_t rank = *guest->second.rank;
      failure_ = MakeError(ErrorCode::kUnavailable, "{} ended before all ranks had joined",
                           RankName(rank, members_[rank]));
    }
    Drop(number);
  }

  void Drop(uint32_t number) {
    const auto guest = guests_.find(number);
    if (guest == guests_.end()) return;
    if (const std::optional<uint32_t> rank = guest->second.rank; rank.has_value()) {
      guests_of_ranks_[*rank].reset();
      if (guest->second.joined) --joined_;
    }
    guests_.erase(guest);
    peers_.Close(number);
  }

  static bool IsStranger(const std::pair<const uint32_t, Guest>& guest) {
    return !guest.second.rank.has_value();
  }

  /// Returns when the oldest stranger must have greeted; `none` without one.
  SteadyTime NextGreetingEnd(SteadyTime none) const {
    const auto oldest = std::find_if(guests_.begin(), guests_.end(), IsStranger);
    return oldest == guests_.end() ? none : oldest->second.greets_until;
  }

  void DropLateStrangers() {
    const SteadyTime now = steady_clock::now();
    while (NextGreetingEnd(SteadyTime::max()) <= now) {
      Drop(std::find_if(guests_.begin(), guests_.end(), IsStranger)->first);
    }
  }

  /// Called if there are too many. It may be a rank after all, which then connects again.
  void DropOldestStranger() {
    if (std::count_if(guests_.begin(), guests_.end(), IsStranger) < kStrangers) return;
    Drop(std::find_if(guests_.begin(), guests_.end(), IsStranger)->first);
  }

  Error Missing(std::chrono::seconds timeout) const {
    std::vector<uint32_t> missing;
    for (uint32_t rank = 1; rank < launch_.size; ++rank) {
      const std::optional<uint32_t>& guest = guests_of_ranks_[rank];
      if (!guest.has_value() || !guests_.at(*guest).joined) missing.push_back(rank);
    }
    std::string message = fmt::format(
        "{} of {} did not join within {} s; see what they say, and "
        "whether they were started",
        RankList(missing), launch_.size, timeout.count());
    if (!last_refusal_.empty()) message += "; the last that was refused: " + last_refusal_;
    return {ErrorCode::kUnavailable, std::move(message)};
  }

  Error GiveUp() {
    Message end{.type = MessageType::kEnd, .number = static_cast<uint64_t>(EndKind::kVerdict)};
    SetStatus(*failure_, &end);
    peers_.SendToAll(EncodeMessage(end));
    peers_.AwaitClosed(steady_clock::now() + kLastWordTime);
    return *failure_;
  }

  Result<MeetingPoint> Start() {
    const Frame start =
        EncodeMessage({.type = MessageType::kStart, .text = EncodeMembers(members_)});
    MeetingPoint meeting = {.world = PlaceOf(launch_, members_), .members = members_};
    for (uint32_t rank = 1; rank < launch_.size; ++rank) {
      Connection connection = peers_.Remove(*guests_of_ranks_[rank]);
      connection.arrived().set_most_payload(kMaxPayload);
      connection.Send(start);
      meeting.connections.push_back(std::move(connection));
    }
    return meeting;
  }

  const Launch& launch_;
  const std::span<const Listener> listeners_;
  const std::chrono::milliseconds greeting_time_;
  Peers peers_;
  std::vector<Member> members_;
  std::map<uint32_t, Guest> guests_;  ///< keyed by number, in the order in which they came
  std::vector<std::optional<uint32_t>> guests_of_ranks_;
  uint32_t next_guest_ = 0;
  uint32_t joined_ = 0;
  std::string last_refusal_;
  std::optional<Error> failure_;
};

}  // namespace

Result<MeetingPoint> HostMeeting(const Launch& launch, std::span<const Listener> listeners,
                                 std::chrono::seconds timeout,
                                 std::chrono::milliseconds greeting_time) {
  PENSTOCK_ASSIGN(const UniqueFd all, WaitForAny(listeners));
  PENSTOCK_ASSIGN(Peers peers, Peers::Create(all.get()));
  return Reception(launch, listeners, std::move(peers), greeting_time).Run(timeout);
}

}  // namespace penstock::comm
