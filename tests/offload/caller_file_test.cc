// The caller's file of a commit: that it is there with its commit, that a commit without it is
// damaged, and that it goes with its state.
#include "offload/caller_file.h"

#include <gmock/gmock.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "offload/state_check.h"
#include "offload/state_copy.h"
#include "offload/state_names.h"
#include "offload/state_removal.h"
#include "offload/whole_commit.h"
#include "offload/whole_state.h"
#include "tests/offload/one_rank.h"
#include "tests/offload/state_file_support.h"
#include "tests/temp_folder.h"

namespace {
size_t folders_synced = 0;
}  // namespace

// NOLINTNEXTLINE(readability-identifier-naming): the C library's name
extern "C" int fsync(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) == 0 && S_ISDIR(info.st_mode)) ++folders_synced;
  return static_cast<int>(::syscall(SYS_fsync, fd));
}

namespace penstock::offload {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

/// Answers as a drive on which everything fails, from a request on.
class FailsLater final : public aio::WrappedEngine {
 public:
  FailsLater(std::unique_ptr<aio::Engine> base, int error)
      : WrappedEngine(std::move(base)),
        failing_(aio::CreateEngine({.kind = aio::EngineKind::kThreads,
                                    .faults = aio::FaultPlan{.faults = {{.count = 1U << 30U,
                                                                         .error_number = error}}}})
                     .value()) {}
  aio::Ticket Submit(aio::Request request) override {
    if (left > 0) {
      --left;
      return WrappedEngine::Submit(std::move(request));
    }
    return failing_->Submit(std::move(request));
  }
  uint64_t left = std::numeric_limits<uint64_t>::max();  ///< requests that succeed

 private:
  std::unique_ptr<aio::Engine> failing_;
};

/// Loses the next write of a caller's file.
class LosesCallers final : public aio::WrappedEngine {
 public:
  using WrappedEngine::WrappedEngine;
  aio::Ticket Submit(aio::Request request) override {
    if (loses && request.about && request.about() == "the caller's file of a commit") {
      loses = false;
      request.buffer = {lost_.data(), std::min(request.buffer.size(), lost_.size())};
    }
    return WrappedEngine::Submit(std::move(request));
  }
  bool loses = false;

 private:
  std::vector<std::byte> lost_ = std::vector<std::byte>(4096);
};

class CallerFileTest : public StateFileTest {
 protected:
  static std::string ContentOf(size_t bytes, char seed) {
    std::string content(bytes, seed);
    for (size_t i = 0; i < bytes; ++i) content[i] = static_cast<char>(' ' + (i * 7 + seed) % 90);
    return content;
  }
  static std::string TextOf(const std::string& content) {
    if (content.empty()) return R"({"run":{}})";
    return fmt::format(R"({{"run":{{}},"caller_file":{}}})", CallerFileJson(content));
  }

  /// Commits step `step`, of which every tile has that value. An empty content is no file.
  Status CommitWith(StateFile& file, uint64_t step, const std::string& content) {
    CommitRecord record = WriteTiles(file, static_cast<uint8_t>(step), step);
    record.json = TextOf(content);
    if (!content.empty()) PENSTOCK_TRY(file.WriteCallerFile(content));
    return file.Commit(std::move(record));
  }

  template <typename Engine, typename... Arguments>
  std::unique_ptr<StateFile> CreateOn(Engine*& engine, Arguments... arguments) {
    auto made = std::make_unique<Engine>(
        aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value(), arguments...);
    engine = made.get();
    engines_.push_back(std::move(made));
    aio::Engine* const engines[] = {engine};
    auto file = StateFile::Create(layout_, {.folders = {Drive(0)}}, engines);
    EXPECT_TRUE(file.ok()) << file.error().message;
    return std::move(file).value();
  }

  Result<OpenedState> Open(const std::vector<std::string>& paths,
                           const std::optional<CommitName>& at = {}) {
    engines_.push_back(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value());
    aio::Engine* const engines[] = {engines_.back().get()};
    return StateFile::Open(paths, layout_, false, engines, at);
  }
  std::unique_ptr<StateFile> GoOn(const std::vector<std::string>& paths,
                                  const std::optional<CommitName>& at = {}) {
    auto opened = Open(paths, at);
    EXPECT_TRUE(opened.ok()) << opened.error().message;
    return std::move(opened->file);
  }

