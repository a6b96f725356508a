// What a write leaves that a drive damages and reports as done.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

constexpr size_t kUnit = kDamagedUnit.value;
constexpr size_t kUnits = 8;
constexpr size_t kNone = kUnits;

/// A file of units, first of version 1 and then written in two halves as version 2, the second time
/// with a fault; and then what each unit holds.
class WriteDamageTest : public testing::Test {
 protected:
  static std::unique_ptr<Engine> MakeEngine(const std::vector<Fault>& faults) {
    auto engine = CreateEngine(
        {.kind = EngineKind::kThreads,
         .faults = FaultPlan{.faults = faults, .on_bad_unit = [](int, FileOffset) {}}});
    EXPECT_TRUE(engine.ok());
    return std::move(engine).value();
  }

  /// Writes all units in blocks of four.
  void Write(Engine& engine, uint64_t version) {
    for (size_t half = 0; half < 2; ++half) {
      const size_t begin = half * kUnits / 2 * kUnit;
      const auto part = memory_.bytes().subspan(begin, kUnits / 2 * kUnit);
      for (size_t i = 0; i < part.size(); i += kUnit) FillPattern(part.subspan(i, kUnit), version);
      EXPECT_TRUE(engine.Submit(WriteRequest(file_.get(), begin, part)).Wait().ok());
    }
  }

  /// The version of each unit: 0 where it is neither, with a bit that is wrong in `flipped_`.
  std::vector<int> Versions(const Fault& fault) {
    const auto engine = MakeEngine({fault});
    Write(*engine, 1);
    Write(*engine, 2);
    std::vector<std::byte> bytes(kUnits * kUnit);
    EXPECT_EQ(::pread(file_.get().buffered_fd(), bytes.data(), bytes.size(), 0), bytes.size());
    std::vector<int> versions;
    for (size_t i = 0; i < kUnits; ++i) {
      const auto unit = std::span(bytes).subspan(i * kUnit, kUnit);
      const int version = PatternErrors(unit, 1) == 0 ? 1 : PatternErrors(unit, 2) == 0 ? 2 : 0;
      versions.push_back(version);
      if (version == 0) wrong_bytes_ = PatternErrors(unit, 2);
    }
    return versions;
  }

  static std::vector<int> AllNewBut(size_t unit, int version) {
    std::vector<int> versions(kUnits, 2);
    if (unit != kNone) versions[unit] = version;
    return versions;
  }

  ScratchFile file_;
  Buffer memory_{kUnits * kUnit};
  size_t wrong_bytes_ = 0;
};

// Writes 2 and 3 are the second time.
TEST_F(WriteDamageTest, ALostWriteLeavesAllOfItsBlockAsItWas) {
  EXPECT_EQ(Versions({.kind = Fault::Kind::kLost, .first_block = 3}),
            (std::vector<int>{2, 2, 2, 2, 1, 1, 1, 1}));
}

TEST_F(WriteDamageTest, AUnitKeepsWhatItHeldAndTheRestOfItsBlockIsWritten) {
  EXPECT_EQ(Versions({.kind = Fault::Kind::kOld, .first_block = 2, .unit = 1}), AllNewBut(1, 1));
  EXPECT_EQ(Versions({.kind = Fault::Kind::kOld, .first_block = 2, .unit = 99}), AllNewBut(3, 1))
      << "the last one, if the block has fewer";
}

TEST_F(WriteDamageTest, AUnitThatItsFileDidNotReachKeepsZeros) {
  for (const Fault::Kind kind : {Fault::Kind::kOld, Fault::Kind::kAway}) {
    ScratchFile empty;
    const auto engine = MakeEngine({{.kind = kind}});
    FillPattern(memory_.bytes().first(kUnit), 1);
    EXPECT_TRUE(
        engine->Submit(WriteRequest(empty.get(), 0, memory_.bytes().first(kUnit))).Wait().ok());
    std::vector<std::byte> bytes(kUnit, std::byte{1});
    EXPECT_EQ(::pread(empty.get().buffered_fd(), bytes.data(), bytes.size(), 0), bytes.size());
    EXPECT_EQ(bytes, std::vector<std::byte>(kUnit));
  }
}

