#include "train/weights/safetensors.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <thread>

#include "tests/temp_folder.h"
#include "train/weights/safetensors_header.h"
#include "train/weights/safetensors_writer.h"

namespace penstock::train {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::string LengthField(uint64_t length) {
  std::string bytes(8, '\0');
  for (size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(length >> (8 * i));
  return bytes;
}

/// A file's bytes from its header and data as given, whether they fit or not.
std::string FileBytes(const std::string& header, const std::string& data) {
  return LengthField(header.size()) + header + data;
}

std::string BytesOf(const std::vector<float>& values) {
  std::string bytes(values.size() * sizeof(float), '\0');
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

class Safetensors : public testing::Test {
 protected:
  std::string Write(const std::string& header, const std::string& data) const {
    return folder_.Write("m.safetensors", FileBytes(header, data));
  }
  /// That a file with this header and data is refused for what `parts` say.
  testing::AssertionResult Refused(const std::string& header, size_t data_bytes,
                                   std::vector<std::string> parts) const {
    const std::string path = Write(header, std::string(data_bytes, 'x'));
    parts.push_back(path);
    return FailsWith(SafetensorsReader::Open(path), ErrorCode::kCorruption, parts);
  }
  std::vector<float> ReadAll(const SafetensorsReader& reader, const std::string& name) const {
    std::vector<float> values(reader.entries().at(name).elements);
    const Status status = reader.Read(name, 0, values);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    return values;
  }

  TempFolder folder_;
};

TEST_F(Safetensors, AHandMadeFileReadsAsTheFormatSays) {
  // Unaligned on purpose: the header has 257 bytes, so that the fp32 data begin at an odd offset.
  std::string header =
      R"({"b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},)"
      R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
      R"("c":{"dtype":"F16","shape":[],"data_offsets":[20,22]},"__metadata__":{"format":"pt"}})";
  header.resize(257, ' ');
  const std::string data = std::string("\x80\x3f\x00\xc0", 4) +
                           BytesOf({1.5f, -2.0f, 0x1p-149f, 3e38f}) + std::string("\x00\x3c", 2);
  const SafetensorsReader reader = SafetensorsReader::Open(Write(header, data)).value();

  EXPECT_EQ(reader.entries().size(), 3u);
  const SafetensorsEntry& b = reader.entries().at("b");
  EXPECT_EQ(b.dtype, DType::kFloat32);
  EXPECT_THAT(b.shape, ElementsAre(2, 2));
  EXPECT_EQ(b.elements, 4u);
  EXPECT_EQ(b.file_offset, 8u + 257u + 4u);
  EXPECT_EQ(reader.entries().at("c").elements, 1u);
  EXPECT_THAT(ReadAll(reader, "a"), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(ReadAll(reader, "b"), ElementsAre(1.5f, -2.0f, 0x1p-149f, 3e38f));
  EXPECT_THAT(ReadAll(reader, "c"), ElementsAre(1.0f));
  std::vector<float> part(2);
  ASSERT_TRUE(reader.Read("b", 1, part).ok());
  EXPECT_THAT(part, ElementsAre(-2.0f, 0x1p-149f));
}

TEST_F(Safetensors, EmptyTensorsAndEmptyFilesAreValid) {
  const auto reader =
      SafetensorsReader::Open(Write(R"({"x":{"dtype":"F32","shape":[0,7],"data_offsets":[0,0]},)"
                                    R"("y":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("z":{"dtype":"F16","shape":[0],"data_offsets":[4,4]}})",
                                    "1234"));
  ASSERT_TRUE(reader.ok()) << reader.error().message;
  EXPECT_EQ(reader->entries().at("x").elements, 0u);
  EXPECT_TRUE(reader->Read("x", 0, {}).ok());
  EXPECT_TRUE(reader->Read("z", 0, {}).ok());
  EXPECT_TRUE(SafetensorsReader::Open(Write("{}", "")).ok());
}

TEST_F(Safetensors, OtherDtypesAreListedAndRefusedWhenRead) {
  const std::string path = Write(R"({"mask":{"dtype":"BOOL","shape":[3],"data_offsets":[0,3]},)"
                                 R"("new":{"dtype":"F4","shape":[4],"data_offsets":[3,5]},)"
                                 R"("long":{"dtype":"I64","shape":[1],"data_offsets":[5,13]}})",
                                 "1234567890123");
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  EXPECT_FALSE(reader.entries().at("mask").dtype.has_value());
  std::vector<float> values(1);
  for (const auto& [name, stored] :
       {std::pair("mask", "BOOL"), std::pair("new", "F4"), std::pair("long", "I64")}) {
    EXPECT_TRUE(FailsWith(reader.Read(name, 0, values), ErrorCode::kInvalidArgument,
                          {path, name, stored, "F32, BF16 and F16"}));
  }
  EXPECT_TRUE(FailsWith(reader.Read("absent", 0, values), ErrorCode::kInvalidArgument,
                        {path, "no tensor absent"}));
}

TEST_F(Safetensors, DataBeyondFourGibibytesAreRead) {
  const uint64_t elements = (uint64_t{5} << 30) / 2;
  const std::string path = Write(
      json{{"x", {{"dtype", "BF16"}, {"shape", {elements}}, {"data_offsets", {0, 2 * elements}}}}}
          .dump(),
      "");
  const auto header_end = static_cast<off_t>(std::filesystem::file_size(path));
  {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY));
    const auto end = header_end + static_cast<off_t>(2 * elements);
    ASSERT_EQ(::ftruncate(fd.get(), end), 0);
    ASSERT_EQ(::pwrite(fd.get(), "\x80\x3f", 2, end - 2), 2);
  }
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> values(2, -1);
  ASSERT_TRUE(reader.Read("x", elements - 2, values).ok());
  EXPECT_THAT(values, ElementsAre(0.0f, 1.0f));
}

