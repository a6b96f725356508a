// How fast does a whole state move: into a copy, past checksums, into host memory, off a device,
// into other tiles? Prints GB/s of the commit's bytes, up to the time when all is durable.
//
//   state_moves make FOLDER [TILES]    makes a state of 1 Mi elements a tile, bf16 (default: 128)
//   state_moves copy FOLDER            a snapshot by copy: read, verified, written, synchronised
//   state_moves verify FOLDER THREADS  what a resume reads first; 1: tile after tile, through the
//                                      page cache; else as `inspect` does
//   state_moves adopt FOLDER THREADS   reads and verifies what lives in host memory
//   state_moves commit FOLDER THREADS  states of a device (the CPU's memory) are written and hashed
//   state_moves move FOLDER THREADS    fills a state of 640 Ki elements a tile, on the same drive
//
// The state is read from the drive: before each operation its pages leave the page cache. Memory is
// written before the time begins. bench/state_moves_ratio.py runs two of them in turn; dd and
// bench/aio_run measure the drive.
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/for_each_index.h"
#include "device/device.h"
#include "offload/slab.h"
#include "offload/state_copy.h"
#include "offload/state_file.h"
#include "offload/state_names.h"
#include "offload/tile_store.h"
#include "offload/whole_state.h"
#include "zero/states/committed_state.h"
#include "zero/states/tile_fill.h"
#include "zero/states/tile_writer.h"

namespace penstock::zero {
namespace {

using offload::ShardLayout;
using offload::TileId;

constexpr uint64_t kTileElements = 1 << 20;
constexpr uint64_t kOtherTileElements = 640 << 10;
constexpr offload::Uuid kUuid = {0x73, 0x74, 0x61, 0x74, 0x65};
constexpr offload::Uuid kOtherUuid = {0x6d, 0x6f, 0x76, 0x65, 0x64};
constexpr size_t kBlocks = 8;  // blocks for tiles in flight

ShardLayout LayoutOf(uint32_t tiles, uint64_t tile_elements) {
  offload::ModelLayout model{
      .groups = offload::DecayGroups(offload::MakePlanes(DType::kBFloat16)),
      .modules = {offload::MakeModule("m", {{.name = "w", .shape = {tiles, kTileElements}}})},
      .parameters = tiles * kTileElements};
  return offload::MakeShard(std::move(model), tile_elements);
}

offload::Schedule InOrder(const ShardLayout& layout) {
  offload::Schedule schedule;
  for (const offload::ModuleId module :
       offload::Ids<offload::ModuleId>(layout.model.modules.size())) {
    const uint32_t at = static_cast<uint32_t>(schedule.uses.size());
    schedule.uses.push_back({.module = module, .slot = at, .fetch = true});
    schedule.slot_bytes.push_back(layout.SlotBytes(module));
    schedule.first_use.push_back(at);
    schedule.update_at.push_back(layout.model.modules.size() + at);
  }
  for (const TileId tile : layout.Tiles()) schedule.update_order.push_back(tile);
  schedule.load_order = schedule.update_order;
  return schedule;
}

std::vector<std::string> PathsIn(const std::string& folder, const offload::Uuid& uuid = kUuid) {
  return offload::StatePathsIn({folder}, uuid);
}

Bytes BytesOf(const ShardLayout& layout) { return layout.weight_bytes() + layout.record_bytes(); }

double Rate(const ShardLayout& layout, std::chrono::steady_clock::time_point start) {
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  return static_cast<double>(BytesOf(layout).value) / seconds.count() / 1e9;
}

/// The pages of a file that are durable leave the page cache.
void LeaveCache(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  static_cast<void>(::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED));
  ::close(fd);
}

/// A state file, and a store of its tiles in blocks.
struct Store {
  std::unique_ptr<aio::Engine> engine;
  std::unique_ptr<offload::StateFile> file;
  offload::CommitRecord commit;  // commit of an opened state
  std::unique_ptr<offload::Schedule> schedule;
  std::unique_ptr<offload::Slab> slab;
  std::unique_ptr<offload::TileStore> tiles;
};

Status AddStore(const ShardLayout& layout, Tier home, Store& store) {
  const bool host = home == Tier::kHost;
  const Bytes block = layout.largest_weight() + layout.largest_record();
  const Bytes memory = (host ? BytesOf(layout) : Bytes{}) + block * (kBlocks + 1);
  PENSTOCK_ASSIGN(offload::Slab slab, offload::Slab::Create(memory));
  std::memset(slab.bytes().data(), 0, slab.bytes().size());
  store.slab = std::make_unique<offload::Slab>(std::move(slab));
  store.schedule = std::make_unique<offload::Schedule>(InOrder(layout));
  store.tiles =
      std::make_unique<offload::TileStore>(layout, *store.schedule,
                                           offload::TileStoreOptions{.weight_home = home,
                                                                     .record_home = home,
                                                                     .weight_blocks = kBlocks,
                                                                     .record_blocks = kBlocks},
                                           *store.slab, *store.file);
  return {};
}

Result<Store> CreateStore(const ShardLayout& layout, const std::string& folder,
                          const offload::Uuid& uuid) {
  Store store;
  PENSTOCK_ASSIGN(store.engine, aio::CreateEngine({}));
  aio::Engine* const engines[] = {store.engine.get()};
  PENSTOCK_ASSIGN(store.file,
                  offload::StateFile::Create(layout, {.folders = {folder}, .uuid = uuid}, engines));
  PENSTOCK_TRY(AddStore(layout, Tier::kNvme, store));
  return store;
}

Result<Store> OpenFile(const ShardLayout& layout, const std::string& folder) {
  Store store;
  PENSTOCK_ASSIGN(store.engine, aio::CreateEngine({}));
  aio::Engine* const engines[] = {store.engine.get()};
  PENSTOCK_ASSIGN(offload::OpenedState opened,
                  offload::StateFile::Open(PathsIn(folder), layout, true, engines));
  store.file = std::move(opened.file);
  store.commit = std::move(opened.commit);
  return store;
}

/// Fills the tiles, on this many threads, and commits them.
Result<double> Fill(const ShardLayout& layout, Store& store, const TileFill& fill, int threads) {
  const auto start = std::chrono::steady_clock::now();
  PENSTOCK_TRY(ForEachIndex(layout.tiles.size(), threads, [&](size_t i) {
    const TileId tile{static_cast<uint32_t>(i)};
    return store.tiles->FillTile(
        tile, [&](auto weight, auto record) { return fill(tile, weight, record); });
  }));
  PENSTOCK_TRY(store.tiles->Drain());
  PENSTOCK_TRY(store.tiles->Commit({.head = {.step = 1}, .json = "{}"}, [] { return Status(); }));
  return Rate(layout, start);
}

Result<double> Make(const std::string& folder, uint32_t tiles) {
  const ShardLayout layout = LayoutOf(tiles, kTileElements);
  PENSTOCK_ASSIGN(Store store, CreateStore(layout, folder, kUuid));
  const TensorSource source = [](ModuleId, size_t, uint64_t begin, std::span<float> values) {
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = 1e-3F * static_cast<float>((begin + i) * 2654435761U % 1000003);
    }
    return Status();
  };
  return Fill(layout, store, FillFromTensors(layout, source, 0.5F), 2);
}