TEST_F(WriteDamageTest, OneBitOfAUnitIsFlipped) {
  EXPECT_EQ(Versions({.kind = Fault::Kind::kFlip, .first_block = 3, .unit = 2}), AllNewBut(6, 0));
  EXPECT_EQ(wrong_bytes_, 1U);
}

TEST_F(WriteDamageTest, ByOffsetTheBlocksThatHoldItAreCounted) {
  EXPECT_EQ(
      Versions({.kind = Fault::Kind::kOld, .first_block = 1, .at = FileOffset{5 * kUnit + 17}}),
      AllNewBut(5, 1));
  EXPECT_EQ(Versions({.kind = Fault::Kind::kOld, .first_block = 2, .at = FileOffset{5 * kUnit}}),
            AllNewBut(kNone, 0))
      << "it is written twice";
}

/// Each unit has a pattern of its own here.
TEST_F(WriteDamageTest, AUnitThatGoesAwayLiesOverTheNextAndLeavesItsOwn) {
  const auto number = [](uint64_t version, size_t unit) { return 100 * version + unit; };
  // Within a block, to the block after it, and at the end of the file.
  for (const size_t unit : {size_t{1}, size_t{3}, size_t{7}}) {
    const auto engine = MakeEngine(
        {{.kind = Fault::Kind::kAway, .first_block = 1, .at = FileOffset{unit * kUnit}}});
    for (const uint64_t version : {1, 2}) {
      // The later half first, so that nothing is written over what went there.
      for (const size_t half : {1, 0}) {
        const auto part = memory_.bytes().subspan(half * 4 * kUnit, 4 * kUnit);
        for (size_t i = 0; i < 4; ++i) {
          FillPattern(part.subspan(i * kUnit, kUnit), number(version, half * 4 + i));
        }
        ASSERT_TRUE(engine->Submit(WriteRequest(file_.get(), half * 4 * kUnit, part)).Wait().ok());
      }
    }
    std::vector<std::byte> bytes((kUnits + 1) * kUnit);
    ASSERT_EQ(::pread(file_.get().buffered_fd(), bytes.data(), bytes.size(), 0), kUnits * kUnit)
        << "the file is as long as it was";
    for (size_t i = 0; i < kUnits; ++i) {
      uint64_t expected = number(2, i);
      if (i == unit) expected = number(1, i);
      if (i == unit + 1) expected = number(2, unit);
      EXPECT_EQ(PatternErrors(std::span(bytes).subspan(i * kUnit, kUnit), expected), 0U)
          << "unit " << i << ", with unit " << unit << " away";
    }
  }
}

TEST_F(WriteDamageTest, AUnitThatWasWrittenCannotBeReadUntilItIsWrittenAgain) {
  const auto engine =
      MakeEngine({{.kind = Fault::Kind::kBad, .first_block = 0, .at = FileOffset{6 * kUnit}}});
  Write(*engine, 1);
  const auto read = [&](size_t unit) {
    const auto part = memory_.bytes().subspan(unit * kUnit, kUnit);
    return engine->Submit(ReadRequest(file_.get(), unit * kUnit, part)).Wait();
  };
  EXPECT_TRUE(read(5).ok());
  EXPECT_EQ(read(6).error().code, ErrorCode::kIo);
  EXPECT_TRUE(read(7).ok());
  Write(*engine, 2);
  EXPECT_TRUE(read(6).ok());
}

TEST(WriteDamage, IsRefusedWhereNoWriteDoesIt) {
  const auto refused = [](const FaultPlan& plan, const std::string& part) {
    const auto engine = CreateEngine({.kind = EngineKind::kThreads, .faults = plan});
    ASSERT_FALSE(engine.ok());
    EXPECT_EQ(engine.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(engine.error().message.find(part), std::string::npos) << engine.error().message;
  };
  refused({.faults = {{.kind = Fault::Kind::kFlip, .operation = Operation::kRead}}},
          "only a write does damage");
  refused({.faults = {{.kind = Fault::Kind::kLost}}, .lose_unsynced = true}, "lose_unsynced");
}

}  // namespace
}  // namespace penstock::aio
