// What is left of a state where a block of a head or of a commit place is lost.
#include "offload/state_heads.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "offload/state_copy.h"
#include "offload/state_removal.h"
#include "offload/uuid.h"
#include "offload/whole_state.h"
#include "tests/offload/failing_reads.h"
#include "tests/offload/full_drive.h"
#include "tests/offload/state_file_support.h"

namespace penstock::offload {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

class StateHeadsTest : public StateFileTest {
 protected:
  /// The files of a state with the commits of steps 1 and 2, whose tiles are filled with those.
  std::vector<std::string> Committed(size_t paths = 2) {
    const auto file = Create(/*durable=*/true, paths);
    for (const uint64_t step : {1, 2}) {
      EXPECT_TRUE(file->Commit(WriteTiles(*file, static_cast<uint8_t>(step), step)).ok());
    }
    std::vector<std::string> files = Paths(*file);
    geometry_.clear();
    for (uint32_t i = 0; i < paths; ++i) {
      geometry_.push_back(StateReader::Open(files, StateLock::kHeld).value()->geometry(i));
    }
    return files;
  }

  /// Opens the state to continue in it; returns the notices.
  Result<std::vector<std::string>> Continue(const std::vector<std::string>& paths) {
    std::vector<std::unique_ptr<aio::Engine>> owned;
    std::vector<aio::Engine*> engines;
    for (size_t i = 0; i < paths.size(); ++i) {
      owned.push_back(std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value());
      engines.push_back(owned.back().get());
    }
    PENSTOCK_ASSIGN(OpenedState opened, StateFile::Open(paths, layout_, false, engines));
    PENSTOCK_TRY(opened.file->CheckCommit());
    return std::move(opened.notices);
  }

  static std::string MarkOf(const std::vector<std::string>& paths) {
    const auto mark = EncodeUnfinishedMark(StateReader::Open(paths).value()->header().uuid);
    return {reinterpret_cast<const char*>(mark.data()), mark.size()};
  }

  static std::string BytesOf(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  static std::vector<std::string> Damages(const std::vector<std::string>& paths) {
    return StateReader::Open(paths).value()->CheckHeads();
  }

  std::vector<StateGeometry> geometry_;  ///< of each path
};

constexpr size_t kBlock = 4096;
const std::string kLost(kBlock, '\x5a');

TEST_F(StateHeadsTest, TheLastBlockOfAFileIsItsHeaderAndBothHeadsAreEqual) {
  for (const std::string& path : Committed(3)) {
    const std::string bytes = BytesOf(path);
    EXPECT_EQ(bytes.substr(bytes.size() - kBlock), bytes.substr(0, kBlock));
    const size_t head = geometry_[0].head_bytes().value;
    EXPECT_EQ(bytes.substr(bytes.size() - head, head - kBlock),
              bytes.substr(kBlock, head - kBlock));
  }
}

TEST_F(StateHeadsTest, AStateWhoseFirstHeadIsLostAnywhereIsReadAndMended) {
  const std::vector<std::string> paths = Committed();
  for (const std::string& path : paths) {
    const std::string whole = BytesOf(path);
    for (uint64_t at = 0; at < geometry_[0].head_bytes().value; at += kBlock) {
      Overwrite(path, at, kLost);
      ExpectCommitted(paths, 2, 2);
      EXPECT_THAT(StateReader::Open(paths).value()->notice(),
                  AllOf(HasSubstr(path), HasSubstr("second head")));
      EXPECT_THAT(Damages(paths), SizeIs(1));
      const auto notices = Continue(paths);
      ASSERT_TRUE(notices.ok()) << notices.error().message;
      EXPECT_THAT(*notices, ElementsAre(AllOf(HasSubstr(path), HasSubstr("first head"))));
      EXPECT_THAT(Damages(paths), IsEmpty());
      EXPECT_EQ(BytesOf(path), whole);
    }
  }
}

TEST_F(StateHeadsTest, ALostSecondHeadIsNamedByInspectionAndMended) {
  const std::vector<std::string> paths = Committed();
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string whole = BytesOf(paths[i]);
    for (uint64_t at = geometry_[i].second_head().value; at < whole.size(); at += kBlock) {
      Overwrite(paths[i], at, kLost);
      EXPECT_THAT(Damages(paths), ElementsAre(AllOf(HasSubstr(paths[i]), HasSubstr("second head"),
                                                    HasSubstr(fmt::format("offset {}:", at)))));
      EXPECT_THAT(Continue(paths).value(), SizeIs(1));
      EXPECT_THAT(Damages(paths), IsEmpty());
      EXPECT_EQ(BytesOf(paths[i]), whole);
    }
  }
}

TEST_F(StateHeadsTest, AFileThatHasLostBothHeadsGetsThemFromAnotherPath) {
  const std::vector<std::string> paths = Committed(3);
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string whole = BytesOf(paths[i]);
    Overwrite(paths[i], 0, kLost);
    Overwrite(paths[i], whole.size() - kBlock, kLost);
    ExpectCommitted(paths, 2, 2);
    EXPECT_THAT(Damages(paths), SizeIs(2));
    EXPECT_THAT(Continue(paths).value(), SizeIs(1));
    EXPECT_EQ(BytesOf(paths[i]), whole);
  }
}