TEST_F(Safetensors, AnyNumberOfThreadsMayRead) {
  std::vector<float> values(1000);
  std::iota(values.begin(), values.end(), 0.0f);
  auto writer =
      SafetensorsWriter::Create(folder_.Path("m"), DType::kBFloat16, {{"w", {1000}}}).value();
  ASSERT_TRUE(writer.Append(values).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const SafetensorsReader reader = SafetensorsReader::Open(folder_.Path("m")).value();
  std::vector<std::thread> threads;
  std::array<int, 4> wrong = {};
  for (int& count : wrong) {
    threads.emplace_back([&reader, &count] {
      std::vector<float> read(1);
      for (uint64_t i = 0; i < 256; ++i) {
        count += !reader.Read("w", i, read).ok() || read[0] != static_cast<float>(i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(wrong, ElementsAre(0, 0, 0, 0));
}

TEST_F(Safetensors, MissingFilesAndFoldersAreNamed) {
  EXPECT_TRUE(FailsWith(SafetensorsReader::Open(folder_.Path("no")), ErrorCode::kNotFound,
                        {folder_.Path("no")}));
  EXPECT_TRUE(FailsWith(SafetensorsReader::Open(folder_.Path()), ErrorCode::kInvalidArgument,
                        {folder_.Path(), "a folder"}));
}

TEST_F(Safetensors, LengthFieldsThatCannotBeAreRefused) {
  const auto refused = [&](const std::string& bytes, std::vector<std::string> parts) {
    const std::string path = folder_.Write("m.safetensors", bytes);
    parts.push_back(path);
    return FailsWith(SafetensorsReader::Open(path), ErrorCode::kCorruption, parts);
  };
  EXPECT_TRUE(refused("", {"0 bytes"}));
  EXPECT_TRUE(refused("1234567", {"7 bytes"}));
  EXPECT_TRUE(refused(LengthField(3) + "{}", {"header of 3 bytes", "cut off"}));
  EXPECT_TRUE(refused(LengthField(100'000'001) + "{}", {"100000001", "limit"}));
  EXPECT_TRUE(refused(LengthField(std::numeric_limits<uint64_t>::max()) + "{}", {"limit"}));
}

TEST_F(Safetensors, HeadersThatAreNoObjectAreRefused) {
  EXPECT_TRUE(Refused("", 0, {"header", "not JSON"}));
  EXPECT_TRUE(Refused("{\"a\":", 0, {"header", "not JSON", "byte"}));
  EXPECT_TRUE(Refused("\xff\xfe", 0, {"header", "not JSON"}));
  EXPECT_TRUE(Refused("[]", 0, {"header", "not a JSON object"}));
  EXPECT_TRUE(Refused(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                      R"("a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                      4, {"\"a\" twice"}));
  EXPECT_TRUE(Refused(R"({"__metadata__":[]})", 0, {"__metadata__"}));
  EXPECT_TRUE(Refused(R"({"__metadata__":{"format":1}})", 0, {"__metadata__.format"}));
}

TEST_F(Safetensors, AHeaderNestedWithoutBoundIsRefused) {
  std::string header = R"({"__metadata__": )";
  for (int i = 0; i < 200'000; ++i) header += R"({"a":)";
  header += "1" + std::string(200'001, '}');
  EXPECT_TRUE(Refused(header, 0, {"nested deeper than 64 levels"}));
}

TEST_F(Safetensors, TensorsThatAreNotDescribedAreRefused) {
  EXPECT_TRUE(Refused(R"({"w":7})", 0, {"tensor w", "object"}));
  EXPECT_TRUE(Refused(R"({"w":{"shape":[1],"data_offsets":[0,4]}})", 4, {"tensor w", "dtype"}));
  EXPECT_TRUE(
      Refused(R"({"w":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4, {"tensor w", "dtype"}));
  for (const char* shape : {"1", "[-1]", "[1.0]", "[\"1\"]", "null", "[18446744073709551616]"}) {
    EXPECT_TRUE(
        Refused(fmt::format(R"({{"w":{{"dtype":"F32","shape":{},"data_offsets":[0,4]}}}})", shape),
                4, {"tensor w", "shape"}))
        << shape;
  }
  for (const char* offsets : {"4", "[0]", "[0,4,8]", "[4,0]", "[-4,0]", "[0,4.0]"}) {
    EXPECT_TRUE(
        Refused(fmt::format(R"({{"w":{{"dtype":"F32","shape":[1],"data_offsets":{}}}}})", offsets),
                4, {"tensor w", "data_offsets"}))
        << offsets;
  }
}

TEST_F(Safetensors, SizesThatDoNotFitShapesAreRefused) {
  EXPECT_TRUE(Refused(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
                      {"tensor w", "4 bytes", "2 elements of F32"}));
  EXPECT_TRUE(Refused(R"({"w":{"dtype":"BF16","shape":[2],"data_offsets":[0,5]}})", 5,
                      {"tensor w", "5 bytes", "2 elements of BF16"}));
  EXPECT_TRUE(Refused(R"({"w":{"dtype":"I64","shape":[1],"data_offsets":[0,4]}})", 4,
                      {"tensor w", "1 elements of I64"}));
  // 2^32 * 2^32 elements: 0 in 64 bits, which would fit the empty range.
  EXPECT_TRUE(
      Refused(R"({"w":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
              {"tensor w", "2^64"}));
}

TEST_F(Safetensors, OverlapsGapsAndRestsAreRefused) {
  const std::string first = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)";
  EXPECT_TRUE(Refused(first + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                      {"tensor b", "overlaps"}));
  EXPECT_TRUE(Refused(first + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})", 16,
                      {"tensor b", "gap after byte 8"}));
  EXPECT_TRUE(Refused(first + R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})", 13,
                      {"1 bytes follow"}));
  EXPECT_TRUE(Refused(R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8,
                      {"tensor b", "gap after byte 0"}));
}

TEST_F(Safetensors, ATruncatedFileIsFoundWhenItIsOpened) {
  EXPECT_TRUE(Refused(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                      R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]}})",
                      11, {"tensor b", "byte 12", "there are 11", "cut off"}));
}

