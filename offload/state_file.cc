#include "offload/state_file.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "offload/state_names.h"
#include "offload/state_reader.h"
#include "offload/tile_spread.h"

namespace penstock::offload {
namespace {

/// All tiles that are not frozen are updated together.
Status CheckVersions(const ShardLayout& layout, const CommitRecord& commit) {
  const uint64_t version = VersionOf(layout, commit);
  for (const TileId tile : layout.Tiles()) {
    const uint64_t found = commit.tiles[Index(tile)].version;
    if (found == version || layout.frozen(tile)) continue;
    return MakeError(ErrorCode::kCorruption,
                     "the commit of step {} names version {} of tile {} and version {} of one "
                     "before it; all tiles are updated together",
                     commit.head.step, found, Index(tile), version);
  }
  return {};
}

}  // namespace

uint64_t VersionOf(const ShardLayout& layout, const CommitRecord& commit) {
  for (const TileId tile : layout.Tiles()) {
    if (!layout.frozen(tile)) return commit.tiles[Index(tile)].version;
  }
  return 0;
}

StateFile::StateFile(const Uuid& uuid, const ShardLayout& layout, const StateShape& shape)
    : uuid_(uuid),
      layout_(layout),
      shape_(shape),
      speeds_(shape.paths, 0),
      committed_slot_(layout.tiles.size(), -1) {}

StateFile::~StateFile() {
  if (created_ && !made_commit_ && !simulated_ && !paths_.empty()) {
    static_cast<void>(RemoveCallerFiles(commits().file_path()));
  }
  // Path 0 last: after a kill in between it says that there was no commit.
  while (!paths_.empty()) paths_.pop_back();
}

Result<std::unique_ptr<StateFile>> StateFile::Create(const ShardLayout& layout,
                                                     const StateFileOptions& options,
                                                     std::span<aio::Engine* const> engines) {
  PENSTOCK_CHECK(!engines.empty() && engines.size() == options.folders.size());
  Uuid uuid = options.uuid.value_or(Uuid{});
  if (!options.uuid) {
    PENSTOCK_ASSIGN(uuid, RandomUuid());
  }
  const StateShape shape = {.slots = options.durable ? 2 : 1,
                            .paths = static_cast<uint32_t>(options.folders.size())};
  std::unique_ptr<StateFile> state(new StateFile(uuid, layout, shape));
  state->engine_ = engines.front();
  state->simulated_ = options.simulated;
  state->created_ = true;
  PENSTOCK_TRY(state->CreatePaths(options, engines));
  PENSTOCK_TRY(state->ChooseShares(options));
  // Path 0 comes last: if its header is valid, all are.
  for (size_t i = state->paths_.size(); i-- > 0;) {
    StateHeader header = PlanState(uuid, layout, state->shape_, static_cast<uint32_t>(i));
    PENSTOCK_TRY(state->paths_[i]->WriteHead(header));
    state->tiles_ = std::move(header.tiles);
  }
  return state;
}

Result<OpenedState> StateFile::Open(const std::vector<std::string>& paths,
                                    const ShardLayout& layout, bool require_direct,
                                    std::span<aio::Engine* const> engines,
                                    const std::optional<CommitName>& at) {
  PENSTOCK_CHECK(!engines.empty() && engines.size() == paths.size());
  std::vector<std::unique_ptr<StatePath>> opened;
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::filesystem::path path = paths[i];
    PENSTOCK_ASSIGN(std::unique_ptr<StatePath> one,
                    StatePath::Open({.folder = path.parent_path().string(),
                                     .name = path.filename().string(),
                                     .require_direct = require_direct},
                                    *engines[i]));
    opened.push_back(std::move(one));
  }
  PENSTOCK_ASSIGN(const std::unique_ptr<StateReader> reader,
                  StateReader::Open(paths, StateLock::kHeld));
  PENSTOCK_TRY(CheckCallerPlaces(paths.front()));
  if (at) PENSTOCK_TRY(reader->Use(*at));
  const StateHeader& header = reader->header();
  if (header.layout != layout) {
    return MakeError(
        ErrorCode::kInvalidArgument,
        "state file {} holds other tensors, tiles or optimizer states than this training has",
        paths.front());
  }
  PENSTOCK_TRY(CheckVersions(layout, reader->commit()));
  const StateShape shape = {.slots = header.geometry.slots,
                            .guards = header.geometry.guards,
                            .commit_json = header.geometry.commit_json,
                            .paths = header.paths};
  OpenedState state{.file = std::unique_ptr<StateFile>(new StateFile(header.uuid, layout, shape)),
                    .commit = reader->commit()};
  for (size_t i = 0; i < paths.size(); ++i) {
    PENSTOCK_ASSIGN(std::string notice, opened[i]->Adopt(reader->geometry(i), reader->Head(i)));
    if (!notice.empty()) state.notices.push_back(std::move(notice));
  }
  state.file->engine_ = engines.front();
  state.file->paths_ = std::move(opened);
  state.file->tiles_ = header.tiles;
  PENSTOCK_TRY(state.file->EraseNewerThan(state.commit.sequence, reader->commits()));
  PENSTOCK_ASSIGN(
      const DurableCommit commit,
      state.file->DurableCommitOf(state.commit, EncodeCommit({header.uuid, layout}, state.commit)));
  state.file->Protect(state.commit, commit);
  // Space that this commit freed is not overwritten before the commit is durable.
  PENSTOCK_TRY(state.file->SyncAll());
  return state;
}