TEST_F(StateHeadsTest, WithoutAnyHeadTheErrorNamesBoth) {
  const std::vector<std::string> paths = Committed(1);
  const uint64_t size = std::filesystem::file_size(paths[0]);
  Overwrite(paths[0], 0, kLost);
  Overwrite(paths[0], size - kBlock, kLost);
  const auto reader = StateReader::Open(paths);
  ASSERT_FALSE(reader.ok());
  EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
  EXPECT_THAT(reader.error().message,
              AllOf(HasSubstr(paths[0]), HasSubstr("offset 0"), HasSubstr("second head")));
}

TEST_F(StateHeadsTest, AFileOfBeforeThereWasASecondHeadIsReadAndGetsOne) {
  const std::vector<std::string> paths = Committed();
  std::vector<std::string> whole;
  for (size_t i = 0; i < paths.size(); ++i) {
    whole.push_back(BytesOf(paths[i]));
    std::filesystem::resize_file(paths[i], geometry_[i].file_bytes.value);
  }
  ExpectCommitted(paths, 2, 2);
  EXPECT_THAT(Damages(paths), IsEmpty());
  EXPECT_THAT(Continue(paths).value(), IsEmpty());
  for (size_t i = 0; i < paths.size(); ++i) EXPECT_EQ(BytesOf(paths[i]), whole[i]);
}

TEST_F(StateHeadsTest, AnOldFileOnAFullDriveResumesWithoutASecondHeadAndSaysSo) {
  const std::vector<std::string> paths = Committed(1);
  const std::string whole = BytesOf(paths[0]);
  const uint64_t old_size = geometry_[0].file_bytes.value;
  std::filesystem::resize_file(paths[0], old_size);
  {
    const FullDrive full;
    const auto notices = Continue(paths);
    ASSERT_TRUE(notices.ok()) << notices.error().message;
    EXPECT_THAT(*notices, ElementsAre(AllOf(HasSubstr(paths[0]), HasSubstr("no second head"),
                                            HasSubstr("no room"))));
    EXPECT_EQ(std::filesystem::file_size(paths[0]), old_size);
    ExpectCommitted(paths, 2, 2);
  }
  EXPECT_THAT(Continue(paths).value(), IsEmpty());
  EXPECT_EQ(BytesOf(paths[0]), whole);
}

TEST_F(StateHeadsTest, AFileThatEndsWithinItsSecondHeadIsReadNamedAndMended) {
  const std::vector<std::string> paths = Committed(1);
  const std::string whole = BytesOf(paths[0]);
  std::filesystem::resize_file(paths[0], whole.size() - kBlock);
  ExpectCommitted(paths, 2, 2);
  EXPECT_THAT(Damages(paths), SizeIs(1));
  EXPECT_TRUE(Continue(paths).ok());
  EXPECT_EQ(BytesOf(paths[0]), whole);
}

TEST_F(StateHeadsTest, ACopyOfAStateWithALostHeadHasBothHeads) {
  const std::vector<std::string> paths = Committed();
  Overwrite(paths[0], 0, kLost);
  Overwrite(paths[1], geometry_[1].second_head().value, kLost);
  const std::vector<std::string> copies = {Drive(2) + "/copy0", Drive(2) + "/copy1"};
  ASSERT_TRUE(CopyState(WholeState::Open({paths}).value(), {copies}, [] { return false; }).ok());
  EXPECT_THAT(Damages(copies), IsEmpty());
  Overwrite(copies[0], 0, kLost);
  ExpectCommitted(copies, 2, 2);
}

TEST_F(StateHeadsTest, AStateWithALostFirstHeadIsRemovedByItsSecond) {
  const std::vector<std::string> paths = Committed(1);
  const std::string uuid = ToString(StateReader::Open(paths).value()->header().uuid);
  Overwrite(paths[0], 0, kLost);
  const auto file = RemovableState::Open(paths[0], uuid);
  ASSERT_TRUE(file.ok()) << file.error().message;
}