  /// The content of the newest commit, which is of `step` and whole.
  static void ExpectWhole(const std::vector<std::string>& paths, uint64_t step,
                          const std::string& content) {
    auto state = WholeState::Open({paths}, StateLock::kHeld);
    ASSERT_TRUE(state.ok()) << state.error().message;
    const auto notice = UseWholeCommit(*state);
    ASSERT_TRUE(notice.ok()) << notice.error().message;
    EXPECT_EQ(*notice, "");
    EXPECT_EQ(state->commit().head.step, step);
    const auto read = state->rank(0).ReadCaller();
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_TRUE(*read == content) << "step " << step;
  }

  std::vector<std::string> NamesIn(const std::string& folder) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::ranges::sort(names);
    return names;
  }
};

TEST_F(CallerFileTest, ItComesBackAsItWasWhateverItsSizeAndTheCommitBeforeKeepsItsOwn) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  uint64_t step = 0;
  std::string before;
  // Longer and shorter ones in turn, also over each other's files.
  for (const int bytes : {1, 4095, (5 << 20) + 7, 4096, 4097, 1 << 20, 2, (1 << 20) + 1}) {
    const std::string content = ContentOf(static_cast<size_t>(bytes), static_cast<char>(step));
    ++step;
    const Status committed = CommitWith(*file, step, content);
    ASSERT_TRUE(committed.ok()) << committed.error().message;
    EXPECT_TRUE(file->CheckCommit().ok());
    ExpectWhole(paths, step, content);
    EXPECT_EQ(fs::file_size(CallerFilePath(paths[0], step)), bytes);
    const auto reader = StateReader::Open(paths, StateLock::kHeld).value();
    if (step > 1) {
      ASSERT_TRUE(reader->Use(reader->commits().back().name).ok());
      EXPECT_TRUE(reader->ReadCaller().value() == before);
    }
    before = content;
  }
  file.reset();
  ExpectWhole(paths, step, before);
  // And a run resumes from it.
  file = GoOn(paths);
  EXPECT_TRUE(file->CheckCommit().ok());
  ASSERT_TRUE(CommitWith(*file, step + 1, "{}").ok());
  ExpectWhole(paths, step + 1, "{}");
}

TEST_F(CallerFileTest, ACommitWhoseFileIsGoneOrNotAsItWasIsDamagedAndTheOneBeforeIsUsed) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  ASSERT_TRUE(CommitWith(*file, 1, ContentOf(100000, 1)).ok());
  ASSERT_TRUE(CommitWith(*file, 2, ContentOf(100000, 2)).ok());
  const std::string path = CallerFilePath(paths[0], 2);
  fs::copy(path, folder_ / "kept");
  const auto restore = [&] {
    fs::remove_all(path);
    fs::copy(folder_ / "kept", path);
  };
  struct Case {
    std::function<void()> damage;
    std::string said;
  };
  for (const Case& tried :
       {Case{[&] { Overwrite(path, 0, "\x01"); }, "is not as it was written (checksum "},
        Case{[&] { Overwrite(path, 99999, "\x01"); }, "is not as it was written (checksum "},
        Case{[&] { fs::resize_file(path, 99999); }, "has 99999 bytes of 100000"},
        Case{[&] { fs::resize_file(path, 0); }, "has 0 bytes of 100000"},
        Case{[&] { fs::remove(path); }, "is not there"},
        Case{[&] {
               fs::copy(CallerFilePath(paths[0], 1), path, fs::copy_options::overwrite_existing);
             },
             "is not as it was written (checksum "},
        Case{[&] {
               fs::remove(path);
               fs::create_symlink(folder_ / "kept", path);
             },
             path},
        Case{[&] {
               fs::remove(path);
               fs::create_directory(path);
             },
             path}}) {
    SCOPED_TRACE(tried.said);
    tried.damage();
    const auto reader = StateReader::Open(paths, StateLock::kHeld).value();
    const auto check = CheckState(*reader, kNoProgress);
    ASSERT_TRUE(check.ok()) << check.error().message;
    EXPECT_THAT(check->damages, ElementsAre(AllOf(HasSubstr(path), HasSubstr(tried.said))));
    EXPECT_EQ(check->in_heads, 0U);
    EXPECT_FALSE(file->CheckCommit().ok());
    auto state = WholeState::Open({paths}, StateLock::kHeld).value();
    const auto notice = UseWholeCommit(state);
    ASSERT_TRUE(notice.ok()) << notice.error().message;
    EXPECT_THAT(*notice, AllOf(HasSubstr("the commit of step 2 is damaged: "), HasSubstr(path),
                               HasSubstr("the commit of step 1 is whole and is used")));
    EXPECT_TRUE(state.rank(0).ReadCaller().value() == ContentOf(100000, 1));
    restore();
    ExpectWhole(paths, 2, ContentOf(100000, 2));
  }
  // A longer one holds: what a crash leaves beyond the end is unused.
  std::ofstream(path, std::ios::app) << "more";
  ExpectWhole(paths, 2, ContentOf(100000, 2));
}