Status StateFile::CreatePaths(const StateFileOptions& options,
                              std::span<aio::Engine* const> engines) {
  for (size_t i = 0; i < engines.size(); ++i) {
    PENSTOCK_ASSIGN(std::unique_ptr<StatePath> path,
                    StatePath::Create({.folder = options.folders[i],
                                       .name = StateFileName(uuid_, layout_.rank, i),
                                       .require_direct = options.require_direct,
                                       .simulated = options.simulated},
                                      *engines[i]));
    paths_.push_back(std::move(path));
    PENSTOCK_TRY(paths_.back()->MarkUnfinished(uuid_));
  }
  return {};
}

Status StateFile::ChooseShares(const StateFileOptions& options) {
  if (paths_.size() == 1) return {};
  // Simulated drives are made of the same memory.
  if (options.simulated) {
    shape_.path_of_tile = SpreadTiles(layout_, std::vector<double>(paths_.size(), 1));
    return {};
  }
  // No more than an equal share, so that measuring needs no space that the state does not.
  const Bytes all = layout_.weight_bytes() + layout_.record_bytes();
  const Bytes share = AlignUp(Bytes{all.value / paths_.size()} + 1_B, kStateAlignment);
  for (size_t i = 0; i < paths_.size(); ++i) {
    PENSTOCK_ASSIGN(speeds_[i],
                    paths_[i]->Measure(options.probe, std::min(share, aio::kProbeBytes)));
  }
  shape_.path_of_tile = SpreadTiles(layout_, speeds_);
  return {};
}

std::vector<PathShare> StateFile::Shares() const {
  std::vector<PathShare> shares;
  const std::vector<double> parts = PathShares(layout_, tiles_, paths_.size());
  for (size_t i = 0; i < paths_.size(); ++i) {
    shares.push_back(
        {.path = paths_[i]->file_path(), .bytes_a_second = speeds_[i], .share = parts[i]});
  }
  return shares;
}

void StateFile::TraceTo(Trace& trace) {
  for (const auto& path : paths_) {
    rows_.emplace_back(trace, std::filesystem::path(path->file_path()).parent_path().string());
  }
}

/// Adds a span from now to its completion.
void StateFile::AddSpan(PartRequest& request) {
  PathRows& rows = rows_[tiles_[Index(request.tile)].path];
  const bool read = request.operation == aio::Operation::kRead;
  const std::string name = fmt::format("{} {}", layout_.module(request.tile).name,
                                       request.part == Part::kWeight ? "weight" : "states");
  request.on_complete = [rows = read ? &rows.reads : &rows.writes, name, tile = Index(request.tile),
                         version = request.version, bytes = request.buffer.size(),
                         begin = Trace::Clock::now(),
                         then = std::move(request.on_complete)](const Status& status) {
    rows->Add(name, begin, Trace::Clock::now(),
              {{"tile", tile}, {"version", version}, {"bytes", bytes}});
    if (then) then(status);
  };
}

aio::Ticket StateFile::Submit(PartRequest request) {
  if (request.operation == aio::Operation::kWrite) {
    PENSTOCK_CHECK(may_write_tiles_, "a tile is written after its commit was taken back");
    written_since_ = true;
  }
  if (!rows_.empty()) AddSpan(request);
  StatePath& path = PathOf(request.tile);
  const FileOffset offset =
      PartOffset(path.geometry(), tiles_[Index(request.tile)], request.part, request.slot) +
      request.from;
  if (request.past_cache) path.LeaveCache(offset, Bytes{request.buffer.size()});
  return path.Submit({.operation = request.operation,
                      .offset = offset,
                      .buffer = request.buffer,
                      .priority = request.priority,
                      .on_complete = std::move(request.on_complete),
                      .about = [this, part = request.part, tile = request.tile] {
                        return fmt::format("{} of tile {}, module {}",
                                           part == Part::kWeight ? "weight" : "record", Index(tile),
                                           layout_.module(tile).name);
                      }});
}

