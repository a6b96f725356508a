#include "base/file_extents.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fs.h>
#include <sys/ioctl.h>

#include "tests/temp_folder.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(FileExtents, HolesAreWhatLiesBetweenExtentsUpToASize) {
  const FileExtents extents{.reserved = {{FileOffset{4096}, 8_KiB}, {FileOffset{16384}, 4_KiB}}};
  EXPECT_THAT(HolesIn(extents, 24_KiB),
              ElementsAre(FileRange{FileOffset{0}, 4_KiB}, FileRange{FileOffset{12288}, 4_KiB},
                          FileRange{FileOffset{20480}, 4_KiB}));
  EXPECT_THAT(HolesIn(extents, 14_KiB),
              ElementsAre(FileRange{FileOffset{0}, 4_KiB}, FileRange{FileOffset{12288}, 2_KiB}));
  EXPECT_THAT(HolesIn(extents, 2_KiB), ElementsAre(FileRange{FileOffset{0}, 2_KiB}));
  EXPECT_THAT(HolesIn(extents, 0_B), IsEmpty());
  EXPECT_THAT(HolesIn({}, 4_KiB), ElementsAre(FileRange{FileOffset{0}, 4_KiB}));
}

class FileExtentsOnDrive : public ::testing::Test {
 protected:
  UniqueFd Open(const std::string& name) const {
    return UniqueFd(::open(folder_.Path(name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  }

  const TempFolder folder_;
};

TEST_F(FileExtentsOnDrive, ReservedBlocksCountBeforeTheyAreWritten) {
  const UniqueFd file = Open("file");
  ASSERT_EQ(::ftruncate(file.get(), 4 << 20), 0);
  // More extents than one call of the kernel returns.
  for (off_t i = 0; i < 300; ++i) {
    ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, i * 8192, 4096), 0);
  }
  const auto extents = ReadExtents(file.get());
  if (!extents.ok()) GTEST_SKIP() << extents.error().message;
  EXPECT_EQ(extents->reserved.size(), 300U);
  EXPECT_EQ(extents->shared, 0_B);
  EXPECT_EQ(HolesIn(*extents, Bytes{300 * 8192}).size(), 300U);
}

TEST_F(FileExtentsOnDrive, BlocksOfACloneAreShared) {
  const UniqueFd file = Open("file");
  const std::string bytes(64 << 10, 'x');
  ASSERT_EQ(::pwrite(file.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  const UniqueFd clone = Open("clone");
  if (::ioctl(clone.get(), FICLONE, file.get()) != 0) GTEST_SKIP() << "no reflinks here";
  ASSERT_EQ(::fsync(clone.get()), 0);
  EXPECT_EQ(ReadExtents(file.get())->shared, 64_KiB);
}

}  // namespace
}  // namespace penstock
