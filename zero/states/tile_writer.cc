#include "zero/states/tile_writer.h"

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>

#include "base/for_each_index.h"
#include "offload/checksum.h"

namespace penstock::zero {

using offload::Part;

TileWriter::~TileWriter() {
  static_cast<void>(stream_.Synchronize());
  for (const auto& tickets : writes_) static_cast<void>(aio::WaitAll(tickets));
}

Status TileWriter::Write(const Source& source) {
  const size_t block = next_;
  next_ = (next_ + 1) % blocks_.size();
  PENSTOCK_TRY(aio::WaitAll(std::exchange(writes_[block], {})));
  const TileBlock to = blocks_[block].Of(layout_, source.tile);
  stream_.CopyToHost(to.weight.data(), source.weight, Bytes{to.weight.size()});
  stream_.CopyToHost(to.record.data(), source.record, Bytes{to.record.size()});
  copies_.push_back({.source = source, .block = block, .ended = stream_.Record()});
  // Half of the blocks are copied into, and the others written from; a single one is both.
  if (copies_.size() == blocks_.size())
    PENSTOCK_TRY(WriteOldest(std::max<size_t>(1, copies_.size() / 2)));
  return {};
}

/// If a copy has failed, so has the stream, which Finish tells: what is written then is in slots
/// that no commit names.
Status TileWriter::WriteOldest(size_t count) {
  const auto end = copies_.begin() + static_cast<std::ptrdiff_t>(count);
  const std::vector<Copy> copied(std::make_move_iterator(copies_.begin()),
                                 std::make_move_iterator(end));
  copies_.erase(copies_.begin(), end);
  for (const Copy& copy : copied) {
    copy.ended.Wait();
    Submit(copy);
  }
  // Beside the writes, and the copies of the blocks behind these.
  return ForEachIndex(count, threads_, [&](size_t i) {
    const Source& source = copied[i].source;
    const TileBlock from = blocks_[copied[i].block].Of(layout_, source.tile);
    source.committed->checksums = offload::ChecksumsOf(file_.uuid(), layout_, source.tile,
                                                       source.version, from.weight, from.record);
    return Status();
  });
}

void TileWriter::Submit(const Copy& copy) {
  const Source& source = copy.source;
  const TileBlock from = blocks_[copy.block].Of(layout_, source.tile);
  const int slot = file_.WriteSlot(source.tile);
  const auto submit = [&](Part part, std::span<std::byte> buffer) {
    if (buffer.empty()) return;
    writes_[copy.block].push_back(file_.Submit({.part = part,
                                                .tile = source.tile,
                                                .slot = slot,
                                                .operation = aio::Operation::kWrite,
                                                .buffer = buffer,
                                                .priority = aio::Priority::kWriteBack}));
  };
  submit(Part::kWeight, from.weight);
  submit(Part::kRecord, from.record);
  source.committed->version = source.version;
  source.committed->slot = static_cast<uint32_t>(slot);
}

Status TileWriter::Finish() {
  if (!copies_.empty()) PENSTOCK_TRY(WriteOldest(copies_.size()));
  PENSTOCK_TRY(stream_.Synchronize());
  for (auto& tickets : writes_) PENSTOCK_TRY(aio::WaitAll(std::exchange(tickets, {})));
  return {};
}

}  // namespace penstock::zero
