// State files whose checksums hold and whose fields do not: made by hand, or by a program with a
// bug.
#include <gmock/gmock.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <functional>

#include "offload/byte_fields.h"
#include "offload/state_file.h"
#include "offload/state_reader.h"
#include "tests/offload/support.h"
#include "tests/search_share.h"

namespace penstock::offload {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kHuge[] = {0,
                              1,
                              4095,
                              uint64_t{1} << 32,
                              uint64_t{1} << 60,
                              uint64_t{1} << 63,
                              ~uint64_t{0} - 4095,
                              ~uint64_t{0}};

StateHeader SmallHeader(int slots = 2) {
  return PlanState(kUuid, SmallLayout(DType::kBFloat16), {.slots = slots}, 0);
}

/// Makes the checksums of a head hold again, as far as its own sizes let it.
void Seal(std::vector<std::byte>& head) {
  const std::span<std::byte> bytes(head);
  std::vector<std::byte> hashed;
  for (const size_t field : {88, 104}) {
    const auto begin = Get<uint64_t>(bytes, field);
    const auto size = Get<uint64_t>(bytes, field + 8);
    if (begin > head.size() || size > head.size() - begin) continue;
    hashed.insert(hashed.end(), head.begin() + static_cast<ptrdiff_t>(begin),
                  head.begin() + static_cast<ptrdiff_t>(begin + size));
  }
  Put<uint64_t>(bytes, 200, Checksum(hashed));
  Put<uint64_t>(bytes, 4088, Checksum(bytes.first(4088)));
}

/// The head of SmallHeader with another text as its layout.
std::vector<std::byte> WithText(const std::string& text) {
  std::vector<std::byte> head = EncodeHead(SmallHeader());
  EXPECT_LE(text.size(), 4096);
  std::memset(head.data() + 4096, 0, 4096);
  std::memcpy(head.data() + 4096, text.data(), text.size());
  Put<uint64_t>(std::span(head), 96, text.size());
  Seal(head);
  return head;
}

std::string TextOf(const StateHeader& header) {
  const std::vector<std::byte> head = EncodeHead(header);
  return {reinterpret_cast<const char*>(head.data()) + 4096, header.geometry.layout_bytes.value};
}

std::string Replaced(std::string text, const std::string& from, const std::string& to) {
  EXPECT_NE(text.find(from), std::string::npos) << from;
  return text.replace(text.find(from), from.size(), to);
}

/// As StateReader does it: the header alone first.
Result<StateHeader> Decode(const std::vector<std::byte>& head) {
  PENSTOCK_TRY(HeadBytes(std::span(head).first(kHeaderBytes.value)).status());
  return DecodeHead(head);
}

void ExpectCorrupt(const Status& status, const std::string& what) {
  ASSERT_FALSE(status.ok()) << what;
  EXPECT_EQ(status.error().code, ErrorCode::kCorruption) << what << status.error().message;
  EXPECT_THAT(status.error().message, HasSubstr(what));
}

TEST(ForgedStateTest, AHeadWithAnyForgedByteIsRefusedOrReadAsItIs) {
  for (const int slots : {1, 2}) {
    const std::vector<std::byte> whole = EncodeHead(SmallHeader(slots));
    const StateGeometry plan = SmallHeader(slots).geometry;
    for (const std::byte flip : {std::byte{1}, std::byte{0xff}}) {
      for (size_t at = 0; at < whole.size(); at += kSearchStride) {
        std::vector<std::byte> head = whole;
        head[at] ^= flip;
        Seal(head);
        if (head == whole) continue;  // a checksum
        const Result<StateHeader> read = Decode(head);
        const bool between =
            (at >= 4096 + plan.layout_bytes.value && at < plan.descriptors_offset.value) ||
            at >= (plan.descriptors_offset + plan.descriptors_bytes).value;
        if (!read.ok() || between) continue;
        EXPECT_TRUE(EncodeHead(*read) == head) << at;
      }
    }
  }
}

TEST(ForgedStateTest, AHeaderWithAnyForgedNumberIsRefusedOrReadAsItIs) {
  const std::vector<std::byte> whole = EncodeHead(SmallHeader());
  for (size_t field = 40; field < 208; field += 8) {
    const auto right = Get<uint64_t>(std::span(whole), field);
    std::vector<uint64_t> values(std::begin(kHuge), std::end(kHuge));
    values.insert(values.end(), {right + 4096, right - 4096, right + 1, right - 1});
    for (const uint64_t value : values) {
      std::vector<std::byte> head = whole;
      Put<uint64_t>(std::span(head), field, value);
      Seal(head);
      const Result<StateHeader> read = Decode(head);
      if (read.ok()) {
        EXPECT_TRUE(EncodeHead(*read) == head) << field << ": " << value;
      }
    }
  }
}

TEST(ForgedStateTest, AnErrorNamesTheFieldThatCannotBe) {
  const struct {
    size_t field;
    const char* name;
  } fields[] = {{56, "the alignment"},
                {64, "the largest tile"},
                {72, "parameters"},
                {80, "tiles"},
                {88, "the offset of the layout"},
                {96, "layout"},
                {104, "the offset of the descriptors"},
                {112, "the size of the descriptors"},
                {120, "the offset of commit place 0"},
                {128, "the offset of commit place 1"},
                {136, "the size of a commit place"},
                {144, "the offset of slot 0's weights"},
                {152, "the offset of slot 1's weights"},
                {160, "the offset of slot 0's records"},
                {168, "the offset of slot 1's records"},
                {176, "the offset of the spill"},
                {184, "the size of the spill"},
                {192, "the file size"},
                {208, "a reserved byte"},
                {4080, "a reserved byte"}};
  for (const auto& [field, name] : fields) {
    std::vector<std::byte> head = EncodeHead(SmallHeader());
    // Of the layout and the descriptors where they are, whatever the header says.
    const auto hashed = Get<uint64_t>(std::span(head), 200);
    Put<uint64_t>(std::span(head), field, uint64_t{1} << 60);
    Put<uint64_t>(std::span(head), 200, hashed);
    Put<uint64_t>(std::span(head), 4088, Checksum(std::span(head).first(4088)));
    ExpectCorrupt(Decode(head).status(), name);
  }
}

TEST(ForgedStateTest, ALayoutThatCannotBeIsRefused) {
  const struct {
    const char* what;
    std::function<void(ModelLayout&)> forge;
  } cases[] = {
      {"two tensors have the name a.weight",
       [](ModelLayout& model) { model.modules[0].tensors[1].name = "a.weight"; }},
      {"two tensors have the name a.weight",
       [](ModelLayout& model) { model.modules[1].tensors[0].name = "a.weight"; }},
      {"tensor a.bias with 7 elements at offset 11999 overlaps",
       [](ModelLayout& model) { model.modules[0].tensors[1].offset = 11999; }},
      {"at offset 18446744073709551615",
       [](ModelLayout& model) { model.modules[0].tensors[1].offset = ~uint64_t{0}; }},
      {"tensor a.bias with 0 elements",
       [](ModelLayout& model) {
         model.modules[0].tensors[1].shape = {7, 0};
       }},
      {"tensor a.bias with 4097 elements",
       [](ModelLayout& model) { model.modules[0].tensors[1].shape = {4097}; }},
      {"more than 2^64 elements",
       [](ModelLayout& model) {
         model.modules[0].tensors[1].shape = {uint64_t{1} << 32, uint64_t{1} << 32, 7};
       }},
      {"of group 7", [](ModelLayout& model) { model.modules[0].tensors[1].group = GroupId{7}; }},
      {"16104 elements where the header names 16103",
       [](ModelLayout& model) { model.modules[0].tensors[1].shape = {8}; }},
      {"module b has 0 elements", [](ModelLayout& model) { model.modules[1].elements = 0; }},
      {"module b has 1152921504606846976 elements",
       [](ModelLayout& model) { model.modules[1].elements = uint64_t{1} << 60; }},
      {"the modules have more than 2^48 elements",
       [](ModelLayout& model) { model.modules[1].elements = kMaxElements; }},
      {"the tiles of module b do not cover it",
       [](ModelLayout& model) { model.modules[1].elements = 8192; }},
      {"the tiles of module c do not cover it",
       [](ModelLayout& model) {
         model.modules.push_back({.name = "c", .tensors = {}, .elements = 4096});
       }},
  };
  for (const auto& [what, forge] : cases) {
    // What a writer with that layout and SmallHeader's tiles and parameters would write.
    StateHeader header = PlanState(kUuid, SmallLayout(DType::kBFloat16), {}, 0);
    forge(header.layout.model);
    header.geometry = PlanState(kUuid, header.layout, {}, 0).geometry;
    ExpectCorrupt(Decode(EncodeHead(header)).status(), what);
  }
}

TEST(ForgedStateTest, ATextThatIsNotAWritersIsRefused) {
  const std::string right = TextOf(SmallHeader());
  EXPECT_TRUE(Decode(WithText(right)).ok());
  const std::string texts[] = {
      "",
      "{}",
      "[]",
      "{\"modules\":7}",
      "{\"modules\":[]}",
      "{\"modules\":[7]}",
      std::string(4096, '['),
      Replaced(right, "\"offset\":0", "\"offset\":-1"),
      Replaced(right, "\"offset\":0", "\"offset\":0.5"),
      Replaced(right, "\"offset\":0", "\"offset\":1e300"),
      Replaced(right, "\"offset\":0", "\"offset\":\"0\""),
      Replaced(right, "\"offset\":0", "\"offset\":18446744073709551616"),
      Replaced(right, "\"group\":0", "\"group\":256"),
      Replaced(right, "\"group\":0", "\"group\":-255"),
      Replaced(right, "[100,120]", "[100,[120]]"),
      Replaced(right, "[100,120]", "{\"a\":100,\"b\":120}"),
      Replaced(right, "[100,120]", "[100.0,120]"),
      Replaced(right, "a.weight", "a.\xff\xfe"),
      Replaced(right, "a.weight", std::string("a\0b", 3)),
      Replaced(right, "a.weight", "\\u0061.weight"),
      Replaced(right, "{\"modules\"", "{\"modules\":0,\"modules\""),
      Replaced(right, "{\"modules\"", "{\"more\":0,\"modules\""),
      right + " ",
      right.substr(0, right.size() - 1),
  };
  for (const std::string& text : texts) {
    ExpectCorrupt(Decode(WithText(text)).status(), "");
  }
}

TEST(ForgedStateTest, ADescriptorThatCannotBeIsRefused) {
  const StateHeader header = SmallHeader();
  for (size_t tile = 0; tile < 4; ++tile) {
    for (const size_t field : {0, 8, 16, 24, 32, 40, 48, 56}) {
      for (const uint64_t value : kHuge) {
        std::vector<std::byte> head = EncodeHead(header);
        const size_t at = header.geometry.descriptors_offset.value + 64 * tile + field;
        if (Get<uint64_t>(std::span(head), at) == value) continue;
        Put<uint64_t>(std::span(head), at, value);
        Seal(head);
        ExpectCorrupt(Decode(head).status(), fmt::format("the descriptor of tile {}", tile));
      }
    }
  }
  for (const auto& [a, b] : {std::pair(0, 1), std::pair(2, 3), std::pair(0, 3)}) {
    std::vector<std::byte> head = EncodeHead(header);
    const auto at = [&](int tile) {
      return head.begin() + static_cast<ptrdiff_t>(header.geometry.descriptors_offset.value) +
             64 * tile;
    };
    std::swap_ranges(at(a), at(a) + 64, at(b));
    Seal(head);
    ExpectCorrupt(Decode(head).status(), "the descriptor of tile");
  }
}

CommitRecord RecordOfOneVersion() {
  CommitRecord record{.sequence = 7,
                      .head = {.step = 30,
                               .optimizer_steps = 28,
                               .skipped_in_a_row = 1,
                               .seed = 99,
                               .compute_threads = 2},
                      .json = "{}"};
  record.tiles.resize(4, {.version = 28, .checksums = {}, .slot = 1});
  return record;
}

/// Makes the checksum of a commit hold again, as far as its own size lets it.
void SealCommit(std::vector<std::byte>& bytes) {
  const auto size = Get<uint64_t>(std::span(bytes), 32);
  if (size < 8 || size > bytes.size()) return;
  Put<uint64_t>(std::span(bytes), size - 8, Checksum(std::span(bytes).first(size - 8)));
}

TEST(ForgedStateTest, ACommitWithAnyForgedByteIsRefusedOrReadAsItIs) {
  const std::vector<std::byte> whole = EncodeCommit(kUuid, RecordOfOneVersion());
  for (const std::byte flip : {std::byte{1}, std::byte{0x80}, std::byte{0xff}}) {
    for (size_t at = 0; at < whole.size() - 8; ++at) {
      std::vector<std::byte> forged = whole;
      forged[at] ^= flip;
      SealCommit(forged);
      const Result<CommitRecord> read = DecodeCommit(kUuid, forged);
      if (read.ok()) {
        EXPECT_TRUE(EncodeCommit(kUuid, *read) == forged) << at;
      }
    }
  }
}

TEST(ForgedStateTest, ACommitThatCannotBeIsRefused) {
  const struct {
    const char* what;
    std::function<void(CommitRecord&)> forge;
  } cases[] = {
      {"sequence number", [](auto& record) { record.sequence = 0; }},
      {"sequence number", [](auto& record) { record.sequence = ~uint64_t{0}; }},
      {"step", [](auto& record) { record.head.step = ~uint64_t{0}; }},
      {"optimizer steps", [](auto& record) { record.head.optimizer_steps = 31; }},
      {"skipped steps", [](auto& record) { record.head.skipped_in_a_row = 3; }},
      {"skipped steps", [](auto& record) { record.head.skipped_in_a_row = ~uint64_t{0}; }},
      {"version", [](auto& record) { record.tiles[2].version = ~uint64_t{0}; }},
      {"slot", [](auto& record) { record.tiles[2].slot = 2; }},
  };
  for (const auto& [what, forge] : cases) {
    CommitRecord record = RecordOfOneVersion();
    forge(record);
    ExpectCorrupt(DecodeCommit(kUuid, EncodeCommit(kUuid, record)).status(), what);
  }
  for (const size_t field : {32, 40, 48}) {
    for (const uint64_t value : kHuge) {
      std::vector<std::byte> bytes = EncodeCommit(kUuid, RecordOfOneVersion());
      Put<uint64_t>(std::span(bytes), field, value);
      SealCommit(bytes);
      ExpectCorrupt(DecodeCommit(kUuid, bytes).status(), "size");
    }
  }
}

class ForgedFileTest : public FolderTest {
 protected:
  /// A file with the commits where they are to be; holes elsewhere.
  std::string Write(const StateHeader& header, const std::vector<CommitRecord>& places) {
    std::string path = folder_ / fmt::format("penstock-{}.state", header.path);
    std::ofstream file(path, std::ios::binary);
    const auto put = [&file](uint64_t at, const std::vector<std::byte>& bytes) {
      file.seekp(static_cast<std::streamoff>(at));
      file.write(reinterpret_cast<const char*>(bytes.data()),
                 static_cast<std::streamsize>(bytes.size()));
    };
    put(header.geometry.file_bytes.value - 1, {std::byte{0}});
    put(0, EncodeHead(header));
    for (size_t i = 0; i < places.size(); ++i) {
      put(header.geometry.commit_offset[i].value, EncodeCommit(kUuid, places[i]));
    }
    return path;
  }
};

TEST_F(ForgedFileTest, ACommitThatIsNotOneOfTheFileIsRefused) {
  const CommitRecord record = RecordOfOneVersion();
  EXPECT_TRUE(StateReader::Open({Write(SmallHeader(), {{}, record})}).ok());
  ExpectCorrupt(StateReader::Open({Write(SmallHeader(), {record})}).status(),
                "number 7 belongs in the other place");
  ExpectCorrupt(StateReader::Open({Write(SmallHeader(1), {{}, record})}).status(),
                "slot 1 where the file has one slot");
  for (const size_t tiles : {0, 3, 5}) {
    CommitRecord other = record;
    other.tiles.resize(tiles);
    ExpectCorrupt(StateReader::Open({Write(SmallHeader(), {{}, other})}).status(),
                  fmt::format("it names {} tiles where the file has 4", tiles));
  }
}

TEST_F(ForgedFileTest, AFileThatIsShorterThanItsHeaderSaysIsRefused) {
  const std::string path = Write(SmallHeader(), {{}, RecordOfOneVersion()});
  const uint64_t size = std::filesystem::file_size(path);
  for (const uint64_t shorter : {size - 1, size / 2, uint64_t{8192}, uint64_t{4096}, uint64_t{7}}) {
    std::filesystem::resize_file(path, shorter);
    ExpectCorrupt(StateReader::Open({path}).status(), path);
  }
}

TEST_F(ForgedFileTest, FilesOfDifferentLayoutsAreNoState) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const auto shape = [](std::vector<uint16_t> paths, int slots) {
    return StateShape{.slots = slots, .paths = 2, .path_of_tile = std::move(paths)};
  };
  const std::string first =
      Write(PlanState(kUuid, layout, shape({0, 1, 0, 1}, 2), 0), {{}, RecordOfOneVersion()});
  const auto second = [&](const ShardLayout& of, const StateShape& is) {
    return StateReader::Open({first, Write(PlanState(kUuid, of, is, 1), {})}).status();
  };
  StateShape without_guards = shape({0, 1, 0, 1}, 2);
  without_guards.guards = false;
  ExpectCorrupt(second(layout, without_guards), "another layout");
  EXPECT_TRUE(second(layout, shape({0, 1, 0, 1}, 2)).ok());
  ExpectCorrupt(second(layout, shape({0, 1, 1, 1}, 2)), "another layout");
  ExpectCorrupt(second(layout, shape({0, 1, 0, 1}, 1)), "another layout");
  ExpectCorrupt(second(SmallLayout(DType::kFloat32), shape({0, 1, 0, 1}, 2)), "another layout");
}

}  // namespace
}  // namespace penstock::offload
