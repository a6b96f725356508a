#include "zero/states/optimizer_driver.h"

#include <pthread.h>

#include <algorithm>
#include <optional>

#include "base/denormals.h"
#include "base/thread.h"
#include "kernels/state/block_sums.h"
#include "zero/states/tile_planes.h"

namespace penstock::zero {
namespace {

using offload::ReadWeight;
using offload::TileHasher;
using offload::TileId;
using offload::TileUpdate;

}  // namespace

Result<std::unique_ptr<OptimizerDriver>> OptimizerDriver::Create(
    const offload::ShardLayout& layout, std::vector<std::span<std::byte>> gradients,
    offload::TileStore& store, GradientNorm& norm, TensorFigures& figures, int threads,
    ActivityMeter* meter, TrustBlocks* trust) {
  std::unique_ptr<OptimizerDriver> driver(
      new OptimizerDriver(layout, std::move(gradients), store, norm, figures,
                          static_cast<size_t>(threads), meter, trust));
  for (int i = 0; i < threads; ++i) PENSTOCK_TRY(driver->AddThread(i, threads));
  return driver;
}

OptimizerDriver::OptimizerDriver(const offload::ShardLayout& layout,
                                 std::vector<std::span<std::byte>> gradients,
                                 offload::TileStore& store, GradientNorm& norm,
                                 TensorFigures& figures, size_t threads, ActivityMeter* meter,
                                 TrustBlocks* trust)
    : layout_(layout),
      gradients_(std::move(gradients)),
      store_(store),
      norm_(norm),
      figures_(figures),
      thread_count_(threads),
      meter_(meter),
      trust_(trust) {
  store_.OnWork([this](size_t tiles) { Wake(tiles); });
}

Status OptimizerDriver::AddThread(int index, int count) {
  Trace* const trace = TraceOf(meter_);
  const Trace::Row row = trace == nullptr ? Trace::Row()
                                          : trace->AddRow(TraceGroup::kOptimizer,
                                                          fmt::format("optimizer {}", index + 1));
  PENSTOCK_ASSIGN(std::thread thread,
                  StartThread(fmt::format("the optimizer, number {} of {}", index + 1, count),
                              [this, row]() { Run(row); }));
  pthread_setname_np(thread.native_handle(), fmt::format("optimizer-{}", index).c_str());
  threads_.push_back(std::move(thread));
  return {};
}

OptimizerDriver::~OptimizerDriver() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
    work_.NotifyAll();
  }
  for (std::thread& thread : threads_) thread.join();
  store_.OnWork(nullptr);
}

void OptimizerDriver::Wake(size_t tiles) {
  MutexLock lock(mutex_);
  ++wakes_;
  NotifyFor(tiles);
}

void OptimizerDriver::NotifyFor(size_t tiles) {
  for (size_t i = 0; i < std::min(tiles, thread_count_); ++i) work_.NotifyOne();
}

void OptimizerDriver::GradientsArrived(offload::IdRange<TileId> tiles) {
  MutexLock lock(mutex_);
  for (const TileId tile : tiles) arrived_.push_back(tile);
  NotifyFor(tiles.size());
}

void OptimizerDriver::AllowUpdates() {
  {
    MutexLock lock(mutex_);
    allowed_ = true;
  }
  BeginSummed();
}

void OptimizerDriver::PrepareUpdates() {
  {
    MutexLock lock(mutex_);
    prepared_ = true;
  }
  BeginSummed();
}

void OptimizerDriver::BeginSummed() {
  std::vector<TileId> summed;
  {
    MutexLock lock(mutex_);
    if (!allowed_ || !prepared_) return;
    summed.swap(summed_);
    updating_ = updating_ || !summed.empty();
  }
  for (const TileId tile : summed) store_.BeginUpdate(tile);
}

bool OptimizerDriver::StopUpdates() {
  MutexLock lock(mutex_);
  allowed_ = false;
  prepared_ = false;
  return updating_;
}

bool OptimizerDriver::updates_allowed() const {
  MutexLock lock(mutex_);
  return allowed_;
}

void OptimizerDriver::EndStep() {
  MutexLock lock(mutex_);
  allowed_ = false;
  prepared_ = false;
  updating_ = false;
  summed_.clear();
}

void OptimizerDriver::SetScalars(uint64_t version, const UpdateScalars& scalars) {
  MutexLock lock(mutex_);
  scalars_[version % 2] = {version, scalars};
}

