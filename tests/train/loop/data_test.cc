#include "train/loop/data.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "base/random.h"
#include "base/unique_fd.h"
#include "tests/temp_folder.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::ElementsAreArray;

std::vector<int32_t> ReadAll(TokenData& data, uint64_t begin, uint64_t count,
                             uint64_t vocabulary = 256) {
  std::vector<int32_t> tokens(count, -1);
  const Status status = data.Read(begin, vocabulary, tokens);
  EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
  return tokens;
}

std::unique_ptr<TokenData> Open(const std::string& path) { return TokenData::Open(path).value(); }

std::string LittleEndian16(const std::vector<uint16_t>& values) {
  std::string bytes;
  for (const uint16_t value : values) {
    bytes += static_cast<char>(value & 0xff);
    bytes += static_cast<char>(value >> 8);
  }
  return bytes;
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(TokenData, TextIsItsBytes) {
  const TempFolder folder;
  const auto data = Open(folder.Write("a.txt", "hi\xff\n"));
  EXPECT_EQ(data->size(), 4u);
  EXPECT_EQ(data->path(), folder.Path("a.txt"));
  EXPECT_THAT(ReadAll(*data, 0, 4), ElementsAre('h', 'i', 255, '\n'));
  EXPECT_THAT(ReadAll(*data, 1, 2), ElementsAre('i', 255));
  EXPECT_THAT(ReadAll(*data, 4, 0), ElementsAre());
}

TEST(TokenData, BinIsLittleEndianUint16) {
  const TempFolder folder;
  const auto data = Open(folder.Write("a.bin", LittleEndian16({1, 256, 50256, 65535})));
  EXPECT_EQ(data->size(), 4u);
  EXPECT_THAT(ReadAll(*data, 0, 4, 65536), ElementsAre(1, 256, 50256, 65535));
  EXPECT_THAT(ReadAll(*data, 2, 1, 65536), ElementsAre(50256));
}

TEST(TokenData, U32IsLittleEndianUint32) {
  const TempFolder folder;
  const auto data = Open(folder.Write("a.u32", std::string("\x01\x02\x03\x04\xff\xff\xff\x7f", 8)));
  EXPECT_EQ(data->size(), 2u);
  EXPECT_THAT(ReadAll(*data, 0, 2, uint64_t{1} << 31), ElementsAre(0x04030201, 0x7fffffff));
}

TEST(TokenData, ReadsLongerThanItsBufferAreWhole) {
  const TempFolder folder;
  std::vector<uint16_t> values(100'003);
  std::iota(values.begin(), values.end(), uint16_t{0});
  const auto data = Open(folder.Write("a.bin", LittleEndian16(values)));
  EXPECT_THAT(ReadAll(*data, 1, values.size() - 1, 65536),
              ElementsAreArray(values.begin() + 1, values.end()));
}

TEST(TokenData, PositionsBeyondFourGibibytesAreRead) {
  const TempFolder folder;
  const std::string path = folder.Write("a.bin", "");
  const uint64_t tokens = (uint64_t{5} << 30) / 2;
  {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY));
    ASSERT_EQ(::ftruncate(fd.get(), static_cast<off_t>(tokens * 2)), 0);
    ASSERT_EQ(::pwrite(fd.get(), "\x39\x30", 2, static_cast<off_t>(tokens * 2 - 2)), 2);
  }
  const auto data = Open(path);
  EXPECT_EQ(data->size(), tokens);
  EXPECT_THAT(ReadAll(*data, tokens - 2, 2, 65536), ElementsAre(0, 12345));
}

TEST(TokenData, FolderJoinsFilesInPathOrderEachWithAZeroByte) {
  const TempFolder folder;
  folder.Write("b/z.h", "3");
  folder.Write("b.txt", "2");
  folder.Write("a/deep/er/x", "1");
  folder.Write("c.bin", "45");
  const auto data = Open(folder.Path());
  // '.' sorts before '/'. A .bin in a folder is bytes like any other.
  EXPECT_THAT(ReadAll(*data, 0, data->size()), ElementsAre('1', 0, '2', 0, '3', 0, '4', '5', 0));
}

