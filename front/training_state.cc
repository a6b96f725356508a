// Training: the state between updates, committed and read.
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "front/training.h"
#include "offload/caller_file.h"
#include "offload/state_copy.h"
#include "offload/whole_state.h"
#include "zero/states/tile_planes.h"

namespace penstock::front {
namespace {

using offload::ModuleId;
using offload::TileId;

/// The space for a commit's text besides the state file's own part.
constexpr size_t kMaxCommitText = 63 << 10;

/// A reader would look for a file that is not there.
Status CheckNamesNoFile(const std::string& json) {
  const auto file = offload::CallerFileIn(json);
  if (file.ok() && !*file) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the text of the commit has the key \"{}\", which is penstock's; name it "
                   "otherwise",
                   offload::kCallerFileKey);
}

}  // namespace

Status Training::Drain() {
  PENSTOCK_TRY(CheckReady());
  return Keep(states().Drain());
}

Status Training::BeginCommit(std::string json, std::string caller_file) {
  PENSTOCK_TRY(CheckReady());
  if (json.size() > kMaxCommitText) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the text of the commit has {} bytes, and at most {} fit; keep less in it",
                     json.size(), kMaxCommitText);
  }
  if (caller_file.empty()) PENSTOCK_TRY(CheckNamesNoFile(json));
  PENSTOCK_TRY(FinishCommit());
  if (answers_ != nullptr) answers_->Release();
  const auto before_commit = [this]() -> Status {
    if (log_ != nullptr) log_->Sync();
    return {};
  };
  return session_->BeginCommit(std::move(json), before_commit, std::move(caller_file));
}

Status Training::FinishCommit() {
  PENSTOCK_TRY(life().failure());
  return EndCommit();
}

Status Training::EndCommit() {
  if (!life().commits().pending()) return {};
  Status made = session_->FinishCommit([this] { return CheckWatched(); });
  if (log_ != nullptr) log_->AfterCommit(*session_, made);
  return made;
}

/// Works also after a failure, as no step has to follow.
Result<std::optional<uint64_t>> Training::TakeBackDoubtfulCommit() {
  PENSTOCK_TRY(EndCommit());
  if (answers_ != nullptr) answers_->Release();
  PENSTOCK_ASSIGN(const std::optional<uint64_t> taken, session_->TakeBackDoubtfulCommit());
  if (taken && log_ != nullptr) log_->AfterTakeBack(*session_);
  return taken;
}

void Training::AnswerRequests(const train::RunInfo& info) {
  if (answers_ == nullptr) return;
  answers_->Answer(info, *session_);
  if (log_ == nullptr) return;
  for (const std::string& line : answers_->TakeNotices()) log_->Say(line);
}

Status Training::Watch(const std::string& folder, const std::vector<std::string>& names) {
  PENSTOCK_TRY(life().failure());
  PENSTOCK_ASSIGN(const Folder opened, Folder::Open(folder));
  PENSTOCK_ASSIGN(watch_, FolderWatch::Begin(opened, names));
  gone_ = nullptr;
  return {};
}

/// A training ends if its folder is gone, but not if a file system does not answer for a while.
Status Training::CheckWatched() const {
  const Status whole = watch_ ? watch_->Check() : Status();
  if (whole.ok() || whole.error().code != ErrorCode::kNotFound) return {};
  if (gone_) gone_();
  return MakeError(ErrorCode::kNotFound, "{}; step {} is committed in {}", whole.error().message,
                   counts().step, fmt::join(states().state_paths(), ", "));
}

Result<offload::WholeState> Training::OpenCommit() {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(FinishCommit());
  if (answers_ != nullptr) answers_->Release();
  const std::vector<std::string>& from = states().state_paths();
  const std::optional<uint64_t> committed = life().commits().newest();
  if (!committed) {
    return MakeError(ErrorCode::kNotFound, "nothing was committed yet in {}; commit first",
                     from.front());
  }
  // With one slot, updates write over what was committed.
  if (!plan_.engine.config.durable && *committed != counts().step) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the commit of step {} is gone, because \"durable\" is false and step {} has "
                     "ended; copy a commit before the next step ends",
                     *committed, counts().step);
  }
  return offload::WholeState::Open({from}, offload::StateLock::kHeld);
}

Status Training::CopyCommit(const std::vector<std::string>& paths) {
  PENSTOCK_ASSIGN(const offload::WholeState state, OpenCommit());
  const size_t files = states().state_paths().size();
  if (paths.size() != files) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} paths were given for a state of {} files; give one for each", paths.size(),
                     files);
  }
  return offload::CopyState(state, {paths}, [] { return false; });
}

Status Training::LoadTile(TileId tile) {
  if (read_ && read_->tile == tile) return {};
  read_.reset();
  return Keep(states().ReadTile(
      tile, [&](std::span<const std::byte> weight, std::span<const std::byte> record) -> Status {
        read_.emplace(ReadTile{.tile = tile,
                               .weight = {weight.begin(), weight.end()},
                               .record = {record.begin(), record.end()}});
        return {};
      }));
}

Status Training::Read(uint32_t unit, uint32_t tensor, zero::StateKind kind, uint64_t begin,
                      std::span<float> values) {
  PENSTOCK_TRY(CheckReady());
  PENSTOCK_TRY(CheckTensor(unit, tensor));
  const ModuleId module{unit};
  const offload::TensorLayout& of = plan_.layout.module(module).tensors[tensor];
  if (begin > of.elements || values.size() > of.elements - begin) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "elements {} to {} of tensor {} were asked for, and it has {}", begin,
                     begin + values.size(), of.name, of.elements);
  }
  const std::vector<zero::StateKind> kept = zero::StatesOf(plan_.layout.model.group(of.group));
  if (std::ranges::find(kept, kind) == kept.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} has no such state: its rule or its group does not keep it",
                     of.name);
  }
  uint64_t at = of.offset + begin;
  while (!values.empty()) {
    const TileId tile = plan_.layout.TileAt(module, at);
    const offload::TileLayout& place = plan_.layout.tile(tile);
    const uint64_t inside = at - place.begin;
    const uint64_t count = std::min<uint64_t>(values.size(), place.elements - inside);
    PENSTOCK_TRY(LoadTile(tile));
    zero::LoadState(kind, plan_.layout, tile, read_->weight.data(), read_->record.data(), inside,
                    values.first(count));
    values = values.subspan(count);
    at += count;
  }
  return {};
}

}  // namespace penstock::front