TEST_F(CallerFileTest, OfTwoCommitsOfAStepTheOneBeforeIsFoundAndResumed) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  ASSERT_TRUE(CommitWith(*file, 1, "[1]").ok());
  ASSERT_TRUE(CommitWith(*file, 1, "[2]").ok());
  ExpectWhole(paths, 1, "[2]");
  file.reset();
  fs::remove(CallerFilePath(paths[0], 2));
  for (const bool asked : {false, true}) {
    auto state = WholeState::Open({paths}).value();
    const auto wanted = asked ? std::optional(WantedCommit{.step = 1}) : std::nullopt;
    const auto notice = UseWholeCommit(state, kNoProgress, {}, wanted);
    ASSERT_TRUE(notice.ok()) << notice.error().message;
    EXPECT_THAT(*notice, AllOf(HasSubstr("the commit of step 1 is damaged: "),
                               HasSubstr("; the commit before it, also of step 1, is whole")));
    EXPECT_EQ(state.rank(0).ReadCaller().value(), "[1]");
    EXPECT_EQ(state.name().sequence, 1);
  }
  const CommitName before = WholeState::Open({paths}).value().commits().back();
  file = GoOn(paths, before);
  ExpectWhole(paths, 1, "[1]");
  ASSERT_TRUE(CommitWith(*file, 2, "[3]").ok());
  ExpectWhole(paths, 2, "[3]");
}

TEST_F(CallerFileTest, OneThatIsLostSaysThatTheRestIsWhole) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) ASSERT_TRUE(CommitWith(*file, step, "[1]").ok());
  for (const uint64_t step : {1, 2}) fs::remove(CallerFilePath(paths[0], step));
  auto state = WholeState::Open({paths}, StateLock::kHeld).value();
  EXPECT_TRUE(FailsWith(UseWholeCommit(state).status(), ErrorCode::kCorruption,
                        {CallerFilePath(paths[0], 2) + " is not there; weights and moments are "
                                                       "whole, and can be exported",
                         "no commit is whole"}));
}

TEST_F(CallerFileTest, AFailureAnywhereInACommitIsOneLineAndTheCommitBeforeStands) {
  for (const int error : {EIO, ENOSPC}) {
    size_t named = 0;
    for (uint64_t requests = 0;; ++requests) {
      SCOPED_TRACE(fmt::format("{} after {} requests", error, requests));
      FailsLater* engine = nullptr;
      auto file = CreateOn(engine, error);
      const std::vector<std::string> paths = Paths(*file);
      for (const uint64_t step : {1, 2}) {
        ASSERT_TRUE(CommitWith(*file, step, ContentOf(3 << 20, static_cast<char>(step))).ok());
      }
      CommitRecord record = WriteTiles(*file, 3, 3);
      record.json = TextOf(ContentOf(3 << 20, 3));
      engine->left = requests;
      Status made = file->WriteCallerFile(ContentOf(3 << 20, 3));
      const bool in_file = !made.ok();
      if (made.ok()) made = file->Commit(std::move(record));
      engine->left = std::numeric_limits<uint64_t>::max();
      file.reset();
      if (made.ok()) {
        EXPECT_GT(requests, 4U);
        break;
      }
      EXPECT_EQ(made.error().code, error == EIO ? ErrorCode::kIo : ErrorCode::kOutOfSpace);
      EXPECT_THAT(made.error().message, Not(HasSubstr("\n")));
      if (in_file) {
        ++named;
        EXPECT_THAT(made.error().message, HasSubstr(CallerFilePath(paths[0], 3)));
      }
      // The record may have reached the drive before its sync failed.
      const auto reader = StateReader::Open(paths).value();
      const uint64_t found = reader->commit().head.step;
      EXPECT_TRUE(found == 2 || (found == 3 && !in_file)) << found;
      ExpectWhole(paths, found, ContentOf(3 << 20, static_cast<char>(found)));
      fs::remove_all(Drive(0));
      fs::create_directory(Drive(0));
    }
    EXPECT_EQ(named, 4U) << "three writes and a sync";
  }
}