UpdateScalars OptimizerDriver::ScalarsFor(const TileUpdate& update) {
  MutexLock lock(mutex_);
  const VersionScalars& of = scalars_[update.version % 2];
  PENSTOCK_CHECK(update.version == of.version, "scalars of version {} for version {}", of.version,
                 update.version);
  return of.scalars;
}

Status OptimizerDriver::CheckWeights() {
  MutexLock lock(mutex_);
  if (not_finite_) return NotFinite(layout_, *not_finite_);
  return {};
}

void OptimizerDriver::Run(Trace::Row row) {
  PENSTOCK_CHECK(KeepsDenormals(), "optimizer: a library has denormals flushed to zero");
  TileHasher before;
  TileHasher after;
  BlockRoom room;
  while (true) {
    uint64_t wakes = 0;
    {
      MutexLock lock(mutex_);
      if (stop_) return;
      wakes = wakes_;
    }
    // First what the device waits for, then what the norm does.
    if (const auto read = store_.TryTakeRead()) {
      CheckRead(row, *read);
    } else if (const auto arrived = TakeArrived()) {
      const auto begin = Trace::Clock::now();
      SumBlocks(*arrived, room);
      AddSpan(row, "norm", *arrived, 0, begin);
    } else if (auto update = store_.TryTakeUpdate()) {
      UpdateTile(row, *update, before, after);
    } else {
      MutexLock lock(mutex_);
      while (!stop_ && arrived_.empty() && wakes == wakes_) work_.Wait(mutex_);
    }
  }
}

std::optional<TileId> OptimizerDriver::TakeArrived() {
  MutexLock lock(mutex_);
  if (arrived_.empty()) return std::nullopt;
  const TileId tile = arrived_.front();
  arrived_.pop_front();
  return tile;
}

void OptimizerDriver::CheckRead(Trace::Row row, const ReadWeight& read) {
  const auto begin = Trace::Clock::now();
  uint64_t found = 0;
  {
    const ActivityScope working(meter_, Lane::kOptimizer);
    found = offload::WeightChecksum(read.seed, read.weight);
  }
  AddSpan(row, "checksum", read.tile, read.version, begin);
  store_.FinishRead(read, found);
}

void OptimizerDriver::UpdateTile(Trace::Row row, TileUpdate& update, TileHasher& before,
                                 TileHasher& after) {
  const auto begin = Trace::Clock::now();
  bool intact = false;
  {
    const ActivityScope working(meter_, Lane::kOptimizer);
    const ActivityScope updating(meter_, Lane::kUpdate);
    intact = update.first_pass ? SumForTrust(update, before) : Update(update, before, after);
  }
  AddSpan(row, update.first_pass ? "first pass" : "update", update.tile, update.version + 1, begin);
  // After the scope: what waits for the last update must not compute while one is still counted.
  if (!intact) {
    store_.FailDamaged(update, before.Finish());
  } else if (update.first_pass) {
    store_.FinishFirstPass(update);
  } else {
    store_.FinishUpdate(update, after.Finish());
  }
}

void OptimizerDriver::AddSpan(Trace::Row row, const char* what, TileId tile, uint64_t version,
                              Trace::Clock::time_point begin) {
  Trace* trace = TraceOf(meter_);
  if (trace == nullptr) return;
  const std::string name = fmt::format("{} {}", what, layout_.module(tile).name);
  trace->Add(row, name, begin, Trace::Clock::now(),
             {{"tile", offload::Index(tile)}, {"version", version}});
}

void OptimizerDriver::SumBlocks(TileId tile, BlockRoom& room) {
  bool finite = false;
  {
    const ActivityScope working(meter_, Lane::kOptimizer);
    const std::byte* const gradient = gradients_[offload::Index(tile)].data();
    const uint64_t elements = layout_.tile(tile).elements;
    room.largest.resize(elements / kBlockElements);
    room.nonfinite.resize(room.largest.size());
    const kernels::BlockFigures blocks{
        .sums = norm_.Sums(tile), .largest = room.largest, .nonfinite = room.nonfinite};
    finite = kernels::BlockSumsAndFigures(gradient, layout_.GradientDType(tile), elements, blocks);
    figures_.TakeGradient(tile, gradient, blocks);
  }
  bool begin = false;
  {
    MutexLock lock(mutex_);
    begin = finite && allowed_ && prepared_;
    updating_ = updating_ || begin;
    if (finite && !begin) summed_.push_back(tile);
  }
  if (begin) store_.BeginUpdate(tile);
  // Last: a thread that waits for all gradients may end the step then.
  norm_.Arrived(finite);
}

}  // namespace penstock::zero