TEST(TokenData, FolderLeavesOutHiddenFilesAndLinks) {
  const TempFolder folder;
  folder.Write("kept", "k");
  folder.Write(".hidden", "h");
  folder.Write(".git/objects", "h");
  folder.Write("sub/.hidden", "h");
  const TempFolder elsewhere;
  elsewhere.Write("x", "x");
  std::filesystem::create_symlink(elsewhere.Path("x"), folder.Path("link"));
  std::filesystem::create_directory_symlink(elsewhere.Path(), folder.Path("folder_link"));
  ASSERT_EQ(::mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  const auto data = Open(folder.Path());
  EXPECT_THAT(ReadAll(*data, 0, data->size()), ElementsAre('k', 0));
}

TEST(TokenData, FolderItselfMayBeHiddenOrALink) {
  const TempFolder folder;
  folder.Write(".data/x", "x");
  std::filesystem::create_directory_symlink(folder.Path(".data"), folder.Path("link"));
  EXPECT_EQ(Open(folder.Path(".data"))->size(), 2u);
  EXPECT_EQ(Open(folder.Path("link"))->size(), 2u);
}

TEST(TokenData, AnyRangeOfAFolderIsThatRangeOfTheWhole) {
  const TempFolder folder;
  for (const auto& [name, text] : {std::pair("a", "abc"), std::pair("b", ""), std::pair("c", ""),
                                   std::pair("d", "d"), std::pair("e", "efghi")}) {
    folder.Write(name, text);
  }
  const auto data = Open(folder.Path());
  const std::vector<int32_t> whole = ReadAll(*data, 0, data->size());
  ASSERT_THAT(whole, ElementsAre('a', 'b', 'c', 0, 0, 0, 'd', 0, 'e', 'f', 'g', 'h', 'i', 0));
  for (size_t begin = 0; begin <= whole.size(); ++begin) {
    for (size_t end = begin; end <= whole.size(); ++end) {
      EXPECT_THAT(ReadAll(*data, begin, end - begin),
                  ElementsAreArray(whole.begin() + static_cast<std::ptrdiff_t>(begin),
                                   whole.begin() + static_cast<std::ptrdiff_t>(end)));
    }
  }
}

TEST(TokenData, FolderKeepsAtMostOneFileOpen) {
  const TempFolder folder;
  for (int i = 0; i < 300; ++i) folder.Write(fmt::format("{}/{}", i % 7, i), "text");
  const size_t before = OpenDescriptors();
  const auto data = Open(folder.Path());
  EXPECT_EQ(OpenDescriptors(), before);
  EXPECT_EQ(ReadAll(*data, 0, data->size()).size(), 1500u);
  EXPECT_LE(OpenDescriptors(), before + 1);
}

TEST(TokenDataErrors, MissingPathIsNotFound) {
  const TempFolder folder;
  EXPECT_TRUE(FailsWith(TokenData::Open(folder.Path("no")), ErrorCode::kNotFound,
                        {folder.Path("no"), "No such file"}));
}

TEST(TokenDataErrors, EmptyFileIsRefused) {
  const TempFolder folder;
  for (const char* name : {"a.txt", "a.bin", "a.u32"}) {
    const std::string path = folder.Write(name, "");
    EXPECT_TRUE(FailsWith(TokenData::Open(path), ErrorCode::kInvalidArgument, {path, "empty"}));
  }
}

TEST(TokenDataErrors, OddSizesAreRefused) {
  const TempFolder folder;
  const std::string bin = folder.Write("a.bin", "123");
  EXPECT_TRUE(
      FailsWith(TokenData::Open(bin), ErrorCode::kInvalidArgument, {bin, "3 bytes", "uint16"}));
  const std::string u32 = folder.Write("a.u32", "123456");
  EXPECT_TRUE(
      FailsWith(TokenData::Open(u32), ErrorCode::kInvalidArgument, {u32, "6 bytes", "uint32"}));
}

TEST(TokenDataErrors, FolderWithoutTextIsRefused) {
  const TempFolder folder;
  EXPECT_TRUE(FailsWith(TokenData::Open(folder.Path()), ErrorCode::kInvalidArgument,
                        {folder.Path(), "no file"}));
  folder.Write("sub/a", "");
  EXPECT_TRUE(FailsWith(TokenData::Open(folder.Path()), ErrorCode::kInvalidArgument,
                        {folder.Path(), "empty"}));
}

TEST(TokenDataErrors, SizesWhoseSumHasNoNumberAreRefused) {
  // Files with holes: the usual file systems of drives have none as large.
  const std::string folder = fmt::format("/dev/shm/penstock-data-test-{}", ::getpid());
  std::filesystem::create_directory(folder);
  std::error_code error;
  for (int i = 0; i < 4 && !error; ++i) {
    const std::string path = fmt::format("{}/{}", folder, i);
    std::ofstream(path).close();
    std::filesystem::resize_file(path, uintmax_t{1} << 62, error);
  }
  const auto data = TokenData::Open(folder);
  std::filesystem::remove_all(folder);
  if (error) GTEST_SKIP() << "no file of 2^62 bytes: " << error.message();
  EXPECT_TRUE(FailsWith(data, ErrorCode::kInvalidArgument, {folder, "2^63"}));
}

TEST(TokenDataErrors, APipeIsRefusedAndNotWaitedFor) {
  const TempFolder folder;
  ASSERT_EQ(::mkfifo(folder.Path("pipe").c_str(), 0600), 0);
  EXPECT_TRUE(FailsWith(TokenData::Open(folder.Path("pipe")), ErrorCode::kInvalidArgument,
                        {folder.Path("pipe"), "not a regular file"}));
}

TEST(TokenDataErrors, TokenOutsideTheVocabularyIsNamed) {
  const TempFolder folder;
  std::vector<uint16_t> values(40'000, 7);
  values[35'000] = 50257;
  const auto data = Open(folder.Write("a.bin", LittleEndian16(values)));
  std::vector<int32_t> tokens(39'000);
  EXPECT_TRUE(FailsWith(data->Read(1'000, 50257, tokens), ErrorCode::kInvalidArgument,
                        {"token 50257", "position 35000", folder.Path("a.bin"), "of 50257"}));
  EXPECT_TRUE(data->Read(1'000, 50258, tokens).ok());
  EXPECT_TRUE(data->Read(0, 50257, std::span(tokens).first(35'000)).ok());
}

TEST(TokenDataErrors, TokenBeyondInt32IsOutsideEveryVocabulary) {
  const TempFolder folder;
  const auto data = Open(folder.Write("a.u32", "\xff\xff\xff\xff"));
  std::vector<int32_t> tokens(1);
  EXPECT_TRUE(FailsWith(data->Read(0, uint64_t{1} << 31, tokens), ErrorCode::kInvalidArgument,
                        {"token 4294967295"}));
}

TEST(TokenDataErrors, TokenInAFolderIsNamedWithItsOwnFile) {
  const TempFolder folder;
  folder.Write("a", "aaaa");
  folder.Write("b", "ab\xc3");
  const auto data = Open(folder.Path());
  std::vector<int32_t> tokens(8);
  EXPECT_TRUE(FailsWith(data->Read(0, 128, tokens), ErrorCode::kInvalidArgument,
                        {"token 195", "position 2 of " + folder.Path("b")}));
}

TEST(TokenDataErrors, DataThatChangesUnderARunIsAnError) {
  const TempFolder folder;
  folder.Write("f/a", "aaaa");
  folder.Write("f/b", "bbbb");
  const auto data = Open(folder.Path("f"));
  folder.Write("f/b", "bb");
  std::vector<int32_t> tokens(10);
  EXPECT_TRUE(FailsWith(data->Read(0, 256, tokens), ErrorCode::kIo,
                        {folder.Path("f/b"), "must not change"}));
  const auto file = Open(folder.Write("c", "cccc"));
  folder.Write("c", "cc");
  EXPECT_TRUE(FailsWith(file->Read(0, 256, std::span(tokens).first(4)), ErrorCode::kIo,
                        {folder.Path("c"), "offset 2", "shrunk"}));
}

TEST(RowOrder, SequentialIsThePositionModuloTheRows) {
  const RowOrder order(DataOrder::kSequential, 5, 1);
  for (uint64_t position = 0; position < 17; ++position) EXPECT_EQ(order(position), position % 5);
}

TEST(RowOrder, ShuffleIsTheDocumentedPermutationOfEachEpoch) {
  constexpr uint64_t kRows = 1000;
  const RowOrder order(DataOrder::kShuffle, kRows, 42);
  for (uint64_t epoch = 0; epoch < 3; ++epoch) {
    const Permutation permutation(42, (uint64_t{1} << 32) + epoch, kRows);
    std::vector<uint64_t> rows;
    for (uint64_t i = 0; i < kRows; ++i) {
      rows.push_back(order(epoch * kRows + i));
      EXPECT_EQ(rows.back(), permutation(i));
    }
    std::sort(rows.begin(), rows.end());
    for (uint64_t i = 0; i < kRows; ++i) ASSERT_EQ(rows[i], i);
  }
}

TEST(RowOrder, EpochsAndSeedsDiffer) {
  const RowOrder order(DataOrder::kShuffle, 1000, 1);
  const RowOrder other(DataOrder::kShuffle, 1000, 2);
  int same_epoch = 0;
  int same_seed = 0;
  for (uint64_t i = 0; i < 1000; ++i) {
    same_epoch += order(i) == order(1000 + i);
    same_seed += order(i) == other(i);
  }
  // A random permutation has one fixed point on average.
  EXPECT_LT(same_epoch, 20);
  EXPECT_LT(same_seed, 20);
}

BatchReader MakeReader(const TempFolder& folder, uint64_t tokens, uint64_t sequence,
                       DataOrder order) {
  std::vector<uint16_t> values(tokens);
  std::iota(values.begin(), values.end(), uint16_t{0});
  auto data = Open(folder.Write("rows.bin", LittleEndian16(values)));
  return BatchReader::Create(std::move(data), order, 3, sequence, 65536).value();
}

TEST(BatchReader, RowsNeedOneTokenMoreThanTheirInputs) {
  const TempFolder folder;
  EXPECT_EQ(MakeReader(folder, 9, 4, DataOrder::kSequential).rows(), 2u);
  EXPECT_EQ(MakeReader(folder, 8, 4, DataOrder::kSequential).rows(), 1u);
  EXPECT_EQ(MakeReader(folder, 5, 4, DataOrder::kSequential).rows(), 1u);
}

TEST(BatchReader, TargetsAreInputsShiftedByOne) {
  const TempFolder folder;
  BatchReader reader = MakeReader(folder, 13, 4, DataOrder::kSequential);
  std::vector<int32_t> inputs(8);
  std::vector<int32_t> targets(8);
  ASSERT_TRUE(reader.Read(0, 2, inputs, targets).ok());
  EXPECT_THAT(inputs, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(targets, ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  // Three rows: the second micro-batch of two ends in the next epoch.
  ASSERT_TRUE(reader.Read(2, 2, inputs, targets).ok());
  EXPECT_THAT(inputs, ElementsAre(8, 9, 10, 11, 0, 1, 2, 3));
  EXPECT_THAT(targets, ElementsAre(9, 10, 11, 12, 1, 2, 3, 4));
}

TEST(BatchReader, ShuffledMicroBatchesTakeTheRowsOfTheOrder) {
  const TempFolder folder;
  BatchReader reader = MakeReader(folder, 701, 7, DataOrder::kShuffle);
  ASSERT_EQ(reader.rows(), 100u);
  const RowOrder order(DataOrder::kShuffle, 100, 3);
  std::vector<int32_t> inputs(21);
  std::vector<int32_t> targets(21);
  for (const uint64_t index : {0, 5, 33, 40}) {
    ASSERT_TRUE(reader.Read(3 * index, 3, inputs, targets).ok());
    for (uint64_t i = 0; i < 21; ++i) {
      const uint64_t token = order(index * 3 + i / 7) * 7 + i % 7;
      EXPECT_EQ(inputs[i], static_cast<int32_t>(token));
      EXPECT_EQ(targets[i], static_cast<int32_t>(token + 1));
    }
  }
}

TEST(BatchReader, DataShorterThanARowIsRefused) {
  const TempFolder folder;
  const std::string path = folder.Write("a.txt", "abcd");
  EXPECT_TRUE(FailsWith(BatchReader::Create(Open(path), DataOrder::kShuffle, 1, 4, 256),
                        ErrorCode::kInvalidArgument, {path, "4 tokens", "5"}));
  EXPECT_TRUE(FailsWith(BatchReader::Create(Open(path), DataOrder::kShuffle, 1, 0, 256),
                        ErrorCode::kInvalidArgument, {"sequence length"}));
}

TEST(BatchReader, ErrorsOfTheDataPassThrough) {
  const TempFolder folder;
  const std::string path = folder.Write("a.txt", "abcd\xf0zzzz");
  auto reader = BatchReader::Create(Open(path), DataOrder::kSequential, 1, 4, 128).value();
  std::vector<int32_t> inputs(4);
  std::vector<int32_t> targets(4);
  EXPECT_TRUE(FailsWith(reader.Read(0, 1, inputs, targets), ErrorCode::kInvalidArgument,
                        {"token 240", "position 4", path}));
}

}  // namespace
}  // namespace penstock::train
