// How fast do weights on nvme reach the device (read, hash, copy) with one optimizer thread, and
// with two?
//
//   weight_reads [PAIRS] [TILES] [dma]
//
// A tile store over a simulated drive in memory without a limit of speed, whose four threads copy
// what is read. The main thread pins tile after tile and copies each into a buffer larger than the
// caches, as the thread that feeds a device does; the optimizer threads only compare checksums.
// Both numbers of threads take turns. Memory is written before the first turn. The ceiling beside
// it is the checksum alone, by one thread and by two, over as many bytes. Seven cores are busy
// where nothing waits: with fewer the ratio says how many there are.
//
// With `dma` the drive and the device copy without a processor, as real ones do: all tiles hold the
// same bytes, so a read that moves none leaves the right ones. Then only checksums take time, and
// two cores show what a second thread gives.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "aio/aio.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "offload/tile_store.h"
#include "tests/aio/wrapped_engine.h"

namespace penstock::offload {
namespace {

constexpr uint64_t kTileElements = 1 << 20;
constexpr size_t kBlocks = 24;

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Optimizer threads that compare what was read.
class Team {
 public:
  Team(TileStore& store, int threads) : store_(store) {
    store_.OnWork([this](size_t) {
      const std::lock_guard lock(mutex_);
      ++wakes_;
      work_.notify_all();
    });
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { Run(); });
  }
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;
  ~Team() {
    store_.OnWork(nullptr);
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
      work_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Run() {
    uint64_t seen = 0;
    while (true) {
      while (const auto read = store_.TryTakeRead()) {
        store_.FinishRead(*read, WeightChecksum(read->seed, read->weight));
      }
      std::unique_lock lock(mutex_);
      work_.wait(lock, [&] { return stop_ || wakes_ != seen; });
      if (stop_) return;
      seen = wakes_;
    }
  }

  TileStore& store_;
  std::mutex mutex_;
  std::condition_variable work_;
  uint64_t wakes_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// Completes reads without moving a byte, as fast as the engine below completes a sync.
class DmaEngine : public aio::WrappedEngine {
 public:
  using aio::WrappedEngine::WrappedEngine;
  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kRead) {
      request.operation = aio::Operation::kSync;
      request.buffer = {};
    }
    return aio::WrappedEngine::Submit(std::move(request));
  }
};

/// Frozen weights, a module a tile, used in their order.
ShardLayout Weights(uint32_t tiles) {
  ModelLayout model{
      .groups = {{.name = "all", .planes = MakeFrozenPlanes(DType::kBFloat16), .frozen = true}}};
  for (uint32_t i = 0; i < tiles; ++i) {
    const std::string name = std::to_string(i);
    model.modules.push_back(MakeModule(name, {{.name = name + ".w", .shape = {kTileElements}}}));
  }
  return MakeShard(std::move(model), kTileElements);
}

Schedule InOrder(const ShardLayout& layout) {
  Schedule schedule;
  for (uint32_t i = 0; i < layout.model.modules.size(); ++i) {
    schedule.uses.push_back({.module = ModuleId{i}, .slot = i, .fetch = true});
    schedule.slot_bytes.push_back(layout.SlotBytes(ModuleId{i}));
    schedule.first_use.push_back(i);
    schedule.update_at.push_back(layout.model.modules.size() + i);
  }
  return schedule;
}

int Main(int pairs, uint32_t tiles, bool dma) {
  const ShardLayout layout = Weights(tiles);
  const Schedule schedule = InOrder(layout);
  auto created = aio::CreateEngine({.thread_count = 4, .simulate = aio::SimulatedDrive{}});
  if (!created.ok()) return 1;
  std::unique_ptr<aio::Engine> engine = *std::move(created);
  if (dma) engine = std::make_unique<DmaEngine>(std::move(engine));
  aio::Engine* const engines[] = {engine.get()};
  auto file = StateFile::Create(
      layout, {.folders = {std::filesystem::temp_directory_path()}, .simulated = true}, engines);
  if (!file.ok()) return 1;
  Slab slab = Slab::Create(layout.largest_weight() * (kBlocks + 1)).value();
  TileStore store(layout, schedule, {.record_home = Tier::kHost, .weight_blocks = kBlocks}, slab,
                  **file);
  for (const TileId tile : layout.Tiles()) {
    const auto fill = [&](std::span<std::byte> weight, std::span<std::byte>) {
      std::ranges::fill(weight, static_cast<std::byte>(dma ? 1 : Index(tile)));
      return Status();
    };
    if (!store.FillTile(tile, fill).ok()) return 1;
  }
  if (!store.Drain().ok()) return 1;

  const size_t size = layout.weight_bytes().value;
  std::vector<std::byte> device(size);
  const auto hash = [&](size_t threads) {
    return static_cast<double>(size) / 1e9 / Seconds([&] {
             std::vector<std::jthread> team;
             for (size_t i = 0; i < threads; ++i) {
               const std::span<const std::byte> part(device.data() + i * (size / threads),
                                                     size / threads);
               team.emplace_back([part] { static_cast<void>(WeightChecksum(1, part)); });
             }
           });
  };
  std::vector<double> ceilings;
  for (int pair = 0; pair < pairs; ++pair) ceilings.push_back(hash(2) / hash(1));
  std::ranges::sort(ceilings);
  fmt::print("checksum alone: one thread {:.2f} GB/s, two have {:.2f} times as much (median)\n",
             hash(1), ceilings[ceilings.size() / 2]);
  uint64_t now = 0;
  const auto rate = [&](int threads) {
    const Team team(store, threads);
    const double seconds = Seconds([&] {
      for (size_t i = 0; i < tiles; ++i) {
        store.SetTime(now++);
        const auto pinned = store.PinWeights(layout.Tiles().Part(i, 1), 0_B);
        if (!pinned.ok()) std::abort();
        const std::span<const std::byte> weight = pinned->weights().front();
        if (dma) continue;
        std::memcpy(device.data() + i * weight.size(), weight.data(), weight.size());
      }
    });
    return static_cast<double>(size) / seconds / 1e9;
  };
  rate(1);  // discards what the filling left in memory
  std::vector<double> ratios;
  for (int pair = 0; pair < pairs; ++pair) {
    const bool one_first = pair % 2 == 0;
    const double first = rate(one_first ? 1 : 2);
    const double second = rate(one_first ? 2 : 1);
    const double one = one_first ? first : second;
    const double two = one_first ? second : first;
    ratios.push_back(two / one);
    fmt::print("pair {}: one thread {:.2f} GB/s, two {:.2f} GB/s, ratio {:.2f}\n", pair + 1, one,
               two, ratios.back());
  }
  std::ranges::sort(ratios);
  fmt::print("median ratio {:.2f} with {} hardware threads\n", ratios[ratios.size() / 2],
             std::thread::hardware_concurrency());
  return 0;
}

}  // namespace
}  // namespace penstock::offload

int main(int argc, char** argv) {
  const int pairs = argc > 1 ? std::max(1, std::atoi(argv[1])) : 5;
  const int tiles = argc > 2 ? std::max(64, std::atoi(argv[2])) : 256;
  const bool dma = argc > 3 && std::string_view(argv[3]) == "dma";
  return penstock::offload::Main(pairs, static_cast<uint32_t>(tiles), dma);
}