TEST_F(CallerFileTest, AFileThatTheDriveLostIsFoundAndItsCommitTakenBack) {
  LosesCallers* engine = nullptr;
  auto file = CreateOn(engine);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) {
    ASSERT_TRUE(CommitWith(*file, step, ContentOf(9000, static_cast<char>(step))).ok());
  }
  engine->loses = true;
  EXPECT_TRUE(FailsWith(CommitWith(*file, 3, ContentOf(9000, 3)), ErrorCode::kCorruption,
                        {"the commit of step 3 was taken back", CallerFilePath(paths[0], 3),
                         "nothing was written over the commit of step 2"}));
  file.reset();
  ExpectWhole(paths, 2, ContentOf(9000, 2));
  EXPECT_THAT(NamesIn(Drive(0)), ElementsAre(HasSubstr(".caller-0"), HasSubstr(".state")));
}

TEST_F(CallerFileTest, AFileThatNoCommitNamesIsNotKept) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) ASSERT_TRUE(CommitWith(*file, step, "[1]").ok());
  EXPECT_THAT(NamesIn(Drive(0)), testing::SizeIs(3));
  ASSERT_TRUE(CommitWith(*file, 3, "").ok());
  EXPECT_FALSE(fs::exists(CallerFilePath(paths[0], 3)));
  EXPECT_TRUE(fs::exists(CallerFilePath(paths[0], 2))) << "the commit before keeps its own";
  ASSERT_TRUE(CommitWith(*file, 4, "").ok());
  EXPECT_THAT(NamesIn(Drive(0)), ElementsAre(HasSubstr(".state")));
  // Taken back, because of what losses say of it, or because other ranks lack it.
  ASSERT_TRUE(CommitWith(*file, 5, "[5]").ok());
  ASSERT_TRUE(CommitWith(*file, 6, "[6]").ok());
  ASSERT_TRUE(file->TakeBack().ok());
  file.reset();
  EXPECT_FALSE(fs::exists(CallerFilePath(paths[0], 6)));
  ExpectWhole(paths, 5, "[5]");
  file = GoOn(paths);
  ASSERT_TRUE(CommitWith(*file, 6, "[6]").ok());
  file.reset();
  ASSERT_TRUE(Open(paths, CommitName{.step = 5}).ok());
  EXPECT_FALSE(fs::exists(CallerFilePath(paths[0], 6)));
  ExpectWhole(paths, 5, "[5]");
}

TEST_F(CallerFileTest, AStateWithoutACommitLeavesNone) {
  auto file = Create(true);
  ASSERT_TRUE(file->WriteCallerFile("{}").ok());
  EXPECT_THAT(NamesIn(Drive(0)), testing::SizeIs(2));
  file.reset();
  EXPECT_TRUE(DrivesAreEmpty());
}

TEST_F(CallerFileTest, WithOneSlotACommitHasItsFileToo) {
  auto file = Create(false);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2, 3}) {
    ASSERT_TRUE(CommitWith(*file, step, ContentOf(5000, static_cast<char>(step))).ok());
    ExpectWhole(paths, step, ContentOf(5000, static_cast<char>(step)));
  }
}

TEST_F(CallerFileTest, ASimulatedDriveKeepsNone) {
  engines_.push_back(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value());
  aio::Engine* const engines[] = {engines_.back().get()};
  const auto file =
      StateFile::Create(layout_, {.folders = {Drive(0)}, .simulated = true}, engines).value();
  for (const uint64_t step : {1, 2, 3}) ASSERT_TRUE(CommitWith(*file, step, "{}").ok());
  EXPECT_TRUE(DrivesAreEmpty());
}

TEST_F(CallerFileTest, WhatHasItsNameAndIsNoFileIsNotWrittenThrough) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  std::ofstream(folder_ / "mine") << "of the user";
  fs::create_symlink(folder_ / "mine", CallerFilePath(paths[0], 1));
  EXPECT_TRUE(
      FailsWith(CommitWith(*file, 1, "{}"), ErrorCode::kCorruption, {CallerFilePath(paths[0], 1)}));
  EXPECT_EQ(fs::file_size(folder_ / "mine"), 11U);
}

