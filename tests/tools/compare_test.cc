#include "tools/compare.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "tests/temp_folder.h"
#include "train/weights/safetensors_writer.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using zero::StateKind;

/// A run in memory whose every tile has `tile` elements; counts how often a tile is read anew.
class FakeRun final : public ComparedModel {
 public:
  explicit FakeRun(uint64_t tile) : tile_(tile) {
    tensors_.push_back({.name = "wte.weight", .shape = {30, 10}, .elements = 300});
    tensors_.push_back({.name = "ln_f.weight", .shape = {7}, .elements = 7});
    for (ComparedTensor& tensor : tensors_) tensor.group = "weight decay";
    set_moments(Encoding::kFloat32);
    states_ = {StateKind::kMaster, StateKind::kExpAvg, StateKind::kExpAvgSq};
    state_.step = 3;
  }

  zero::TrainState& state() { return state_; }
  std::vector<StateKind>& kinds() { return states_; }
  void set_moments(Encoding encoding) {
    for (ComparedTensor& tensor : tensors_) tensor.moments = encoding;
  }
  std::vector<ComparedTensor>& list() { return tensors_; }
  void Set(StateKind kind, size_t tensor, uint64_t at, float value) {
    values_[{kind, tensor, at}] = value;
  }
  size_t loads() const { return loads_; }

  const zero::TrainState* train_state() const override { return &state_; }
  uint64_t ReadableAtOnce(size_t index, uint64_t begin) const override {
    return std::min(tile_ - begin % tile_, tensors_[index].elements - begin);
  }
  Status Read(StateKind kind, size_t index, uint64_t begin, std::span<float> values) override {
    PENSTOCK_CHECK(values.size() <= ReadableAtOnce(index, begin));
    const std::pair tile(index, begin / tile_);
    const auto& lacks = tensors_[index].lacks;
    PENSTOCK_CHECK(std::ranges::find(lacks, kind) == lacks.end());
    if (loaded_ != tile) ++loads_;
    loaded_ = tile;
    for (size_t i = 0; i < values.size(); ++i) {
      const auto found = values_.find({kind, index, begin + i});
      values[i] = found == values_.end() ? static_cast<float>(begin + i) : found->second;
    }
    return {};
  }
  Result<std::string> UseWholeCommit() override { return std::string(); }

 private:
  uint64_t tile_;
  zero::TrainState state_;
  std::map<std::tuple<StateKind, size_t, uint64_t>, float> values_;
  std::optional<std::pair<size_t, uint64_t>> loaded_;
  size_t loads_ = 0;
};

TEST(CompareRuns, EqualRunsOfDifferentTilesAreEqualAndEveryTileIsReadOnce) {
  FakeRun a(64);
  FakeRun b(100);
  const Comparison comparison = Compare(a, b).value();
  EXPECT_TRUE(comparison.equal());
  EXPECT_EQ(comparison.tensors, 2u);
  EXPECT_EQ(comparison.elements, 307u);
  EXPECT_EQ(comparison.states.size(), 3u);
  EXPECT_EQ(a.loads(), 5u + 1u);
  EXPECT_EQ(b.loads(), 3u + 1u);
  EXPECT_EQ(ToTable(comparison),
            "2 tensors, 307 elements, each with its weight, exp_avg and exp_avg_sq: equal bits\n");
}

TEST(CompareRuns, EachStateThatDiffersHasARow) {
  FakeRun a(64);
  FakeRun b(64);
  b.Set(StateKind::kExpAvg, 0, 123, 0);
  b.Set(StateKind::kExpAvgSq, 1, 6, 5);
  b.Set(StateKind::kMaster, 1, 2, 2.5F);
  const Comparison comparison = Compare(a, b).value();
  ASSERT_EQ(comparison.differences.size(), 3u);
  EXPECT_EQ(comparison.different_tensors, 2u);
  EXPECT_EQ(comparison.differences[0].name, "wte.weight");
  EXPECT_EQ(comparison.differences[0].state, StateKind::kExpAvg);
  EXPECT_EQ(comparison.differences[0].values.first(), 123u);
  EXPECT_EQ(comparison.differences[1].state, StateKind::kMaster);
  EXPECT_EQ(comparison.differences[2].state, StateKind::kExpAvgSq);
  const std::string table = ToTable(comparison);
  EXPECT_THAT(table, HasSubstr("wte.weight   exp_avg     1 of 300  [12, 3]  123"));
  EXPECT_THAT(table, HasSubstr(": 2 different\n"));
}

