#include "comm/watch.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "comm/wire.h"

namespace penstock::comm {
namespace {

/// A tick that comes so long after the one before is late.
constexpr std::chrono::seconds kLate{3};

/// The position of an operation in a run; nullopt is before all.
using Position = std::optional<std::pair<uint64_t, uint32_t>>;

Position PositionOf(const std::optional<Operation>& operation) {
  if (!operation.has_value()) return {};
  return std::pair(operation->step, operation->index);
}

/// Whether a rank has begun an operation and not ended it.
bool IsInside(const Progress& progress) {
  return PositionOf(progress.ended) < PositionOf(progress.begun);
}

}  // namespace

std::string OperationName(const Operation& operation) {
  const std::string where =
      operation.step == 0 ? "before the first step" : fmt::format("of step {}", operation.step);
  return fmt::format("{} (operation {} {})", operation.what, operation.index, where);
}

std::string EncodeProgress(const Progress& progress) {
  TextWriter writer;
  writer.Number(progress.pieces);
  for (const auto* operation : {&progress.enqueued, &progress.begun, &progress.ended}) {
    writer.Number(operation->has_value() ? 1 : 0);
    if (!operation->has_value()) continue;
    writer.Number((*operation)->step);
    writer.Number((*operation)->index);
    writer.Text(OneLine((*operation)->what, kMaxDoing));
  }
  writer.Text(OneLine(progress.doing, kMaxDoing));
  return writer.Take();
}

Result<Progress> DecodeProgress(std::string_view text) {
  TextReader reader(text);
  Progress progress;
  progress.pieces = reader.Number();
  for (auto* operation : {&progress.enqueued, &progress.begun, &progress.ended}) {
    if (reader.Number() == 0) continue;
    *operation = Operation{.step = reader.Number(),
                           .index = static_cast<uint32_t>(reader.Number()),
                           .what = OneLine(reader.Text(), kMaxDoing)};
  }
  progress.doing = OneLine(reader.Text(), kMaxDoing);
  if (reader.complete()) return progress;
  return Error{ErrorCode::kCorruption, "what arrived is no heartbeat"};
}

Watch::Watch(std::vector<Member> members, Limits limits, SteadyTime now)
    : members_(std::move(members)), limits_(limits), seen_(members_.size()), last_tick_(now) {}

void Watch::Alive(uint32_t rank) {
  seen_[rank].expected = true;
  seen_[rank].silent = 0;
}

void Watch::Heard(uint32_t rank, Progress progress) {
  Seen& seen = seen_[rank];
  if (progress.begun != seen.progress.begun || !IsInside(progress)) seen.inside = 0;
  if (progress.pieces != seen.progress.pieces) {
    for (Seen& waiting : seen_) waiting.inside = 0;
    if (commit_.has_value()) commit_->age = 0;
  }
  seen.progress = std::move(progress);
}

void Watch::Closed(uint32_t rank, bool finished) {
  seen_[rank].expected = false;
  if (finished || seen_[rank].has_told || ended_.has_value()) return;
  ended_ = Error{ErrorCode::kUnavailable, EndedLine(rank)};
}

void Watch::Voted(uint32_t rank, uint64_t step) {
  if (!commit_.has_value()) commit_ = {.step = step, .made = std::vector<bool>(seen_.size())};
  commit_->made[rank] = true;
  if (std::ranges::find(commit_->made, false) == commit_->made.end()) commit_.reset();
}

void Watch::Failed(uint32_t rank, const Error& why, SteadyTime now) {
  seen_[rank].has_told = true;
  if (failure_.has_value()) return;
  failure_ =
      Error{why.code, fmt::format("rank {} (host {}): {}", rank, members_[rank].host, why.message)};
  failure_settled_ = now + kFailureSettles;
}

std::optional<Error> Watch::Judge(SteadyTime now) {
  if (ended_.has_value()) return ended_;
  if (failure_.has_value() && now >= failure_settled_) return failure_;
  if (now - last_tick_ < kTick) return {};
  return Tick(now);
}

SteadyTime Watch::due() const {
  const SteadyTime tick = last_tick_ + kTick;
  return failure_.has_value() ? std::min(failure_settled_, tick) : tick;
}

std::optional<Error> Watch::Tick(SteadyTime now) {
  const bool late = now - last_tick_ >= kLate;
  const bool judges = !late || was_late_;
  last_tick_ = now;
  was_late_ = late;
  for (Seen& seen : seen_) {
    if (seen.expected) ++seen.silent;
    if (IsInside(seen.progress)) ++seen.inside;
  }
  if (commit_.has_value()) ++commit_->age;
  if (!judges) return {};
  for (uint32_t rank = 0; rank < seen_.size(); ++rank) {
    if (seen_[rank].silent <= static_cast<uint64_t>(limits_.heartbeat / kTick)) continue;
    return MakeError(ErrorCode::kUnavailable, "{} has not answered for {} s", Name(rank),
                     limits_.heartbeat.count());
  }
  std::optional<Error> stuck = StuckOperation();
  return stuck.has_value() ? stuck : StuckCommit();
}

std::string Watch::EndedLine(uint32_t rank) const {
  const Progress& progress = seen_[rank].progress;
  std::string line = Name(rank) + " ended";
  const Position last = std::max(PositionOf(progress.enqueued), PositionOf(progress.begun));
  if (last.has_value()) {
    line += last->first == 0 ? " before the first step" : fmt::format(" in step {}", last->first);
  }
  if (!progress.doing.empty()) line += " while it " + progress.doing;
  return line;
}

std::string Watch::Table() const {
  std::string table;
  for (uint32_t rank = 0; rank < seen_.size(); ++rank) {
    const Progress& progress = seen_[rank].progress;
    table += Name(rank);
    if (progress.begun.has_value()) {
      table += fmt::format("; {} {}", IsInside(progress) ? "in" : "after",
                           OperationName(*progress.begun));
    }
    if (!progress.doing.empty()) table += "; " + progress.doing;
    table += "\n";
  }
  return table;
}

std::optional<Error> Watch::StuckOperation() const {
  if (!limits_.operation.has_value()) return {};
  const auto limit = static_cast<uint64_t>(*limits_.operation / kTick);
  const auto is_stuck = [limit](const Seen& seen) { return seen.inside > limit; };
  if (std::none_of(seen_.begin(), seen_.end(), is_stuck)) return {};
  // The lowest of the ranks that are furthest, whose operation the others should be in.
  const auto is_behind = [](const Seen& a, const Seen& b) {
    return PositionOf(a.progress.begun) < PositionOf(b.progress.begun);
  };
  const auto front = static_cast<uint32_t>(std::max_element(seen_.begin(), seen_.end(), is_behind) -
                                           seen_.begin());
  const Operation& operation = *seen_[front].progress.begun;
  std::vector<uint32_t> elsewhere;
  std::vector<uint32_t> inside;
  for (uint32_t rank = 0; rank < seen_.size(); ++rank) {
    if (seen_[rank].progress.begun != operation) elsewhere.push_back(rank);
    if (IsInside(seen_[rank].progress)) inside.push_back(rank);
  }
  const int64_t seconds = limits_.operation->count();
  if (elsewhere.empty()) {
    const std::string where =
        inside.size() == seen_.size() ? std::string() : " on " + RankList(inside);
    return MakeError(ErrorCode::kUnavailable,
                     "{}: all ranks arrived, and it has not ended{} within {} s: the network or "
                     "the driver hangs",
                     OperationName(operation), where, seconds);
  }
  const uint32_t first = elsewhere.front();
  const Progress& progress = seen_[first].progress;
  std::string line;
  if (IsInside(progress)) {
    line =
        fmt::format("{} is in {} and {} in {}, for {} s", Name(first),
                    OperationName(*progress.begun), Name(front), OperationName(operation), seconds);
  } else {
    line = fmt::format("{}: {} did not arrive within {} s", OperationName(operation), Name(first),
                       seconds);
  }
  return Missing(std::move(line), elsewhere);
}

std::optional<Error> Watch::StuckCommit() const {
  if (!limits_.operation.has_value() || !commit_.has_value()) return {};
  if (commit_->age <= static_cast<uint64_t>(*limits_.operation / kTick)) return {};
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < seen_.size(); ++rank) {
    if (!commit_->made[rank]) missing.push_back(rank);
  }
  return Missing(fmt::format("the commit of step {}: {} has not made its part within {} s",
                             commit_->step, Name(missing.front()), limits_.operation->count()),
                 missing);
}

Error Watch::Missing(std::string line, const std::vector<uint32_t>& ranks) const {
  const uint32_t first = ranks.front();
  const std::string& doing = seen_[first].progress.doing;
  if (!doing.empty()) line += fmt::format("; rank {} {}", first, doing);
  if (ranks.size() > 1) line += "; missing are " + RankList(ranks);
  return Error{ErrorCode::kUnavailable, std::move(line)};
}

}  // namespace penstock::comm