void StateFile::Cancel() {
  for (const auto& path : paths_) path->Cancel();
}

std::string StateFile::Where(Part part, TileId tile, int slot) const {
  const StatePath& path = PathOf(tile);
  return fmt::format("{} at offset {}", path.file_path(),
                     PartOffset(path.geometry(), tiles_[Index(tile)], part, slot).value);
}

int StateFile::WriteSlot(TileId tile) const {
  MutexLock lock(mutex_);
  const int committed = committed_slot_[Index(tile)];
  if (slots() == 1 || committed < 0 || layout_.frozen(tile)) return 0;
  return 1 - committed;
}

Status StateFile::PrepareWrites() {
  if (!failure_.ok() || slots() == 2 || !commit_stands_) return failure_;
  const StateGeometry& plan = commits().geometry();
  for (FileOffset place : plan.commit_offset) {
    PENSTOCK_TRY(commits().Write(place, std::vector<std::byte>(plan.commit_bytes.value),
                                 "record of a commit that ends"));
  }
  PENSTOCK_TRY(commits().Sync());
  commit_stands_ = false;
  return {};
}

Status StateFile::WriteCallerFile(std::string_view content) {
  PENSTOCK_TRY(failure_);
  if (simulated_) return {};
  PENSTOCK_TRY(commits().CheckPlace());
  return offload::WriteCallerFile(CallerFilePath(commits().file_path(), sequence_ + 1), content,
                                  *engine_);
}

Status StateFile::Commit(CommitRecord record, const std::function<Status()>& still_good,
                         const std::function<Status(const CommitRecord&)>& verify) {
  if (failure_.ok()) failure_ = WriteCommit(std::move(record), still_good, verify);
  return failure_;
}

/// No slot of the commit before was written since that was made.
Error StateFile::TakeBackDamaged(uint64_t step, uint64_t sequence, const Error& why) {
  if (slots() == 1) {
    return {why.code, fmt::format("the commit of step {} is damaged: {}; with one slot "
                                  "(penstock.durable is false) there is no commit before it",
                                  step, why.message)};
  }
  const Status erased = EraseCommit(sequence);
  const std::string before =
      commit_stands_ ? fmt::format(
                           "nothing was written over the commit of step {}, and --resume "
                           "continues from it",
                           newest_step_)
                     : "there is no commit before it";
  const std::string back = erased.ok() ? "was taken back"
                                       : fmt::format("is damaged and could not be taken back ({})",
                                                     erased.error().message);
  return {why.code,
          fmt::format("the commit of step {} {}: {}; {}", step, back, why.message, before)};
}

Status StateFile::EraseCommit(uint64_t sequence) {
  const FileOffset place = commits().geometry().commit_offset[sequence % 2];
  const std::vector<std::byte> zeros(commits().geometry().commit_bytes.value);
  PENSTOCK_TRY(commits().Write(place, zeros, "record of a commit that is taken back"));
  PENSTOCK_TRY(commits().Sync());
  PENSTOCK_TRY(commits().CheckWritten(
      {.offset = place, .size = Bytes{zeros.size()}, .checksum = Checksum(zeros)},
      "place of a commit that was taken back"));
  RemoveUnnamedCallerFile(sequence);
  return {};
}

/// One that stays is unused, and only takes space.
void StateFile::RemoveUnnamedCallerFile(uint64_t sequence) const {
  if (!simulated_) static_cast<void>(RemoveCallerFile(commits().file_path(), sequence));
}

Status StateFile::CheckCallerFile(const DurableCommit& commit) const {
  if (!commit.caller || simulated_) return {};
  return VisitCallerFile(CallerFilePath(commits().file_path(), commit.sequence), *commit.caller);
}

Status StateFile::EraseNewerThan(uint64_t sequence, const std::vector<HeldCommit>& held) {
  for (const HeldCommit& commit : held) {
    if (commit.sequence <= sequence) continue;
    PENSTOCK_TRY(EraseCommit(commit.sequence));
  }
  return {};
}

/// The commit before goes first if it is not valid: it must never be the newest.
Status StateFile::EraseNewest(bool before_stands) {
  if (!before_stands) PENSTOCK_TRY(EraseCommit(newest_.sequence + 1));
  return EraseCommit(newest_.sequence);
}