TEST(CompareRuns, StepsAndParameterGroupsAreCompared) {
  FakeRun a(64);
  FakeRun b(64);
  b.state().step = 4;
  b.state().optimizer_steps = 1;
  b.list()[1].group = "no weight decay";
  const Comparison comparison = Compare(a, b).value();
  EXPECT_THAT(comparison.mismatches,
              ElementsAre("step: 3 in A, 4 in B", "optimizer steps: 0 in A, 1 in B",
                          "ln_f.weight: weight decay in A, no weight decay in B"));
  EXPECT_FALSE(comparison.equal());
  EXPECT_THAT(ToTable(comparison), HasSubstr(": 0 different, 3 other differences\n"));
}

TEST(CompareRuns, MomentsThatAFrozenTensorLacksAreNotRead) {
  FakeRun a(64);
  FakeRun b(64);
  for (FakeRun* run : {&a, &b}) run->list()[0].lacks = {StateKind::kExpAvg, StateKind::kExpAvgSq};
  EXPECT_TRUE(Compare(a, b).value().equal());
  b.Set(StateKind::kMaster, 0, 3, 5);
  b.Set(StateKind::kExpAvgSq, 1, 6, 5);
  const Comparison comparison = Compare(a, b).value();
  ASSERT_EQ(comparison.differences.size(), 2u);
  EXPECT_EQ(comparison.differences[0].state, StateKind::kMaster);
  EXPECT_EQ(comparison.differences[1].state, StateKind::kExpAvgSq);
  b.list()[0].lacks.clear();
  EXPECT_THAT(Compare(a, b).value().mismatches,
              ElementsAre("wte.weight: 2 of its moments are not kept in A, 0 in B"));
}

TEST(CompareRuns, OfOptimizersThatKeepDifferentStatesOnlyTheCommonOnesAreCompared) {
  FakeRun a(64);
  FakeRun b(64);
  b.kinds() = {StateKind::kMaster, StateKind::kExpAvg};
  b.Set(StateKind::kExpAvgSq, 0, 1, 5);
  const Comparison comparison = Compare(a, b).value();
  EXPECT_THAT(comparison.mismatches,
              ElementsAre("optimizer states: A has exp_avg and exp_avg_sq in fp32, "
                          "B has exp_avg in fp32"));
  EXPECT_TRUE(comparison.differences.empty());
  EXPECT_THAT(ToTable(comparison), HasSubstr("each with its weight and exp_avg: 0 different"));
}

TEST(CompareRuns, MomentsOfAnotherDTypeAreADifferenceEvenWhereTheirValuesAreEqual) {
  FakeRun a(64);
  FakeRun b(64);
  b.set_moments(Encoding::kBFloat16);
  const Comparison comparison = Compare(a, b).value();
  EXPECT_FALSE(comparison.equal());
  EXPECT_TRUE(comparison.differences.empty());
  EXPECT_THAT(comparison.mismatches, ElementsAre(HasSubstr("exp_avg_sq in bf16")));
}

TEST(CompareRuns, MomentsOfEachTensorAreComparedWithThoseOfTheSame) {
  FakeRun a(64);
  FakeRun b(64);
  a.list()[0].moments = Encoding::kBFloat16;
  b.list()[1].moments = Encoding::kBFloat16;
  EXPECT_THAT(Compare(a, b).value().mismatches,
              ElementsAre("wte.weight: moments in bf16 in A, in fp32 in B",
                          "ln_f.weight: moments in fp32 in A, in bf16 in B"));
  b.list()[0].moments = Encoding::kBFloat16;
  EXPECT_THAT(Compare(a, b).value().mismatches,
              ElementsAre("optimizer states: A has exp_avg and exp_avg_sq in bf16 and fp32, "
                          "B has exp_avg and exp_avg_sq in bf16"));
}

class CompareFiles : public testing::Test {
 protected:
  using Tensors = std::vector<SafetensorsWriter::Tensor>;

  /// Writes tensors whose elements are 0, 1, 2, … with `last` in the last place of each.
  std::string Write(const std::string& name, const Tensors& tensors, float last,
                    DType dtype = DType::kFloat32) const {
    std::string path = folder_.Path(name);
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    auto writer = SafetensorsWriter::Create(path, dtype, tensors).value();
    for (const SafetensorsWriter::Tensor& tensor : tensors) {
      for (uint64_t i = 0, n = Elements(tensor.shape); i < n; ++i) {
        const float value = i + 1 == n ? last : static_cast<float>(i);
        PENSTOCK_CHECK(writer.Append({&value, 1}).ok());
      }
    }
    PENSTOCK_CHECK(writer.Finish().ok());
    return path;
  }
  static uint64_t Elements(const std::vector<uint64_t>& shape) {
    uint64_t elements = 1;
    for (const uint64_t extent : shape) elements *= extent;
    return elements;
  }
  Comparison CompareThem(const std::string& a, const std::string& b) const {
    return Compare(*ComparedModel::Open(a).value(), *ComparedModel::Open(b).value()).value();
  }

