#include "train/loop/rank_notes.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace penstock::train {
namespace {

/// The fields of a rank's note, by index.
enum NoteField : size_t {
  kStop,     ///< it was asked to stop
  kCommit,   ///< it wants a commit
  kCopying,  ///< it copies the newest commit, so that no other may be made
  kReadBytes,
  kWriteBytes,
  kInitBytes,
  kCommitBytes,
  kVerifyBytes,
  kEvictions,
  kDevicePeak,
  kHostPeak,
  kCommWait,  ///< seconds since it began
};
static_assert(kCommWait < zero::kStepNoteSize);

}  // namespace

zero::StepNote RankNotes::Mine(bool commit_is_due) const {
  if (alone()) return {};
  const zero::EngineCounters counters = parts_.session.counters();
  zero::StepNote note{};
  note[kStop] = parts_.stop_requested() ? 1 : 0;
  note[kCommit] = SnapshotWanted() || commit_is_due ? 1 : 0;
  note[kCopying] = CopiesNow() ? 1 : 0;
  note[kReadBytes] = static_cast<double>(counters.nvme_read_bytes);
  note[kWriteBytes] = static_cast<double>(counters.nvme_write_bytes);
  note[kInitBytes] = static_cast<double>(counters.nvme_init_bytes);
  note[kCommitBytes] = static_cast<double>(counters.nvme_commit_bytes);
  note[kVerifyBytes] = static_cast<double>(counters.nvme_verify_bytes);
  note[kEvictions] = static_cast<double>(counters.evictions);
  note[kDevicePeak] = static_cast<double>(DevicePeak().value);
  note[kHostPeak] = static_cast<double>(parts_.session.host_peak().value);
  note[kCommWait] = ToSeconds(parts_.meter.Totals().comm_wait);
  return note;
}

void RankNotes::Take(std::vector<zero::StepNote> notes) {
  if (alone()) return;
  notes_ = std::move(notes);
  copying_ = false;
  for (const zero::StepNote& note : notes_) {
    stop_requested_ = stop_requested_ || note[kStop] != 0;
    copying_ = copying_ || note[kCopying] != 0;
  }
}

Status RankNotes::Exchange(bool commit_is_due) {
  if (alone()) return {};
  PENSTOCK_ASSIGN(std::vector<zero::StepNote> notes, parts_.exchange(Mine(commit_is_due)));
  Take(std::move(notes));
  return {};
}

bool RankNotes::CommitWanted(bool commit_is_due) const {
  if (alone()) return SnapshotWanted() || commit_is_due;
  return !notes_.empty() && notes_.front()[kCommit] != 0;
}

std::vector<double> RankNotes::Waited() const {
  std::vector<double> waited;
  for (const zero::StepNote& note : notes_) waited.push_back(note[kCommWait]);
  return waited;
}

Reading RankNotes::Now() const {
  Reading reading{.time = std::chrono::steady_clock::now(),
                  .activity = parts_.meter.Totals(),
                  .counters = parts_.session.counters(),
                  .device_peak = DevicePeak(),
                  .host_peak = parts_.session.host_peak()};
  for (size_t rank = 0; rank < notes_.size(); ++rank) {
    if (rank == world_.rank) continue;
    const auto told = [&](NoteField field) { return static_cast<uint64_t>(notes_[rank][field]); };
    reading.counters.nvme_read_bytes += told(kReadBytes);
    reading.counters.nvme_write_bytes += told(kWriteBytes);
    reading.counters.nvme_init_bytes += told(kInitBytes);
    reading.counters.nvme_commit_bytes += told(kCommitBytes);
    reading.counters.nvme_verify_bytes += told(kVerifyBytes);
    reading.counters.evictions += told(kEvictions);
    reading.device_peak = std::max(reading.device_peak, Bytes{told(kDevicePeak)});
    reading.host_peak = std::max(reading.host_peak, Bytes{told(kHostPeak)});
  }
  return reading;
}

}  // namespace penstock::train
