// What a crash leaves of a drive with a cache that forgets: every synced byte, and of the others
// the old, the new, or a write torn between two units.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "aio/forgetful_drive.h"
#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

constexpr size_t kCell = 8192;  // what is written at once
constexpr size_t kCells = 32;

std::unique_ptr<Engine> Forgetful(uint64_t seed, std::optional<uint64_t> crash_at_block = {}) {
  return std::move(CreateEngine({.kind = EngineKind::kThreads,
                                 .block_size = Bytes{kCell},
                                 .faults = FaultPlan{.seed = seed,
                                                     .lose_unsynced = true,
                                                     .crash_at_block = crash_at_block}}))
      .value();
}

/// A file of cells, the memory that is written to it, and what it holds without the engine.
class ForgetfulDriveTest : public testing::Test {
 protected:
  std::span<std::byte> Cell(size_t i) { return memory_.bytes().subspan(i * kCell, kCell); }

  Status Write(Engine& engine, size_t cell, uint64_t version) {
    FillPattern(Cell(cell), version);
    return engine.Submit(WriteRequest(file_.get(), cell * kCell, Cell(cell))).Wait();
  }

  Status WriteAll(Engine& engine, uint64_t version) {
    for (size_t i = 0; i < kCells; ++i) PENSTOCK_TRY(Write(engine, i, version));
    return {};
  }

  std::vector<std::byte> OnDrive() {
    std::vector<std::byte> bytes(kCell * kCells);
    const ssize_t size = ::pread(file_.get().buffered_fd(), bytes.data(), bytes.size(), 0);
    bytes.resize(size > 0 ? static_cast<size_t>(size) : 0);
    return bytes;
  }

  /// The version of every unit of the file, 0 for zeros; fails on a unit that is none.
  std::vector<uint64_t> VersionsOnDrive(uint64_t versions) {
    const size_t unit = std::max<size_t>(file_.get().alignment().value, 512);
    std::vector<std::byte> bytes = OnDrive();
    bytes.resize(kCell * kCells);
    std::vector<uint64_t> found;
    for (size_t at = 0; at < bytes.size(); at += unit) {
      const auto part = std::span(bytes).subspan(at, unit);
      uint64_t version = 0;
      const auto matches = [&](uint64_t candidate) {
        for (size_t i = 0; i < unit; ++i) {
          const std::byte expected =
              candidate == 0 ? std::byte{0} : PatternAt(candidate, at % kCell + i);
          if (part[i] != expected) return false;
        }
        return true;
      };
      while (version <= versions && !matches(version)) ++version;
      EXPECT_LE(version, versions) << "the unit at " << at << " is neither old nor new";
      found.push_back(version);
    }
    return found;
  }

  ScratchFile file_;
  Buffer memory_{kCell * kCells};
};

TEST_F(ForgetfulDriveTest, ReadsSeeWhatWasNotSyncedAndTheFileDoesNot) {
  const auto engine = Forgetful(1);
  ASSERT_OK(WriteAll(*engine, 1));
  EXPECT_TRUE(OnDrive().empty());
  Buffer in(kCell * kCells);
  // Behind the end of the file on the drive, with other borders than the writes had.
  ASSERT_OK(engine->Submit(ReadRequest(file_.get(), 100, in.bytes().first(3 * kCell))).Wait());
  EXPECT_TRUE(
      std::ranges::equal(in.bytes().first(3 * kCell), memory_.bytes().subspan(100, 3 * kCell)));
}

TEST_F(ForgetfulDriveTest, ASyncMakesEverythingBeforeItReachTheFile) {
  const auto engine = Forgetful(1);
  ASSERT_OK(WriteAll(*engine, 1));
  ASSERT_OK(engine->Sync(file_.get()));
  ASSERT_OK(Write(*engine, 3, 2));
  auto versions = VersionsOnDrive(2);
  EXPECT_THAT(versions, testing::Each(1));
  ASSERT_OK(engine->Sync(file_.get()));
  versions = VersionsOnDrive(2);
  EXPECT_EQ(static_cast<size_t>(std::ranges::count(versions, 2)), versions.size() / kCells);
}

TEST_F(ForgetfulDriveTest, ASyncOfOneFileLeavesTheOthersInTheCache) {
  ScratchFile other;
  const auto engine = Forgetful(1);
  ASSERT_OK(WriteAll(*engine, 1));
  ASSERT_OK(engine->Sync(other.get()));
  EXPECT_TRUE(OnDrive().empty());
}

TEST_F(ForgetfulDriveTest, TheEndKeepsWhatWasSyncedAndARandomChoiceOfTheRest) {
  size_t torn = 0;
  std::set<std::vector<uint64_t>> outcomes;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    {
      const auto engine = Forgetful(seed);
      ASSERT_OK(WriteAll(*engine, 1));
      ASSERT_OK(engine->Sync(file_.get()));
      for (size_t i = 0; i < kCells; i += 2) ASSERT_OK(Write(*engine, i, 2));
    }
    const std::vector<uint64_t> versions = VersionsOnDrive(2);
    const size_t units = versions.size() / kCells;
    for (size_t cell = 0; cell < kCells; ++cell) {
      const auto first = versions.begin() + static_cast<std::ptrdiff_t>(cell * units);
      const auto end = first + static_cast<std::ptrdiff_t>(units);
      if (cell % 2 == 1) {
        EXPECT_EQ(std::count(first, end, 1), static_cast<std::ptrdiff_t>(units));
      }
      EXPECT_EQ(std::count(first, end, 0), 0) << "a synced byte is gone";
      torn += *first != *(end - 1) ? 1 : 0;
    }
    outcomes.insert(versions);
  }
  EXPECT_GT(outcomes.size(), 10u) << "the seed chooses";
  if (file_.get().alignment() > 1_B && file_.get().alignment() < Bytes{kCell}) {
    EXPECT_GT(torn, 0u);
  }
}

