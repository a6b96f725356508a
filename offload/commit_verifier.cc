#include "offload/commit_verifier.h"

#include <sys/mman.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/for_each_index.h"
#include "base/mutex.h"

namespace penstock::offload {
namespace {

/// A reader has two pieces in flight or more, so that it hashes one while others are read.
constexpr uint64_t kPieces = 8;
constexpr uint64_t kPiecesOfAReader = 2;
constexpr Bytes kMaxPiece = 512_KiB;

Bytes PieceOf(const ShardLayout& layout) {
  const uint64_t largest = (layout.largest_weight() + layout.largest_record()).value;
  const uint64_t share = largest / kPieces / kStateAlignment.value * kStateAlignment.value;
  return Bytes{std::clamp(share, kStateAlignment.value, kMaxPiece.value)};
}

}  // namespace

/// What the readers share: the parts of a commit, each of which one of them takes.
struct CommitVerifier::Work {
  struct TakenPart {
    TileId tile{};
    Part part{};
    size_t number = 0;  ///< number in the order of tiles
  };

  std::span<const CommittedTile> tiles;
  const Selection& selection;
  std::atomic<size_t> next = 0;  ///< part
  std::atomic<bool> failed = false;
  Mutex mutex;
  std::optional<std::pair<size_t, Error>> first GUARDED_BY(mutex) = {};  ///< failure, by part

  /// Returns the next part to read; none after a failure. Parts before it were all taken.
  std::optional<TakenPart> Take(const ShardLayout& layout) {
    while (!failed) {
      const size_t number = next++;
      if (number >= 2 * tiles.size()) break;
      const TakenPart taken{.tile = TileId{static_cast<uint32_t>(number / 2)},
                            .part = number % 2 == 0 ? Part::kWeight : Part::kRecord,
                            .number = number};
      const bool is_empty = taken.part == Part::kRecord && layout.RecordBytes(taken.tile) == 0_B;
      if (!is_empty && selection(taken.tile, taken.part)) return taken;
    }
    return std::nullopt;
  }
  void Fail(size_t number, const Error& error) EXCLUDES(mutex) {
    failed = true;
    MutexLock lock(mutex);
    if (!first || number < first->first) first.emplace(number, error);
  }
};

/// One thread's share of the room, through which it reads one part after the other.
class CommitVerifier::Reader {
 public:
  Reader(CommitVerifier& verifier, Work& work, std::span<std::byte> room)
      : verifier_(verifier), work_(work), piece_(PieceOf(verifier.layout_)) {
    for (; room.size() >= piece_.value; room = room.subspan(piece_.value)) {
      free_.push_back(room.first(piece_.value));
    }
  }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;
  ~Reader() {
    for (const Read& read : reads_) static_cast<void>(read.ticket.Wait());
  }

  void Run() {
    while (true) {
      while (!free_.empty() && SubmitNext()) continue;
      if (reads_.empty()) return;
      const Read read = std::move(reads_.front());
      reads_.pop_front();
      const Status done = read.ticket.Wait();
      if (!done.ok()) return work_.Fail(read.of.number, done.error());
      if (!Hash(read)) return;
      if (verifier_.progressed_) verifier_.progressed_();
      free_.push_back(read.whole);
    }
  }

 private:
  struct Read {
    Work::TakenPart of;
    uint64_t from = 0;  ///< within the part
    std::span<std::byte> whole;
    std::span<const std::byte> bytes;
    bool last = false;  ///< whether it is the last of the part
    aio::Ticket ticket;
  };

  const ShardLayout& layout() const { return verifier_.layout_; }
  const CommittedTile& Committed(TileId tile) const { return work_.tiles[Index(tile)]; }
  uint64_t SizeOf(const Work::TakenPart& of) const {
    return (of.part == Part::kWeight ? layout().WeightBytes(of.tile)
                                     : layout().RecordBytes(of.tile))
        .value;
  }