TEST_F(StateHeadsTest, AStateWhoseFirstBlockCannotBeReadIsRemovedByItsSecondHead) {
  const std::vector<std::string> paths = Committed(1);
  const std::string uuid = ToString(StateReader::Open(paths).value()->header().uuid);
  FailingReads reads;
  reads.Fail(paths[0], 0, kBlock);
  const auto file = RemovableState::Open(paths[0], uuid);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto other = RemovableState::Open(paths[0], ToString(Uuid{}));
  EXPECT_FALSE(other.ok()) << "the file is of another state";
}

TEST_F(StateHeadsTest, AStateOfWhichNoHeadCanBeReadIsNotRemoved) {
  const std::vector<std::string> paths = Committed(1);
  const std::string uuid = ToString(StateReader::Open(paths).value()->header().uuid);
  FailingReads reads;
  reads.Fail(paths[0], 0, kBlock);
  reads.Fail(paths[0], std::filesystem::file_size(paths[0]) - kBlock, kBlock);
  EXPECT_EQ(RemovableState::Open(paths[0], uuid).error().code, ErrorCode::kIo);
}

/// Effective rights of a user who owns nothing, while it lives; root may write everything.
class AsNobody {
 public:
  AsNobody() {
    if (::geteuid() == 0) changed_ = ::seteuid(65534) == 0;
  }
  ~AsNobody() {
    if (changed_) static_cast<void>(::seteuid(0));
  }
  AsNobody(const AsNobody&) = delete;
  AsNobody& operator=(const AsNobody&) = delete;

 private:
  bool changed_ = false;
};

TEST_F(StateHeadsTest, AStateThatMayOnlyBeReadIsOpenedToBeMoved) {
  const std::vector<std::string> paths = Committed();
  using std::filesystem::perms;
  for (const std::string& path : paths) {
    std::filesystem::permissions(path, perms::owner_read | perms::group_read | perms::others_read);
  }
  const AsNobody nobody;
  if (::faccessat(AT_FDCWD, paths[0].c_str(), R_OK, AT_EACCESS) != 0) {
    GTEST_SKIP() << "no other user sees " << folder_;
  }
  ASSERT_NE(::faccessat(AT_FDCWD, paths[0].c_str(), W_OK, AT_EACCESS), 0);
  const auto reader = StateReader::Open(paths, StateLock::kExclusive);
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ((*reader)->commit().head.step, 2U);
}

TEST_F(StateHeadsTest, AFileWithAMarkAndNoCommitWasNeverFinishedWithAnyEnd) {
  for (const size_t count : {1, 2}) {
    const std::vector<std::string> paths = Committed(count);
    Overwrite(paths[0], 0, MarkOf(paths));
    for (const FileOffset place : geometry_[0].commit_offset) {
      Overwrite(paths[0], place.value, std::string(geometry_[0].commit_bytes.value, '\0'));
    }
    for (const bool second : {true, false}) {
      if (!second) Overwrite(paths[0], std::filesystem::file_size(paths[0]) - kBlock, kLost);
      const auto reader = StateReader::Open(paths);
      ASSERT_FALSE(reader.ok());
      EXPECT_EQ(reader.error().code, ErrorCode::kNotFound);
      EXPECT_THAT(reader.error().message, HasSubstr("never finished"));
    }
  }
}

TEST_F(StateHeadsTest, AMarkInAStateWithACommitIsALostHead) {
  const std::vector<std::string> paths = Committed();
  const std::string mark = MarkOf(paths);
  for (size_t i = 0; i < paths.size(); ++i) {
    const std::string whole = BytesOf(paths[i]);
    for (const bool second : {true, false}) {
      Overwrite(paths[i], 0, mark);
      if (!second) Overwrite(paths[i], whole.size() - kBlock, kLost);
      ExpectCommitted(paths, 2, 2);
      EXPECT_THAT(StateReader::Open(paths).value()->notice(),
                  AllOf(HasSubstr(paths[i]), HasSubstr("has lost its header")));
      EXPECT_THAT(Continue(paths).value(), SizeIs(1));
      EXPECT_EQ(BytesOf(paths[i]), whole);
    }
  }
}

TEST_F(StateHeadsTest, AnEmptyFileIsSaidToBeEmpty) {
  const std::vector<std::string> paths = Committed();
  for (const size_t i : {1, 0}) {
    std::filesystem::resize_file(paths[i], 0);
    const auto reader = StateReader::Open(paths);
    ASSERT_FALSE(reader.ok());
    EXPECT_EQ(reader.error().code, ErrorCode::kCorruption);
    EXPECT_THAT(reader.error().message,
                AllOf(HasSubstr("state file " + paths[i] +
                                " is empty: nothing was ever written to it, or something has "
                                "truncated it; restore it from a copy"),
                      Not(HasSubstr("second head"))));
  }
}

