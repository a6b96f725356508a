#include "offload/tile_reads.h"

#include <utility>

#include "base/check.h"

namespace penstock::offload {

Status PartTickets::Wait() const {
  Status first;
  for (const aio::Ticket* ticket : {&weight, &record}) {
    const Status outcome = ticket->valid() ? ticket->Wait() : Status();
    if (first.ok()) first = outcome;
  }
  return first;
}

Result<Engines> CreateEngines(size_t drives, const aio::EngineOptions& options) {
  Engines engines;
  for (size_t i = 0; i < drives; ++i) {
    PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> engine, aio::CreateEngine(options));
    engines.push_back(std::move(engine));
  }
  return engines;
}

Result<std::unique_ptr<TileReads>> TileReads::Open(const StateReader& state,
                                                   const Engines& engines) {
  const size_t paths = state.header().paths;
  PENSTOCK_CHECK(engines.size() >= paths);
  std::unique_ptr<TileReads> reads(new TileReads(state, engines));
  for (size_t path = 0; path < paths; ++path) {
    PENSTOCK_ASSIGN(aio::File file,
                    aio::File::Reopen(state.fd(path), state.path(path), /*writable=*/false));
    reads->files_.push_back(std::move(file));
  }
  return reads;
}

TileReads::~TileReads() {
  for (const auto& engine : engines_) engine->Drain();
}

aio::Ticket TileReads::Submit(Part part, TileId tile, std::span<std::byte> buffer) const {
  const size_t path = state_.header().tiles[Index(tile)].path;
  return engines_[path]->Submit({.operation = aio::Operation::kRead,
                                 .file = &files_[path],
                                 .offset = state_.OffsetOf(part, tile),
                                 .buffer = buffer,
                                 .priority = aio::Priority::kStateRead});
}

Status TileReads::Read(TileId tile, const TileParts& parts) const {
  PartTickets reads;
  reads.weight = Submit(Part::kWeight, tile, parts.weight);
  if (!parts.record.empty()) reads.record = Submit(Part::kRecord, tile, parts.record);
  PENSTOCK_TRY(reads.Wait());
  PENSTOCK_TRY(state_.VerifyPart(Part::kWeight, tile, parts.weight));
  return state_.VerifyPart(Part::kRecord, tile, parts.record);
}

}  // namespace penstock::offload