  TempFolder folder_;
};

TEST_F(CompareFiles, NamesWithAndWithoutPrefixInAnyOrderAndShardsAreTheSameTensors) {
  const std::string a =
      Write("a.safetensors", {{"transformer.wte.weight", {3, 2}}, {"transformer.b", {4}}}, 9);
  Write("b/2.safetensors", {{"wte.weight", {3, 2}}}, 9);
  Write("b/1.safetensors", {{"b", {4}}}, 9);
  const Comparison comparison = CompareThem(a, folder_.Path("b"));
  EXPECT_TRUE(comparison.equal()) << ToTable(comparison);
  EXPECT_EQ(ToTable(comparison), "2 tensors, 10 elements: equal bits\n");
}

TEST_F(CompareFiles, OneElementIsFoundWithItsPlace) {
  const std::string a = Write("a.safetensors", {{"x", {3, 2}}}, 1);
  const std::string b = Write("b.safetensors", {{"x", {3, 2}}}, 1.5F);
  const Comparison comparison = CompareThem(a, b);
  ASSERT_EQ(comparison.differences.size(), 1u);
  EXPECT_EQ(comparison.differences[0].values.first(), 5u);
  EXPECT_THAT(ToTable(comparison), HasSubstr("1 of 6  [2, 1]  0.5"));
}

TEST_F(CompareFiles, MissingTensorsAndOtherShapesAreNamed) {
  const std::string a = Write("a.safetensors", {{"x", {3, 2}}, {"only.a", {1}}}, 1);
  const std::string b = Write("b.safetensors", {{"x", {2, 3}}, {"only.b", {2}}}, 1);
  EXPECT_THAT(CompareThem(a, b).mismatches,
              ElementsAre("only.a [1] is only in A", "only.b [2] is only in B",
                          "x: shape [3, 2] in A, [2, 3] in B"));
}

TEST_F(CompareFiles, DtypesAreWidenedAndItIsSaid) {
  const std::string a = Write("a.safetensors", {{"x", {3}}, {"y", {1}}}, 1.5F);
  const std::string b = Write("b.safetensors", {{"x", {3}}, {"y", {1}}}, 1.5F, DType::kFloat16);
  const Comparison same = CompareThem(a, b);
  EXPECT_TRUE(same.equal());
  EXPECT_EQ(same.widened, 2u);
  EXPECT_THAT(ToTable(same), HasSubstr("equal values; 2 tensors are stored in another dtype in B"));
  const std::string c = Write("c.safetensors", {{"x", {3}}, {"y", {1}}}, 2, DType::kBFloat16);
  EXPECT_THAT(ToTable(CompareThem(b, c)), HasSubstr("weight (fp16, bf16)"));
}

TEST_F(CompareFiles, TheTiedHeadCountsOnlyWhereBothStoreIt) {
  const std::string none = Write("none.safetensors", {{"wte.weight", {2}}}, 1);
  const std::string tied =
      Write("tied.safetensors", {{"wte.weight", {2}}, {"lm_head.weight", {2}}}, 1);
  const std::string head = Write("head.safetensors", {{"lm_head.weight", {2}}}, 1);
  EXPECT_TRUE(CompareThem(none, tied).equal());
  EXPECT_TRUE(CompareThem(tied, none).equal());
  EXPECT_TRUE(CompareThem(none, head).equal());
  EXPECT_EQ(CompareThem(tied, tied).tensors, 2u);
}

TEST_F(CompareFiles, WhatCannotBeComparedIsRefused) {
  folder_.Write("empty/readme.txt", "");
  EXPECT_TRUE(FailsWith(ComparedModel::Open(folder_.Path("empty")), ErrorCode::kNotFound,
                        {folder_.Path("empty"), "run.json", "*.safetensors"}));
  EXPECT_TRUE(FailsWith(ComparedModel::Open(folder_.Path("no")), ErrorCode::kNotFound, {"no"}));
  const std::string header = R"({"mask":{"dtype":"BOOL","shape":[6],"data_offsets":[0,6]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  const std::string path = folder_.Write("m.safetensors", length + header + "123456");
  EXPECT_TRUE(
      FailsWith(ComparedModel::Open(path), ErrorCode::kInvalidArgument, {path, "mask", "BOOL"}));
}

}  // namespace
}  // namespace penstock::train