Status StateFile::TakeBack() {
  PENSTOCK_TRY(failure_);
  if (!made_commit_ || !commit_stands_) {
    return MakeError(ErrorCode::kNotFound, "state file {} holds no commit of this run to take back",
                     commits().file_path());
  }
  may_write_tiles_ = false;
  const bool before_stands = before_.has_value() && !written_since_;
  failure_ = EraseNewest(before_stands);
  PENSTOCK_TRY(failure_);
  failure_ =
      MakeError(ErrorCode::kUnavailable,
                "the newest commit of state file {} was taken back: nothing is written to it "
                "any more; start again from the commit before it",
                commits().file_path());
  commit_stands_ = before_stands;
  if (before_stands) newest_ = *before_;
  return {};
}

Status StateFile::SyncAll() {
  std::vector<aio::Ticket> syncs;
  for (const auto& path : paths_) {
    syncs.push_back(path->Submit({.operation = aio::Operation::kSync}));
  }
  return aio::WaitAll(syncs);
}

Status StateFile::WriteCommit(CommitRecord record, const std::function<Status()>& still_good,
                              const std::function<Status(const CommitRecord&)>& verify) {
  PENSTOCK_CHECK(record.tiles.size() == layout_.tiles.size());
  const Status versions = CheckVersions(layout_, record);
  PENSTOCK_CHECK(versions.ok(), "{}", versions.error().message);
  const Bytes room = commits().geometry().commit_json;
  if (record.json.size() > room.value) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the run's description has {} bytes, a commit holds {}; shorten the config's "
                     "optimizer and scheduler",
                     record.json.size(), room.value);
  }
  PENSTOCK_TRY(SyncAll());
  for (const auto& path : paths_) PENSTOCK_TRY(path->CheckPlace());
  PENSTOCK_TRY(still_good());
  record.sequence = sequence_ + 1;
  std::vector<std::byte> place = EncodeCommit({uuid_, layout_}, record);
  PENSTOCK_ASSIGN(const DurableCommit made, DurableCommitOf(record, place));
  place.resize(commits().geometry().commit_bytes.value);
  PENSTOCK_TRY(commits().Write(made.record.offset, place,
                               fmt::format("record of the commit of step {}", record.head.step)));
  PENSTOCK_TRY(commits().Sync());
  PENSTOCK_TRY(CheckHeads());
  PENSTOCK_TRY(commits().CheckWritten(made.record, "newest commit"));
  Status whole = CheckCallerFile(made);
  if (whole.ok() && verify) whole = verify(record);
  if (!whole.ok() && !IsReadDamage(whole.error())) {
    return MakeError(whole.error().code,
                     "the commit of step {} was written and could not be verified: {}; the next "
                     "--resume verifies it",
                     record.head.step, whole.error().message);
  }
  if (!whole.ok()) return TakeBackDamaged(record.head.step, record.sequence, whole.error());
  Protect(record, made);
  if (!made.caller) RemoveUnnamedCallerFile(record.sequence);
  made_commit_ = true;
  for (const auto& path : paths_) path->Keep();
  return {};
}

Status StateFile::CheckHeads() const {
  for (const auto& path : paths_) {
    PENSTOCK_ASSIGN(const std::string notice, path->CheckHeads());
    if (!notice.empty() && warn_) warn_(notice);
  }
  return {};
}

Status StateFile::CheckCommit() const {
  if (!commit_stands_) {
    return MakeError(ErrorCode::kNotFound, "state file {} holds no commit", commits().file_path());
  }
  PENSTOCK_TRY(CheckHeads());
  PENSTOCK_TRY(commits().CheckWritten(newest_.record, "newest commit"));
  return CheckCallerFile(newest_);
}

/// `bytes`: the record, encoded.
Result<StateFile::DurableCommit> StateFile::DurableCommitOf(
    const CommitRecord& record, std::span<const std::byte> bytes) const {
  DurableCommit commit{.record = {.offset = commits().geometry().commit_offset[record.sequence % 2],
                                  .size = Bytes{bytes.size()},
                                  .checksum = Checksum(bytes)},
                       .sequence = record.sequence,
                       .caller = {}};
  PENSTOCK_ASSIGN(commit.caller, CallerFileIn(record.json));
  return commit;
}

void StateFile::Protect(const CommitRecord& record, const DurableCommit& made) {
  before_.reset();
  if (commit_stands_ && slots() == 2) before_ = newest_;
  written_since_ = false;
  sequence_ = record.sequence;
  commit_stands_ = true;
  newest_ = made;
  newest_step_ = record.head.step;
  MutexLock lock(mutex_);
  for (size_t i = 0; i < record.tiles.size(); ++i) {
    committed_slot_[i] = static_cast<int>(record.tiles[i].slot);
  }
}

}  // namespace penstock::offload