Result<double> Copy(const std::string& folder) {
  PENSTOCK_ASSIGN(const offload::WholeState state, offload::WholeState::Open({PathsIn(folder)}));
  const std::string copy = folder + "/copy.state";
  const auto start = std::chrono::steady_clock::now();
  PENSTOCK_TRY(offload::CopyState(state, {{copy}}, [] { return false; }));
  const double rate = Rate(state.rank(0).layout(), start);
  std::filesystem::remove(copy);
  return rate;
}

Result<double> Verify(const std::string& folder, int threads) {
  PENSTOCK_ASSIGN(const offload::WholeState state, offload::WholeState::Open({PathsIn(folder)}));
  const ShardLayout& layout = state.rank(0).layout();
  const auto start = std::chrono::steady_clock::now();
  if (threads > 1) {
    PENSTOCK_ASSIGN(const std::vector<std::string> damages, state.DamagedTiles());
    if (!damages.empty()) return MakeError(ErrorCode::kCorruption, "{}", damages.front());
    return Rate(layout, start);
  }
  offload::StateReader::TileBytes bytes;
  for (const TileId tile : layout.Tiles()) PENSTOCK_TRY(state.rank(0).ReadTile(tile, bytes));
  return Rate(layout, start);
}

/// Returns the layout of the state in the folder, which is closed again.
Result<ShardLayout> LayoutIn(const std::string& folder) {
  PENSTOCK_ASSIGN(const auto reader, offload::StateReader::Open(PathsIn(folder)));
  return reader->layout();
}

