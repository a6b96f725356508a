// State files on drives that are watched, for tests.
#pragma once

#include "offload/state_file.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>

#include "base/mapping.h"
#include "base/mutex.h"
#include "offload/state_reader.h"
#include "tests/aio/wrapped_engine.h"
#include "tests/offload/support.h"

namespace penstock::offload {

/// Notes where in a file each write begins.
class WritesEngine : public aio::WrappedEngine {
 public:
  using WrappedEngine::WrappedEngine;
  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) {
      MutexLock lock(mutex_);
      writes_.push_back(request.offset);
    }
    return WrappedEngine::Submit(std::move(request));
  }
  std::vector<FileOffset> writes() {
    MutexLock lock(mutex_);
    return writes_;
  }

 private:
  Mutex mutex_;
  std::vector<FileOffset> writes_ GUARDED_BY(mutex_);
};

/// Keeps a copy of the drives as they are before each write.
class CopyingEngine : public aio::WrappedEngine {
 public:
  CopyingEngine(std::unique_ptr<aio::Engine> base, std::function<void()> copy)
      : WrappedEngine(std::move(base)), copy_(std::move(copy)) {}
  aio::Ticket Submit(aio::Request request) override {
    if (request.operation == aio::Operation::kWrite) copy_();
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  std::function<void()> copy_;
};

class StateFileTest : public FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const char* name : {"drive0", "drive1", "drive2"}) {
      std::filesystem::create_directory(folder_ / name);
    }
  }

  /// `faults` are those of the last path's drive.
  Result<std::unique_ptr<StateFile>> TryCreate(bool durable, size_t paths,
                                               const std::optional<aio::FaultPlan>& faults = {}) {
    StateFileOptions options{.durable = durable};
    std::vector<aio::Engine*> engines;
    for (size_t i = 0; i < paths; ++i) {
      options.folders.push_back(Drive(i));
      aio::EngineOptions engine{.kind = aio::EngineKind::kThreads};
      if (i + 1 == paths) engine.faults = faults;
      engines_.push_back(std::move(aio::CreateEngine(engine)).value());
      engines.push_back(engines_.back().get());
    }
    options.probe = [this](aio::Engine& engine, const aio::File&, Bytes) -> Result<double> {
      for (size_t i = 0; i < engines_.size(); ++i) {
        if (engines_[i].get() == &engine) return speeds_.at(i % speeds_.size());
      }
      return 0.0;
    };
    return StateFile::Create(layout_, options, engines);
  }

  std::unique_ptr<StateFile> Create(bool durable, size_t paths = 1,
                                    const std::optional<aio::FaultPlan>& faults = {}) {
    auto file = TryCreate(durable, paths, faults);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(file).value();
  }

  std::string Drive(size_t i) const { return folder_ / ("drive" + std::to_string(i)); }

  bool DrivesAreEmpty() const {
    for (size_t i = 0; i < 3; ++i) {
      if (!std::filesystem::is_empty(Drive(i))) return false;
    }
    return true;
  }

  static std::vector<std::string> Paths(const StateFile& file) {
    std::vector<std::string> paths;
    for (const PathShare& share : file.Shares()) paths.push_back(share.path);
    return paths;
  }

  /// Writes every tile filled with `value` as `version`, and returns what a commit of it says.
  CommitRecord WriteTiles(StateFile& file, uint8_t value, uint64_t version) {
    CommitRecord record{.head = {.step = version}};
    EXPECT_TRUE(file.PrepareWrites().ok());
    for (const TileId tile : layout_.Tiles()) {
      const int slot = file.WriteSlot(tile);
      const auto weight = Filled(layout_.WeightBytes(tile), value);
      const auto states = Filled(layout_.RecordBytes(tile), value);
      Write(file, Part::kWeight, tile, slot, weight);
      Write(file, Part::kRecord, tile, slot, states);
      record.tiles.push_back(
          {.version = version,
           .checksums = ChecksumsOf(file.uuid(), layout_, tile, version,
                                    {weight.data(), layout_.WeightBytes(tile).value},
                                    {states.data(), layout_.RecordBytes(tile).value}),
           .slot = static_cast<uint32_t>(slot)});
    }
    return record;
  }

  static Mapping Filled(Bytes size, uint8_t value) {
    Mapping mapping = std::move(Mapping::Create(size)).value();
    std::memset(mapping.data(), value, size.value);
    return mapping;
  }

  static void Write(StateFile& file, Part part, TileId tile, int slot, const Mapping& bytes) {
    const Status written = file.Submit({.part = part,
                                        .tile = tile,
                                        .slot = slot,
                                        .operation = aio::Operation::kWrite,
                                        .buffer = {bytes.data(), bytes.size().value}})
                               .Wait();
    EXPECT_TRUE(written.ok()) << written.error().message;
  }

  static void Overwrite(const std::string& path, uint64_t offset, const std::string& bytes) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good());
  }

  void ExpectCommitted(const std::vector<std::string>& paths, uint64_t step, uint8_t value) {
    const auto reader = StateReader::Open(paths);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ((*reader)->commit().head.step, step);
    for (uint32_t i = 0; i < layout_.tiles.size(); ++i) {
      StateReader::TileBytes bytes;
      const Status read = (*reader)->ReadTile(TileId{i}, bytes);
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(bytes.weight.front(), std::byte{value});
      EXPECT_EQ(bytes.record.back(), std::byte{value});
    }
  }

  const ShardLayout layout_ = SmallLayout(DType::kBFloat16);
  std::vector<std::unique_ptr<aio::Engine>> engines_;
  std::vector<double> speeds_ = {1};  ///< of the drives, in turn
};

}  // namespace penstock::offload