TEST_F(CallerFileTest, WhatHasItsNameAndIsNoFileIsRefusedBeforeAnythingIsWritten) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) ASSERT_TRUE(CommitWith(*file, step, "").ok());
  file.reset();
  for (const uint64_t sequence : {1, 2}) {
    const std::string path = CallerFilePath(paths[0], sequence);
    for (const bool is_folder : {false, true}) {
      if (is_folder) fs::create_directory(path);
      if (!is_folder) fs::create_symlink(folder_ / "mine", path);
      // Also of a resume from the commit before, which would erase the newest.
      EXPECT_TRUE(FailsWith(Open(paths, CommitName{.step = 1}).status(),
                            ErrorCode::kInvalidArgument, {path, "move it away"}));
      ExpectWhole(paths, 2, "");
      fs::remove(path);
    }
  }
  ASSERT_TRUE(Open(paths).ok());
}

TEST_F(CallerFileTest, AnotherNameOfItKeepsWhatItHad) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  ASSERT_TRUE(CommitWith(*file, 1, "[1]").ok());
  fs::create_hard_link(CallerFilePath(paths[0], 1), folder_ / "mine");
  for (const uint64_t step : {2, 3}) ASSERT_TRUE(CommitWith(*file, step, "[22]").ok());
  EXPECT_EQ(fs::file_size(folder_ / "mine"), 3U);
  ExpectWhole(paths, 3, "[22]");
}

TEST_F(CallerFileTest, ItsNameIsDurableAlsoIfAKilledProcessMadeIt) {
  auto file = Create(true);
  const std::vector<std::string> paths = Paths(*file);
  std::ofstream(CallerFilePath(paths[0], 1)).close();
  const size_t before = folders_synced;
  ASSERT_TRUE(file->WriteCallerFile("[1]").ok());
  EXPECT_GT(folders_synced, before);
}

TEST_F(CallerFileTest, ItGoesWithPath0OfItsStateAndWithWhatAKillLeftOfACopy) {
  auto file = Create(true, 2);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) ASSERT_TRUE(CommitWith(*file, step, "[1]").ok());
  const std::string uuid = ToString(file->uuid());
  file.reset();
  std::ofstream(CallerFilePath(paths[0], 1) + ".tmp") << "a part";
  std::ofstream(Drive(0) + "/penstock-other.caller-0") << "of another state";
  {
    auto other = RemovableState::Open(paths[1], uuid).value();
    EXPECT_THAT(other.caller_files(), IsEmpty());
  }
  // A copy that was cut off: its file has the caller's name already, and path 0 has not.
  fs::rename(paths[0], UnfinishedCopy(paths[0]));
  auto state = RemovableState::Open(UnfinishedCopy(paths[0]), uuid).value();
  EXPECT_THAT(state.caller_files(), testing::SizeIs(3));
  ASSERT_TRUE(state.Remove().ok());
  EXPECT_THAT(NamesIn(Drive(0)), ElementsAre("penstock-other.caller-0"));
}

TEST_F(CallerFileTest, ACopyHasTheFileOfTheNewestCommitAlone) {
  auto file = Create(true, 2);
  const std::vector<std::string> paths = Paths(*file);
  for (const uint64_t step : {1, 2}) {
    ASSERT_TRUE(CommitWith(*file, step, ContentOf(2500000, static_cast<char>(step))).ok());
  }
  const std::vector<std::string> targets = {Drive(2) + "/copy.state", Drive(2) + "/copy.1.state"};
  const auto copy = [&] {
    const auto state = WholeState::Open({paths}, StateLock::kHeld).value();
    return CopyState(state, {targets}, [] { return false; });
  };
  const Status copied = copy();
  ASSERT_TRUE(copied.ok()) << copied.error().message;
  EXPECT_THAT(NamesIn(Drive(2)), ElementsAre("copy.1.state", "copy.caller-0", "copy.state"));
  ExpectWhole(targets, 2, ContentOf(2500000, 2));
  // It is a file of its own.
  ASSERT_TRUE(CommitWith(*file, 3, "{}").ok());
  ASSERT_TRUE(CommitWith(*file, 4, "{}").ok());
  ExpectWhole(targets, 2, ContentOf(2500000, 2));
  // Of a damaged one there is no copy, nor a part of one.
  for (const std::string& name : NamesIn(Drive(2))) fs::remove(Drive(2) + "/" + name);
  Overwrite(CallerFilePath(paths[0], 4), 0, "[");
  EXPECT_TRUE(FailsWith(copy(), ErrorCode::kCorruption, {CallerFilePath(paths[0], 4)}));
  EXPECT_THAT(NamesIn(Drive(2)), IsEmpty());
}