TEST_F(Safetensors, AFileThatShrinksLaterIsAnError) {
  const std::string path =
      Write(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", "12345678");
  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  std::vector<float> values(2);
  EXPECT_TRUE(FailsWith(reader.Read("a", 0, values), ErrorCode::kIo, {path, "shrunk"}));
}

TEST_F(Safetensors, WhatIsWrittenReadsBackBitForBit) {
  std::vector<float> values(70'001);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] = std::bit_cast<float>(static_cast<uint32_t>(i * 61'357));
  }
  const std::string path = folder_.Path("out.safetensors");
  auto writer = SafetensorsWriter::Create(path, DType::kFloat32,
                                          {{"first", {7, 10'000}}, {"none", {0}}, {"last", {1}}})
                    .value();
  ASSERT_TRUE(writer.Append(std::span(values).first(12'345)).ok());
  ASSERT_TRUE(writer.Append(std::span(values).subspan(12'345)).ok());
  EXPECT_FALSE(folder_.Has("out.safetensors"));
  ASSERT_TRUE(writer.Finish().ok());

  const SafetensorsReader reader = SafetensorsReader::Open(path).value();
  std::vector<float> read = ReadAll(reader, "first");
  const std::vector<float> last = ReadAll(reader, "last");
  read.insert(read.end(), last.begin(), last.end());
  EXPECT_EQ(BytesOf(read), BytesOf(values));
  EXPECT_THAT(reader.entries().at("first").shape, ElementsAre(7, 10'000));
  EXPECT_THAT(folder_.List(), ElementsAre("out.safetensors"));
}

TEST_F(Safetensors, TheWrittenHeaderIsWhatHuggingFaceReads) {
  auto writer = SafetensorsWriter::Create(folder_.Path("m"), DType::kBFloat16,
                                          {{"transformer.x", {3}}, {"a", {2, 1}}})
                    .value();
  ASSERT_TRUE(writer.Append(std::vector<float>(5, 1.0f)).ok());
  ASSERT_TRUE(writer.Finish().ok());
  const std::string bytes = folder_.Read("m");
  uint64_t length = 0;
  std::memcpy(&length, bytes.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  ASSERT_EQ(bytes.size(), 8 + length + 10);
  EXPECT_EQ(bytes[8], '{');
  EXPECT_EQ(json::parse(bytes.substr(8, length)), json::parse(R"({"__metadata__": {"format": "pt"},
                            "transformer.x": {"dtype": "BF16", "shape": [3], "data_offsets": [0, 6]},
                            "a": {"dtype": "BF16", "shape": [2, 1], "data_offsets": [6, 10]}})"));
}

TEST_F(Safetensors, SixteenBitTypesAreRoundedToNearestEven) {
  const std::vector<float> values = {
      1.0f,     1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f + 0x1p-11f, -0x1p-25f,
      65504.0f, 1e30f,          -0.0f,          1.0f + 0x3p-11f};
  const std::map<DType, std::vector<float>> expected = {
      {DType::kBFloat16,
       {1.0f, 1.0f, 1.0f + 0x1p-6f, 1.0f, -0x1p-25f, 65536.0f,
        kernels::ToFloat(kernels::BFloat16{0x714a}), -0.0f, 1.0f}},
      {DType::kFloat16,
       {1.0f, 1.0f + 0x1p-8f, 1.0f + 0x3p-8f, 1.0f, -0.0f, 65504.0f,
        std::numeric_limits<float>::infinity(), -0.0f, 1.0f + 0x1p-9f}}};
  for (const auto& [dtype, rounded] : expected) {
    const std::string path = folder_.Path(ToString(dtype));
    auto writer = SafetensorsWriter::Create(path, dtype, {{"w", {values.size()}}}).value();
    ASSERT_TRUE(writer.Append(values).ok());
    ASSERT_TRUE(writer.Finish().ok());
    const SafetensorsReader reader = SafetensorsReader::Open(path).value();
    EXPECT_EQ(reader.entries().at("w").dtype, dtype);
    EXPECT_EQ(BytesOf(ReadAll(reader, "w")), BytesOf(rounded)) << ToString(dtype);
  }
}

TEST_F(Safetensors, AllSixteenBitPatternsSurviveReadingAndWriting) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    std::string data;
    for (uint32_t bits = 0; bits < 65536; ++bits) {
      const bool nan =
          dtype == DType::kBFloat16 ? (bits & 0x7fff) > 0x7f80 : (bits & 0x7fff) > 0x7c00;
      const uint32_t value = nan ? 0 : bits;
      data += static_cast<char>(value & 0xff);
      data += static_cast<char>(value >> 8);
    }
    const std::string path = Write(json{{"w",
                                         {{"dtype", SafetensorsName(dtype)},
                                          {"shape", {65536}},
                                          {"data_offsets", {0, 131072}}}}}
                                       .dump(),
                                   data);
    const std::vector<float> values = ReadAll(SafetensorsReader::Open(path).value(), "w");
    auto writer = SafetensorsWriter::Create(folder_.Path("back"), dtype, {{"w", {65536}}}).value();
    ASSERT_TRUE(writer.Append(values).ok());
    ASSERT_TRUE(writer.Finish().ok());
    const std::string back = folder_.Read("back");
    EXPECT_TRUE(back.ends_with(data)) << ToString(dtype);
  }
}

TEST_F(Safetensors, WithoutFinishNothingIsLeft) {
  {
    auto writer =
        SafetensorsWriter::Create(folder_.Path("m"), DType::kFloat32, {{"w", {4}}}).value();
    ASSERT_TRUE(writer.Append(std::vector<float>(4, 1.0f)).ok());
    EXPECT_EQ(folder_.List().size(), 1u);
  }
  EXPECT_THAT(folder_.List(), ElementsAre());
}

TEST_F(Safetensors, AFolderThatIsMissingIsNamed) {
  EXPECT_TRUE(FailsWith(SafetensorsWriter::Create(folder_.Path("no/m"), DType::kFloat32, {}),
                        ErrorCode::kNotFound, {folder_.Path("no/m")}));
}

}  // namespace
}  // namespace penstock::train