TEST_F(ForgetfulDriveTest, AfterTheCrashEverythingFailsAndSyncedBytesAreThere) {
  const auto engine = Forgetful(5, kCells + 1 + 4);
  ASSERT_OK(WriteAll(*engine, 1));
  ASSERT_OK(engine->Sync(file_.get()));
  for (size_t i = 0; i < 4; ++i) ASSERT_OK(Write(*engine, i, 2));
  EXPECT_FALSE(Write(*engine, 4, 3).ok());
  EXPECT_FALSE(engine->Sync(file_.get()).ok());
  EXPECT_FALSE(engine->Submit(ReadRequest(file_.get(), 0, Cell(0))).Wait().ok());
  const std::vector<uint64_t> versions = VersionsOnDrive(3);
  EXPECT_EQ(std::ranges::count(versions, 0), 0);
  EXPECT_EQ(std::ranges::count(versions, 3), 0) << "the block of the crash was not accepted";
}

TEST_F(ForgetfulDriveTest, AFileMayBeClosedBeforeTheEnd) {
  const std::string path = file_.path();
  size_t written = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    ASSERT_EQ(::truncate(path.c_str(), 0), 0);
    auto engine = Forgetful(seed);
    {
      auto file = File::Open(path, {.writable = true, .direct = false});
      ASSERT_TRUE(file.ok());
      ASSERT_OK(engine->Submit(WriteRequest(*file, 0, Cell(0))).Wait());
    }
    engine.reset();
    written += OnDrive().empty() ? 0 : 1;
  }
  EXPECT_GT(written, 0u);
}

TEST_F(ForgetfulDriveTest, AFailedSyncLosesAPartThatTheNextOneDoesNotBringBack) {
  const auto engine =
      std::move(CreateEngine({.kind = EngineKind::kThreads,
                              .block_size = Bytes{kCell},
                              .faults = FaultPlan{.faults = {{.operation = Operation::kSync,
                                                              .first_block = 1}},
                                                  .seed = 1,
                                                  .lose_unsynced = true}}))
          .value();
  ASSERT_OK(WriteAll(*engine, 1));
  ASSERT_OK(engine->Sync(file_.get()));
  ASSERT_OK(WriteAll(*engine, 2));
  EXPECT_FALSE(engine->Sync(file_.get()).ok());
  EXPECT_OK(engine->Sync(file_.get()));
  const std::vector<uint64_t> versions = VersionsOnDrive(2);
  EXPECT_GT(std::ranges::count(versions, 1), 0) << "lost for good";
  EXPECT_GT(std::ranges::count(versions, 2), 0) << "and not all of it";
}

/// Carries out reads as they come and reports everything when asked to.
class LateDrive final : public Drive {
 public:
  void Submit(const BlockOperation& block) override {
    results_.push_back({block.slot, Run(block)});
  }
  void Reap(bool wait, std::vector<BlockResult>& results) override {
    if (!wait) return;
    results.insert(results.end(), results_.begin(), results_.end());
    results_.clear();
  }
  void Wake() override {}
  const std::string& name() const override { return name_; }

 private:
  static int64_t Run(const BlockOperation& block) {
    if (block.operation == Operation::kSync) return 0;
    return ::pread(block.fd, block.data.data(), block.data.size(),
                   static_cast<off_t>(block.offset.value));
  }

  const std::string name_ = "late";
  std::vector<BlockResult> results_;
};

TEST(ForgetfulDrive, AReadThatASyncOvertakesStillSeesTheWritesBeforeIt) {
  ScratchFile file(false);
  Buffer out(4096);
  FillPattern(out.bytes(), 1);
  Buffer in(4096);
  ForgetfulDrive drive(std::make_unique<LateDrive>(), {.lose_unsynced = true}, 3);
  const auto submit = [&](Operation operation, std::span<std::byte> data, uint32_t slot) {
    drive.Submit({.operation = operation,
                  .fd = file.get().fd(),
                  .data = data,
                  .alignment = 1_B,
                  .slot = slot});
  };
  std::vector<BlockResult> results;
  submit(Operation::kWrite, out.bytes(), 0);
  drive.Reap(false, results);
  ASSERT_EQ(results.size(), 1u);
  submit(Operation::kRead, in.bytes(), 1);  // finds the file empty
  submit(Operation::kSync, {}, 2);          // writes to it
  drive.Reap(true, results);
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[1].result, 4096);
  EXPECT_EQ(PatternErrors(in.bytes(), 1), 0u);
}

TEST(ForgetfulOptions, ACrashNeedsTheCacheThatForgets) {
  const auto engine = CreateEngine({.faults = FaultPlan{.crash_at_block = 1}});
  ASSERT_FALSE(engine.ok());
  EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace penstock::aio