TEST_F(CallerFileTest, ACopyThatCannotHaveAllItsNamesLeavesNone) {
  auto file = Create(true, 2);
  const std::vector<std::string> paths = Paths(*file);
  ASSERT_TRUE(CommitWith(*file, 1, ContentOf(5000, 1)).ok());
  const std::vector<std::string> targets = {Drive(2) + "/copy.state", Drive(2) + "/copy.1.state"};
  // The names that are taken before it begins, and while it copies.
  for (const std::string name : {"copy.state", "copy.1.state", "copy.caller-0", "copy.caller-1"}) {
    for (const bool before : {true, false}) {
      if (!before && name == "copy.caller-0") continue;  // of the other commit place
      SCOPED_TRACE(name);
      const auto state = WholeState::Open({paths}, StateLock::kHeld).value();
      bool asked = false;
      const auto take = [&] {
        std::ofstream(Drive(2) + "/" + name) << "somebody's";
        return false;
      };
      if (before) take();
      EXPECT_TRUE(FailsWith(
          CopyState(state, {targets}, [&] { return std::exchange(asked, true) ? false : take(); }),
          ErrorCode::kInvalidArgument, {name, "is not replaced"}));
      EXPECT_EQ(asked, !before) << "nothing is read for it";
      EXPECT_THAT(NamesIn(Drive(2)), ElementsAre(name));
      fs::remove(Drive(2) + "/" + name);
    }
  }
}

TEST_F(CallerFileTest, EachRankHasItsOwn) {
  const ModelLayout model = layout_.model;
  RankPaths paths;
  RankPaths targets;
  const auto content = [](uint32_t rank) { return ContentOf(5000, static_cast<char>(rank)); };
  for (const uint32_t number : {0, 1}) {
    OneRank rank(kUuid, MakeShard(model, 8192, 2, number), Drive(0));
    ASSERT_TRUE(rank.Create().ok());
    ASSERT_TRUE(rank.Write(1).ok());
    ASSERT_TRUE(rank.file().WriteCallerFile(content(number)).ok());
    ASSERT_TRUE(rank.Commit({1, 1}, TextOf(content(number))).ok());
    rank.End();
    paths.push_back(rank.paths());
    targets.push_back(StatePathsIn({Drive(1)}, kUuid, number));
  }
  ASSERT_TRUE(CopyState(WholeState::Open(paths).value(), targets, [] { return false; }).ok());
  EXPECT_EQ(NamesIn(Drive(1)), NamesIn(Drive(0)));
  auto copy = WholeState::Open(targets).value();
  for (const uint32_t rank : {0, 1}) {
    EXPECT_TRUE(copy.rank(rank).ReadCaller().value() == content(rank)) << rank;
  }
  const std::string damaged = CallerFilePath(targets[1].front(), 1);
  EXPECT_THAT(damaged, HasSubstr(".r1.caller-1"));
  Overwrite(damaged, 0, "\x01");
  EXPECT_THAT(copy.DamagedTiles().value(), ElementsAre(HasSubstr(damaged)));
}

TEST_F(CallerFileTest, WhatATextSaysOfItIsReadStrictly) {
  const auto file = CallerFileIn(TextOf("{}"));
  ASSERT_TRUE(file.ok() && *file);
  EXPECT_EQ((*file)->bytes, 2_B);
  for (const char* text : {"", "{}", "[]", R"({"run":{"caller_file":3}})", R"({"a":"caller_file"})",
                           "caller_file: no JSON"}) {
    const auto none = CallerFileIn(text);
    ASSERT_TRUE(none.ok()) << text;
    EXPECT_FALSE(none->has_value()) << text;
  }
  const char* const sum = "0123456789abcdef";
  for (const std::string& entry :
       {std::string("null"), std::string("3"), std::string("{}"), fmt::format(R"({{"bytes":2}})"),
        fmt::format(R"({{"bytes":"2","xxh3":"{}"}})", sum),
        fmt::format(R"({{"bytes":0,"xxh3":"{}"}})", sum),
        fmt::format(R"({{"bytes":-2,"xxh3":"{}"}})", sum),
        fmt::format(R"({{"bytes":268435457,"xxh3":"{}"}})", sum),
        fmt::format(R"({{"bytes":2,"xxh3":"{}","more":1}})", sum),
        std::string(R"({"bytes":2,"xxh3":"0123456789ABCDEF"})"),
        std::string(R"({"bytes":2,"xxh3":"123"})")}) {
    EXPECT_TRUE(FailsWith(CallerFileIn(fmt::format(R"({{"caller_file":{}}})", entry)).status(),
                          ErrorCode::kCorruption, {"its caller's file"}))
        << entry;
  }
}

}  // namespace
}  // namespace penstock::offload