  /// False: no part is left.
  bool SubmitNext() {
    if (!taken_) {
      taken_ = work_.Take(layout());
      from_ = 0;
    }
    if (!taken_) return false;
    const std::span<std::byte> whole = free_.back();
    free_.pop_back();
    const uint64_t left = SizeOf(*taken_) - from_;
    const std::span<std::byte> bytes = whole.first(std::min<uint64_t>(left, whole.size()));
    verifier_.submitted_ += bytes.size();
    reads_.push_back(
        {.of = *taken_,
         .from = from_,
         .whole = whole,
         .bytes = bytes,
         .last = bytes.size() == left,
         .ticket = verifier_.file_.Submit({.part = taken_->part,
                                           .tile = taken_->tile,
                                           .slot = static_cast<int>(Committed(taken_->tile).slot),
                                           .operation = aio::Operation::kRead,
                                           .buffer = bytes,
                                           .priority = aio::Priority::kWriteBack,
                                           .version = Committed(taken_->tile).version,
                                           .from = Bytes{from_},
                                           .past_cache = true})});
    from_ += bytes.size();
    if (reads_.back().last) taken_.reset();
    return true;
  }

  /// False: the part is damaged.
  bool Hash(const Read& read) {
    const auto& [tile, part, number] = read.of;
    const CommittedTile& committed = Committed(tile);
    if (read.from == 0) {
      hasher_.Reset(TileSeed(verifier_.file_.uuid(), layout(), tile, committed.version), part,
                    layout().planes(tile), layout().tile(tile).elements);
    }
    hasher_.Add(read.bytes);
    if (!read.last) return true;
    const uint64_t expected =
        part == Part::kWeight ? committed.checksums.weight : committed.checksums.record;
    const uint64_t found = hasher_.Finish();
    if (found == expected) return true;
    Error damaged =
        DamagedPart(layout(), part, tile, committed.version,
                    verifier_.file_.Where(part, tile, static_cast<int>(committed.slot)));
    damaged.message += fmt::format(" (checksum {:016x}, expected {:016x})", found, expected);
    work_.Fail(number, damaged);
    return false;
  }

  CommitVerifier& verifier_;
  Work& work_;
  const Bytes piece_;
  std::vector<std::span<std::byte>> free_;
  std::deque<Read> reads_;  ///< reads in their order
  std::optional<Work::TakenPart> taken_;
  uint64_t from_ = 0;  ///< next position of that part to read
  PartHasher hasher_;
};

Bytes CommitVerifier::Room(const ShardLayout& layout) {
  return layout.tiles.empty() ? 0_B : PieceOf(layout) * kPieces;
}

Result<std::unique_ptr<CommitVerifier>> CommitVerifier::Create(const ShardLayout& layout,
                                                               StateFile& file, int threads,
                                                               std::function<void()> progressed) {
  PENSTOCK_CHECK(threads >= 1);
  Mapping room;
  if (!layout.tiles.empty()) {
    PENSTOCK_ASSIGN(room, Mapping::Create(Room(layout)));
    // A child of a fork has no use for it, and would have pages copied that a drive writes into.
    static_cast<void>(::madvise(room.data(), room.size().value, MADV_DONTFORK));
  }
  return std::unique_ptr<CommitVerifier>(
      new CommitVerifier(layout, file, threads, std::move(progressed), std::move(room)));
}

CommitVerifier::CommitVerifier(const ShardLayout& layout, StateFile& file, int threads,
                               std::function<void()> progressed, Mapping room)
    : layout_(layout),
      file_(file),
      threads_(threads),
      progressed_(std::move(progressed)),
      room_(std::move(room)) {}

Status CommitVerifier::Verify(std::span<const CommittedTile> tiles, const Selection& selection) {
  PENSTOCK_CHECK(tiles.size() == layout_.tiles.size());
  if (tiles.empty()) return {};
  Work work{.tiles = tiles, .selection = selection};
  const size_t readers =
      std::min<size_t>(static_cast<size_t>(threads_), kPieces / kPiecesOfAReader);
  const Bytes share = PieceOf(layout_) * (kPieces / readers);
  PENSTOCK_TRY(ForEachIndex(readers, static_cast<int>(readers), [&](size_t i) {
    Reader(*this, work, {room_.data() + (share * i).value, share.value}).Run();
    return Status();
  }));
  MutexLock lock(work.mutex);
  return work.first ? Status(work.first->second) : Status();
}

}  // namespace penstock::offload