TEST_F(StateHeadsTest, AHeadThatIsLostDuringARunIsNamedOnceAndTheRunContinues) {
  for (const bool second : {false, true}) {
    for (const size_t path : {0, 1}) {
      const auto file = Create(/*durable=*/true, 2);
      std::vector<std::string> warnings;
      file->WarnBy([&warnings](const std::string& line) { warnings.push_back(line); });
      ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
      const std::vector<std::string> paths = Paths(*file);
      const uint64_t at = second ? std::filesystem::file_size(paths[path]) - kBlock : 0;
      Overwrite(paths[path], at, kLost);
      EXPECT_TRUE(file->CheckCommit().ok());
      for (const uint64_t step : {2, 3}) {
        const Status made = file->Commit(WriteTiles(*file, static_cast<uint8_t>(step), step));
        ASSERT_TRUE(made.ok()) << made.error().message;
      }
      EXPECT_THAT(warnings, ElementsAre(AllOf(HasSubstr(paths[path]), HasSubstr("head"))));
      EXPECT_EQ(StateReader::Open(paths, StateLock::kHeld).value()->commit().head.step, 3U);
      Overwrite(paths[path], second ? 0 : std::filesystem::file_size(paths[path]) - kBlock, kLost);
      EXPECT_EQ(file->CheckCommit().error().code, ErrorCode::kCorruption);
    }
  }
}

TEST_F(StateHeadsTest, AHeadThatCannotBeReadDuringARunIsDoneWithout) {
  const auto file = Create(/*durable=*/true, 1);
  ASSERT_TRUE(file->Commit(WriteTiles(*file, 1, 1)).ok());
  FailingReads reads;
  reads.Fail(Paths(*file)[0], 0, kBlock);
  const Status made = file->Commit(WriteTiles(*file, 2, 2));
  ASSERT_TRUE(made.ok()) << made.error().message;
  EXPECT_TRUE(file->CheckCommit().ok());
}

TEST_F(StateHeadsTest, ACommitPlaceThatCannotBeReadLeavesTheOther) {
  const std::vector<std::string> paths = Committed();
  for (const uint64_t place : {0, 1}) {  // sequence numbers 2 and 1
    FailingReads reads;
    reads.Fail(paths[0], geometry_[0].commit_offset[place].value, kBlock);
    auto reader = StateReader::Open(paths);
    ASSERT_TRUE(reader.ok()) << reader.error().message;
    EXPECT_EQ((*reader)->commit().head.step, place == 0 ? 1 : 2);
    EXPECT_THAT((*reader)->notice(),
                AllOf(HasSubstr(paths[0]),
                      HasSubstr(fmt::format("offset {}", geometry_[0].commit_offset[place].value)),
                      HasSubstr("Input/output error"), Not(HasSubstr("was killed"))));
    EXPECT_THAT((*reader)->CheckHeads(), SizeIs(1));
    reader->reset();  // with its locks
    EXPECT_TRUE(Continue(paths).ok());
  }
}

TEST_F(StateHeadsTest, WhereNeitherPlaceCanBeReadTheErrorNamesBoth) {
  const std::vector<std::string> paths = Committed();
  FailingReads reads;
  const auto fail = [&](int place) {
    reads.Fail(paths[0], geometry_[0].commit_offset[place].value, kBlock);
  };
  fail(0);
  Overwrite(paths[0], geometry_[0].commit_offset[1].value, kLost);
  EXPECT_EQ(StateReader::Open(paths).error().code, ErrorCode::kCorruption);
  fail(1);
  const auto reader = StateReader::Open(paths);
  EXPECT_EQ(reader.error().code, ErrorCode::kIo);
  for (const FileOffset place : geometry_[0].commit_offset) {
    EXPECT_THAT(reader.error().message, HasSubstr(fmt::format("offset {}", place.value)));
  }
}

TEST_F(StateHeadsTest, AHeadThatCannotBeReadIsDoneWithout) {
  const std::vector<std::string> paths = Committed();
  for (const bool second : {false, true}) {
    FailingReads reads;
    reads.Fail(paths[1], second ? geometry_[1].second_head().value : 0, kBlock);
    ExpectCommitted(paths, 2, 2);
    EXPECT_THAT(Damages(paths), ElementsAre(AllOf(HasSubstr(paths[1]), HasSubstr("Input/output"))));
    // It is still unreadable after it was written: training goes on with the other one.
    const auto notices = Continue(paths);
    ASSERT_TRUE(notices.ok()) << notices.error().message;
    EXPECT_THAT(*notices, ElementsAre(HasSubstr("cannot be written")));
  }
}

}  // namespace
}  // namespace penstock::offload
