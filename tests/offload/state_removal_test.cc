#include "offload/state_removal.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>

#include <filesystem>
#include <fstream>

#include "offload/state_file.h"
#include "offload/state_format.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

class StateRemovalTest : public FolderTest {
 protected:
  /// A committed state that is not open.
  void SetUp() override {
    FolderTest::SetUp();
    const ShardLayout layout = SmallLayout(DType::kFloat32);
    const auto engine = std::move(aio::CreateEngine({.kind = aio::EngineKind::kThreads})).value();
    aio::Engine* const engines[] = {engine.get()};
    const auto file = StateFile::Create(layout, {.folders = {folder_}}, engines).value();
    CommitRecord record;
    record.tiles.resize(layout.tiles.size());
    ASSERT_TRUE(file->Commit(record).ok());
    path_ = file->Shares().front().path;
    uuid_ = ToString(file->uuid());
  }

  void ExpectRefused(const std::string& path, const std::string& uuid, ErrorCode code,
                     const std::string& part) const {
    const auto opened = RemovableState::Open(path, uuid);
    ASSERT_FALSE(opened.ok());
    EXPECT_EQ(opened.error().code, code) << opened.error().message;
    EXPECT_NE(opened.error().message.find(part), std::string::npos) << opened.error().message;
  }

  std::string path_;
  std::string uuid_;
};

TEST_F(StateRemovalTest, AFileOfTheStateIsRemoved) {
  auto state = RemovableState::Open(path_, uuid_);
  ASSERT_TRUE(state.ok()) << state.error().message;
  EXPECT_EQ(state->size().value, std::filesystem::file_size(path_));
  ASSERT_TRUE(state->Remove().ok());
  EXPECT_FALSE(std::filesystem::exists(path_));
  ExpectRefused(path_, uuid_, ErrorCode::kNotFound, path_);
}

TEST_F(StateRemovalTest, AFileOfAnotherStateIsRefused) {
  const std::string other(32, '0');
  ExpectRefused(path_, other, ErrorCode::kCorruption, uuid_);
  ExpectRefused(path_, other, ErrorCode::kCorruption, other);
}

TEST_F(StateRemovalTest, AFileThatIsNoStateIsRefused) {
  const std::string path = folder_ / "notes.txt";
  std::ofstream(path) << "short";
  ExpectRefused(path, uuid_, ErrorCode::kCorruption, "too short");
  std::ofstream(path) << std::string(8192, 'x');
  ExpectRefused(path, uuid_, ErrorCode::kCorruption, "not removed");
  ExpectRefused(folder_, uuid_, ErrorCode::kCorruption, "not a regular file");
}

TEST_F(StateRemovalTest, AnUnfinishedFileIsKnownByAllOfItsUuid) {
  const std::string path = folder_ / ("penstock-" + uuid_ + ".1.state");
  std::ofstream(path) << std::string(8192, '\0');
  ExpectRefused(path, "", ErrorCode::kCorruption, "not removed");
  ExpectRefused(path, uuid_.substr(0, 4), ErrorCode::kCorruption, "not removed");
  EXPECT_TRUE(RemovableState::Open(path, uuid_).ok());
}

TEST_F(StateRemovalTest, AnUnfinishedFileIsKnownByItsMark) {
  const Uuid uuid = {1, 2, 3};
  const std::vector<std::byte> mark = EncodeUnfinishedMark(uuid);
  std::ofstream(path_).write(reinterpret_cast<const char*>(mark.data()),
                             static_cast<std::streamsize>(mark.size()));
  ExpectRefused(path_, uuid_, ErrorCode::kCorruption, ToString(uuid));
  EXPECT_TRUE(RemovableState::Open(path_, ToString(uuid)).ok());
}

TEST_F(StateRemovalTest, ALinkIsRefused) {
  const std::string link = folder_ / "link";
  std::filesystem::create_symlink(path_, link);
  ExpectRefused(link, uuid_, ErrorCode::kCorruption, "not a regular file");
}

TEST_F(StateRemovalTest, AFileThatTookThePlaceOfTheStateStays) {
  auto state = RemovableState::Open(path_, uuid_);
  ASSERT_TRUE(state.ok()) << state.error().message;
  std::filesystem::rename(path_, path_ + ".aside");
  std::ofstream(path_) << "mine";
  EXPECT_FALSE(state->Remove().ok());
  EXPECT_TRUE(std::filesystem::exists(path_));
}

TEST_F(StateRemovalTest, AFileThatIsReadIsRefusedUntilItsReaderIsGone) {
  {
    const UniqueFd reader(::open(path_.c_str(), O_RDONLY));
    ASSERT_EQ(::flock(reader.get(), LOCK_SH), 0);
    ExpectRefused(path_, uuid_, ErrorCode::kUnavailable, "in use");
  }
  EXPECT_TRUE(RemovableState::Open(path_, uuid_).ok());
}

}  // namespace
}  // namespace penstock::offload