Result<double> Adopt(const std::string& folder, int threads) {
  PENSTOCK_ASSIGN(const ShardLayout layout, LayoutIn(folder));
  PENSTOCK_ASSIGN(Store store, OpenFile(layout, folder));
  PENSTOCK_TRY(AddStore(layout, Tier::kHost, store));
  const auto start = std::chrono::steady_clock::now();
  PENSTOCK_TRY(store.tiles->Adopt(store.commit, threads));
  return Rate(layout, start);
}

/// Everything is new: as after an update.
Result<double> Commit(const std::string& folder, int threads) {
  PENSTOCK_ASSIGN(const ShardLayout layout, LayoutIn(folder));
  PENSTOCK_ASSIGN(const Store store, OpenFile(layout, folder));
  PENSTOCK_ASSIGN(const auto device, device::CreateCpuDevice({.memory = BytesOf(layout) + 1_MiB}));
  PENSTOCK_ASSIGN(const device::DeviceBuffer states, device->Allocate(BytesOf(layout), "states"));
  std::memset(states.data(), 1, BytesOf(layout).value);
  PENSTOCK_ASSIGN(const auto stream, device->CreateStream("copies"));
  const Bytes block = layout.largest_weight() + layout.largest_record();
  PENSTOCK_ASSIGN(offload::Slab slab, offload::Slab::Create(block * (kBlocks + 1)));
  std::memset(slab.bytes().data(), 0, slab.bytes().size());
  std::vector<TileBlock> blocks(kBlocks);
  for (TileBlock& of : blocks) {
    of = {.weight = slab.Cut(layout.largest_weight()), .record = slab.Cut(layout.largest_record())};
  }
  offload::CommitRecord record{.head = {.step = store.commit.head.step + 1}, .json = "{}"};
  record.tiles.resize(layout.tiles.size());
  const uint64_t version = offload::VersionOf(layout, store.commit) + 1;

  const auto start = std::chrono::steady_clock::now();
  PENSTOCK_TRY(store.file->PrepareWrites());
  TileWriter writer(layout, *store.file, *stream, blocks, threads);
  const std::byte* at = states.data();
  for (const TileId tile : layout.Tiles()) {
    const std::byte* const weight = at;
    const std::byte* const states_of = weight + layout.WeightBytes(tile).value;
    at = states_of + layout.RecordBytes(tile).value;
    PENSTOCK_TRY(writer.Write({.tile = tile,
                               .version = version,
                               .weight = weight,
                               .record = states_of,
                               .committed = &record.tiles[offload::Index(tile)]}));
  }
  PENSTOCK_TRY(writer.Finish());
  PENSTOCK_TRY(store.file->Commit(std::move(record)));
  return Rate(layout, start);
}

Result<double> Move(const std::string& folder, int threads) {
  PENSTOCK_ASSIGN(const auto from, CommittedState::Open(PathsIn(folder)));
  const auto tiles = static_cast<uint32_t>(from->shard(0).tiles.size());
  const ShardLayout layout = LayoutOf(tiles, kOtherTileElements);
  PENSTOCK_ASSIGN(Store store, CreateStore(layout, folder, kOtherUuid));
  PENSTOCK_ASSIGN(const TileFill fill, FillFromState(layout, *from));
  Result<double> rate = Fill(layout, store, fill, threads);
  std::filesystem::remove(PathsIn(folder, kOtherUuid).front());
  return rate;
}

Result<double> Run(const std::string& operation, const std::string& folder, int number) {
  if (operation == "make") return Make(folder, static_cast<uint32_t>(number == 0 ? 128 : number));
  LeaveCache(PathsIn(folder).front());
  if (operation == "copy") return Copy(folder);
  if (operation == "verify") return Verify(folder, number);
  if (operation == "move") return Move(folder, number);
  if (operation == "adopt") return Adopt(folder, number);
  if (operation == "commit") return Commit(folder, number);
  return MakeError(ErrorCode::kInvalidArgument, "{} is no operation", operation);
}

}  // namespace
}  // namespace penstock::zero

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: state_moves make|copy|verify|adopt|commit|move FOLDER [NUMBER]\n");
    return 2;
  }
  const int number = argc > 3 ? std::atoi(argv[3]) : 0;
  const auto rate = penstock::zero::Run(argv[1], argv[2], number);
  if (!rate.ok()) {
    fmt::print(stderr, "{}\n", rate.error().message);
    return 1;
  }
  fmt::print("{:.3f}\n", *rate);
  return 0;
}
