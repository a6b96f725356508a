// Rank 0's handling of the calls of all ranks: agreement, gathering, votes, the common end.
//
// A call is complete when every rank has made it; all then get the same answer. Ranks that make
// different calls end the job: one that gathers while another agrees, votes for another commit, or
// finishes while others wait. A rank's misuse must not leave the others waiting forever.
//
// Pure: calls in, replies out. Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "comm/members.h"
#include "comm/wire.h"

namespace penstock::comm {

/// Calls of one channel are made one after the other, and numbered from 1, by every rank alike.
/// Agree and Gather share one.
enum class Channel : uint32_t { kTogether, kVote, kFinish };
inline constexpr uint32_t kChannels = 3;

/// Whether a message is a call.
bool IsCall(MessageType type);
Channel ChannelOf(MessageType call);
/// The number of a channel's call `count`, unlike those of other channels.
constexpr uint64_t CallNumber(Channel channel, uint64_t count) {
  return count * kChannels + static_cast<uint64_t>(channel);
}

/// How and why a job has ended.
struct Ending {
  EndKind kind = EndKind::kFinished;
  Status why = {};  ///< ok for kFinished alone
};

class Hub {
 public:
  explicit Hub(std::vector<Member> members);

  /// Takes a call of a rank, and returns the replies that are due now, which go to all ranks.
  std::vector<Message> Receive(uint32_t rank, Message message);
  /// How the job ends, once that is known. Nothing is received afterwards.
  const std::optional<Ending>& ending() const { return ending_; }
  /// Whether a rank waits for the common end, and is not missed if it goes.
  bool has_finished(uint32_t rank) const;

 private:
  /// The calls of one channel that wait for the rest.
  struct Round {
    uint64_t count = 1;  ///< number of this call in its channel
    std::vector<std::optional<Message>> said;
    uint32_t ranks = 0;  ///< ranks that have made it
  };

  Round& RoundOf(Channel channel) { return rounds_[static_cast<size_t>(channel)]; }
  /// What a rank does otherwise than the ranks that came before it; nothing if it does the same.
  std::string Difference(const Round& round, uint32_t rank, const Message& message) const;
  std::string Waiting(uint32_t rank, const Message& message) const;
  std::vector<Message> Conclude(Round* round, MessageType type);
  void ConcludeAgreement(const Round& round);

  std::vector<Member> members_;
  std::array<Round, kChannels> rounds_;
  std::optional<Ending> ending_;
};

}  // namespace penstock::comm
