#include "base/folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "base/check.h"

namespace {
/// What file systems are played by the calls below, which stand in for the C library's.
bool no_rename_flags = false;
bool no_links = false;
}  // namespace

extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned flags) noexcept {
  if (no_rename_flags && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

extern "C" int linkat(int from_folder, const char* from, int to_folder, const char* to,
                      int flags) noexcept {
  if (no_links) {
    errno = EPERM;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_linkat, from_folder, from, to_folder, to, flags));
}

namespace penstock {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = FolderEntry::Kind;

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string pattern = testing::TempDir() + "penstock_XXXXXX";
    PENSTOCK_CHECK(::mkdtemp(pattern.data()) != nullptr);
    base_ = pattern;
    fs::create_directory(base_ / "held");
    folder_.emplace(Folder::Open(Path("held")).value());
  }
  ~FolderTest() override { fs::remove_all(base_); }

  std::string Path(const std::string& name) const { return (base_ / name).string(); }
  void Write(const std::string& name, const std::string& text) const {
    std::ofstream(base_ / name) << text;
  }
  std::string Read(const std::string& name) const {
    std::ifstream in(base_ / name);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  }
  const Folder& folder() const { return *folder_; }

  fs::path base_;
  std::optional<Folder> folder_;
};

TEST_F(FolderTest, OpensNothingButRegularFilesAndFolders) {
  Write("outside", "mine");
  fs::create_symlink(Path("outside"), Path("held/link"));
  fs::create_symlink(Path("nowhere"), Path("held/dangling"));
  fs::create_directory_symlink(base_, Path("held/folder-link"));
  ASSERT_EQ(::mkfifo(Path("held/pipe").c_str(), 0600), 0);
  Write("held/file", "text");
  fs::create_directory(base_ / "held/folder");
  for (const char* name : {"link", "dangling", "folder-link", "pipe", "folder"}) {
    for (const int flags :
         {O_RDONLY, O_WRONLY, O_RDWR, O_WRONLY | O_CREAT, O_WRONLY | O_CREAT | O_TRUNC}) {
      const Result<UniqueFd> fd = folder().OpenFile(name, flags);
      ASSERT_FALSE(fd.ok()) << name;
      EXPECT_EQ(fd.error().code, ErrorCode::kCorruption) << fd.error().message;
      EXPECT_THAT(fd.error().message, HasSubstr(Path("held/") + name));
    }
  }
  for (const char* name : {"link", "dangling", "folder-link", "pipe", "file"}) {
    EXPECT_EQ(folder().OpenFolder(name).error().code, ErrorCode::kCorruption) << name;
  }
  EXPECT_TRUE(folder().OpenFile("file", O_RDONLY).ok());
  EXPECT_TRUE(folder().OpenFolder("folder").ok());
  EXPECT_EQ(Read("outside"), "mine");
  EXPECT_FALSE(fs::exists(Path("nowhere")));
}

TEST_F(FolderTest, NamesDoNotLeadOutOfIt) {
  Write("outside", "mine");
  for (const char* name : {"", ".", "..", "../outside", "/etc/passwd", "folder/file"}) {
    EXPECT_EQ(folder().OpenFile(name, O_RDONLY).error().code, ErrorCode::kInvalidArgument) << name;
    EXPECT_EQ(folder().OpenFolder(name).error().code, ErrorCode::kInvalidArgument) << name;
  }
}

TEST_F(FolderTest, StaysTheSameWhenItsPathLeadsElsewhere) {
  Write("held/file", "ours");
  fs::rename(Path("held"), Path("moved"));
  fs::create_directory(base_ / "held");
  Write("held/theirs", "theirs");
  EXPECT_FALSE(folder().IsAt(Path("held")).value());
  EXPECT_TRUE(folder().IsAt(Path("moved")).value());
  EXPECT_THAT(folder().List().value(), ElementsAre("file"));
  ASSERT_TRUE(folder().MakeFolder("made").ok());
  ASSERT_TRUE(folder().RemoveFile("file").ok());
  EXPECT_FALSE(folder().RemoveFile("theirs").ok());
  EXPECT_TRUE(fs::exists(Path("moved/made")));
  EXPECT_EQ(Read("held/theirs"), "theirs");
}

TEST_F(FolderTest, LooksAtANameAndNotAtWhatItsLinkLeadsTo) {
  Write("held/file", "12345");
  fs::create_symlink(Path("held/file"), Path("held/link"));
  const FolderEntry file = folder().Look("file").value();
  EXPECT_EQ(file.kind, Kind::kFile);
  EXPECT_EQ(file.size, 5_B);
  EXPECT_EQ(folder().Look("link").value().kind, Kind::kOther);
  EXPECT_EQ(folder().Look("none").value().kind, Kind::kNone);
  const UniqueFd fd = folder().OpenFile("file", O_RDONLY).value();
  EXPECT_EQ(IdOf(fd.get(), "file").value(), file.id);
}

TEST_F(FolderTest, RenamesOntoNothingAndReplacesFilesOnly) {
  Write("held/a", "a");
  Write("held/b", "b");
  fs::create_directory(base_ / "held/empty");
  fs::create_directory(base_ / "held/other");
  fs::create_symlink(Path("held/b"), Path("held/link"));
  EXPECT_FALSE(folder().Rename("a", "b").ok());
  EXPECT_FALSE(folder().Rename("other", "empty").ok());
  EXPECT_FALSE(folder().Replace("a", "link").ok());
  EXPECT_FALSE(folder().Replace("a", "empty").ok());
  EXPECT_THAT(folder().List().value(), ElementsAre("a", "b", "empty", "link", "other"));
  ASSERT_TRUE(folder().Replace("a", "b").ok());
  EXPECT_EQ(Read("held/b"), "a");
  ASSERT_TRUE(folder().Rename("b", "c").ok());
  ASSERT_TRUE(folder().Rename("other", "named").ok());
  EXPECT_THAT(folder().List().value(), ElementsAre("c", "empty", "link", "named"));
}

