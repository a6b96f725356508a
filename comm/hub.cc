#include "comm/hub.h"

#include <fmt/format.h>

#include <utility>

namespace penstock::comm {
namespace {

/// "agrees", as messages say what a rank does in a collective call.
std::string Deed(const Message& message) {
  switch (message.type) {
    case MessageType::kAgree:
      return "agrees";
    case MessageType::kGather:
      return "gathers";
    case MessageType::kVote:
      return fmt::format("votes for step {} of session {:016x}", message.a, message.b);
    default:
      return "finishes";
  }
}

Message ReplyTo(uint64_t number, std::string text = {}) {
  return {.type = MessageType::kReply, .number = number, .text = std::move(text)};
}

}  // namespace

bool IsCall(MessageType type) {
  return type == MessageType::kAgree || type == MessageType::kGather ||
         type == MessageType::kVote || type == MessageType::kFinish;
}

Channel ChannelOf(MessageType call) {
  switch (call) {
    case MessageType::kVote:
      return Channel::kVote;
    case MessageType::kFinish:
      return Channel::kFinish;
    default:
      return Channel::kTogether;
  }
}

Hub::Hub(std::vector<Member> members) : members_(std::move(members)) {
  for (Round& round : rounds_) round.said.resize(members_.size());
}

bool Hub::has_finished(uint32_t rank) const {
  return rounds_[static_cast<size_t>(Channel::kFinish)].said[rank].has_value();
}

std::vector<Message> Hub::Receive(uint32_t rank, Message message) {
  if (ending_.has_value()) return {};
  Round& round = RoundOf(ChannelOf(message.type));
  std::string problem;
  if (!IsCall(message.type)) {
    problem = "sends what only rank 0 does";
  } else {
    problem = Difference(round, rank, message);
    if (problem.empty()) problem = Waiting(rank, message);
  }
  if (!problem.empty()) {
    ending_ = {EndKind::kVerdict, MakeError(ErrorCode::kUnavailable, "{} {}",
                                            RankName(rank, members_[rank]), problem)};
    return {};
  }
  const MessageType type = message.type;
  round.said[rank] = std::move(message);
  if (++round.ranks < members_.size()) return {};
  return Conclude(&round, type);
}

std::string Hub::Difference(const Round& round, uint32_t rank, const Message& message) const {
  if (message.number != CallNumber(ChannelOf(message.type), round.count)) {
    return fmt::format("{} in another call than the other ranks", Deed(message));
  }
  if (round.said[rank].has_value()) return "makes two calls at once";
  for (uint32_t other = 0; other < round.said.size(); ++other) {
    const std::optional<Message>& said = round.said[other];
    if (!said.has_value()) continue;
    const bool votes = message.type == MessageType::kVote;
    const bool same =
        said->type == message.type && (!votes || (said->a == message.a && said->b == message.b));
    if (same) return {};  // and so with all that came before
    return fmt::format("{}, and {} {}: the ranks do not do the same", Deed(message),
                       RankName(other, members_[other]), Deed(*said));
  }
  return {};
}

std::string Hub::Waiting(uint32_t rank, const Message& message) const {
  const bool finishes = message.type == MessageType::kFinish;
  for (uint32_t other = 0; other < members_.size(); ++other) {
    for (const Round& round : rounds_) {
      const std::optional<Message>& said = round.said[other];
      if (!said.has_value() || other == rank) continue;
      if ((said->type == MessageType::kFinish) == finishes) continue;
      return fmt::format("{}, and {} {}: the ranks do not do the same", Deed(message),
                         RankName(other, members_[other]), Deed(*said));
    }
  }
  return {};
}

std::vector<Message> Hub::Conclude(Round* round, MessageType type) {
  const uint64_t number = CallNumber(ChannelOf(type), round->count);
  std::vector<Message> replies;
  if (type == MessageType::kGather) {
    for (uint32_t rank = 0; rank < members_.size(); ++rank) {
      Message reply = ReplyTo(number, std::move(round->said[rank]->text));
      reply.b = rank;
      replies.push_back(std::move(reply));
    }
  } else if (type == MessageType::kFinish) {
    ending_ = {EndKind::kFinished, {}};
    return {};
  } else {
    if (type == MessageType::kAgree) ConcludeAgreement(*round);
    if (!ending_.has_value()) replies.push_back(ReplyTo(number));
  }
  ++round->count;
  round->ranks = 0;
  round->said.assign(members_.size(), std::nullopt);
  return replies;
}

void Hub::ConcludeAgreement(const Round& round) {
  std::optional<uint32_t> first;
  bool all_alike = true;
  for (uint32_t rank = 0; rank < members_.size(); ++rank) {
    const Message& said = *round.said[rank];
    if (said.a != 0 && !first.has_value()) first = rank;
    if (said.a != round.said[0]->a || said.text != round.said[0]->text) all_alike = false;
  }
  if (!first.has_value()) return;
  Error error = StatusOf(*round.said[*first]).error();
  if (!all_alike) {
    error.message =
        fmt::format("rank {} (host {}): {}", *first, members_[*first].host, error.message);
  }
  ending_ = {EndKind::kAgreed, std::move(error)};
}

}  // namespace penstock::comm