TEST_F(FolderTest, RenamesOntoNothingOnFileSystemsThatHaveNoSuchRenameOrNoLinks) {
  no_rename_flags = true;
  for (const bool links : {true, false}) {
    no_links = !links;
    Write("held/a", "a");
    Write("held/b", "b");
    fs::create_directory(base_ / "held/empty");
    fs::create_directory(base_ / "held/other");
    for (const char* from : {"a", "other"}) {
      for (const char* to : {"b", "empty"}) {
        const Status renamed = folder().Rename(from, to);
        ASSERT_FALSE(renamed.ok()) << from << " to " << to << ", links: " << links;
        EXPECT_EQ(renamed.error().code, ErrorCode::kInvalidArgument) << renamed.error().message;
      }
    }
    EXPECT_EQ(Read("held/b"), "b");
    EXPECT_TRUE(folder().Rename("a", "c").ok());
    EXPECT_TRUE(folder().Rename("other", "named").ok());
    EXPECT_THAT(folder().List().value(), ElementsAre("b", "c", "empty", "named"));
    for (const char* name : {"b", "c", "empty", "named"}) fs::remove(base_ / "held" / name);
  }
  no_rename_flags = false;
  no_links = false;
}

TEST_F(FolderTest, RemovesAFileOnlyAsLongAsItIsTheOneThatWasLookedAt) {
  Write("held/a", "a");
  const FileId looked_at = folder().Look("a").value().id;
  fs::rename(Path("held/a"), Path("held/aside"));
  EXPECT_EQ(folder().RemoveFile("a", looked_at).error().code, ErrorCode::kNotFound);
  Write("held/a", "another");
  EXPECT_EQ(folder().RemoveFile("a", looked_at).error().code, ErrorCode::kNotFound);
  EXPECT_EQ(Read("held/a"), "another");
  EXPECT_TRUE(folder().RemoveFile("aside", looked_at).ok());
  EXPECT_THAT(folder().List().value(), ElementsAre("a"));
}

TEST_F(FolderTest, WhetherAPathLeadsToItIsAnErrorWhereThatCannotBeSeen) {
  Write("file", "x");
  for (const char* name : {"none", "none/none", "file/none", "file"}) {
    EXPECT_FALSE(folder().IsAt(Path(name)).value()) << name;
  }
  fs::create_symlink(Path("loop"), Path("loop"));
  EXPECT_EQ(folder().IsAt(Path("loop/held")).error().code, ErrorCode::kIo);
}

TEST_F(FolderTest, OfWhatIsNoFolderIsNotFound) {
  Write("file", "x");
  for (const char* name : {"file", "none"}) {
    EXPECT_EQ(Folder::Open(Path(name)).error().code, ErrorCode::kNotFound) << name;
  }
}

TEST_F(FolderTest, AFileIsOpenedAtAPathButNotThroughALinkOfItsName) {
  Write("held/file", "text");
  fs::create_symlink(Path("held/file"), Path("held/link"));
  fs::create_directory_symlink(Path("held"), Path("way"));
  EXPECT_TRUE(OpenFileAt(Path("way/file"), O_RDONLY).ok());
  EXPECT_EQ(OpenFileAt(Path("way/link"), O_RDONLY).error().code, ErrorCode::kCorruption);
  EXPECT_EQ(OpenFileAt(Path("none/file"), O_RDONLY).error().code, ErrorCode::kNotFound);
}

TEST_F(FolderTest, AFileIsOpenedAtAPathThroughAFolderThatCanOnlyBeSearched) {
  Write("held/file", "text");
  fs::permissions(base_, fs::perms{0755});
  fs::permissions(base_ / "held", fs::perms{0711});
  const uid_t user = ::geteuid();
  constexpr uid_t kNobody = 65534;
  if (::seteuid(kNobody) != 0) GTEST_SKIP() << "only root can become somebody else";
  const bool readable = Folder::Open(Path("held")).ok();
  const Result<UniqueFd> file = OpenFileAt(Path("held/file"), O_RDONLY);
  PENSTOCK_CHECK(::seteuid(user) == 0);
  EXPECT_FALSE(readable);
  EXPECT_TRUE(file.ok()) << file.error().message;
}

TEST_F(FolderTest, FoldersAreMadeNameByName) {
  EXPECT_THAT(MakeFolders(Path("a/../b/c")).value(),
              ElementsAre(Path("a/../b/c"), Path("a/../b"), Path("a")));
  EXPECT_TRUE(fs::is_directory(Path("a/../b/c")));
  EXPECT_THAT(MakeFolders(Path("a/../b/c/")).value(), ElementsAre());
  Write("file", "x");
  EXPECT_FALSE(MakeFolders(Path("file/folder")).ok());
  EXPECT_EQ(SplitPath("run"), std::pair(std::string("."), std::string("run")));
  EXPECT_EQ(SplitPath("/a/run"), std::pair(std::string("/a"), std::string("run")));
}

}  // namespace
}  // namespace penstock
