#include "train/weights/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "tests/temp_folder.h"
#include "train/models/gpt2_family.h"
#include "train/weights/safetensors_writer.h"

namespace penstock::train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Tensor = SafetensorsWriter::Tensor;

zero::ModelSpec TwoModules() {
  zero::ModelSpec spec;
  spec.modules = {{"wte", {{"wte.weight", {3, 2}, offload::kDecay}}},
                  {"h.0",
                   {{"h.0.attn.c_attn.weight", {2, 6}, offload::kDecay},
                    {"h.0.attn.c_attn.bias", {6}, offload::kNoDecay}}}};
  return spec;
}

const std::vector<Tensor> kTensors = {
    {"wte.weight", {3, 2}}, {"h.0.attn.c_attn.weight", {2, 6}}, {"h.0.attn.c_attn.bias", {6}}};

class Weights : public testing::Test {
 protected:
  /// Writes tensors of 0, 1, 2, … counted through the file from `first`.
  std::string Write(const std::string& name, const std::vector<Tensor>& tensors, float first = 0,
                    DType dtype = DType::kFloat32) const {
    std::string path = folder_.Path(name);
    auto writer = SafetensorsWriter::Create(path, dtype, tensors).value();
    for (const Tensor& tensor : tensors) {
      uint64_t elements = 1;
      for (const uint64_t extent : tensor.shape) elements *= extent;
      std::vector<float> values(elements);
      std::iota(values.begin(), values.end(), first);
      first += static_cast<float>(elements);
      PENSTOCK_CHECK(writer.Append(values).ok());
    }
    PENSTOCK_CHECK(writer.Finish().ok());
    return path;
  }
  Result<WeightFiles> Open(const std::vector<std::string>& files) const {
    return OpenWeights({.files = files, .indices = {}}, TwoModules(), Gpt2Family().names());
  }
  testing::AssertionResult Refused(const std::vector<std::string>& files,
                                   const std::vector<std::string>& parts) const {
    return FailsWith(Open(files), ErrorCode::kInvalidArgument, parts);
  }
  std::vector<float> Read(const WeightFiles& weights, uint32_t module, size_t tensor,
                          uint64_t begin, uint64_t count) const {
    std::vector<float> values(count);
    const Status status =
        weights.source(static_cast<zero::ModuleId>(module), tensor, begin, values);
    EXPECT_TRUE(status.ok()) << (status.ok() ? "" : status.error().message);
    return values;
  }

  TempFolder folder_;
};

std::vector<Tensor> Prefixed(std::vector<Tensor> tensors) {
  for (Tensor& tensor : tensors) tensor.name = "transformer." + tensor.name;
  return tensors;
}

TEST_F(Weights, NamesAreFoundWithAndWithoutThePrefix) {
  for (const auto& tensors : {kTensors, Prefixed(kTensors)}) {
    const WeightFiles weights = Open({Write("m.safetensors", tensors)}).value();
    EXPECT_THAT(Read(weights, 0, 0, 0, 6), ElementsAre(0, 1, 2, 3, 4, 5));
    EXPECT_THAT(Read(weights, 1, 0, 4, 3), ElementsAre(10, 11, 12));
    EXPECT_THAT(Read(weights, 1, 1, 5, 1), ElementsAre(23));
    EXPECT_THAT(weights.notices, IsEmpty());
  }
}

TEST_F(Weights, TheSourceKeepsTheFilesOpen) {
  zero::TensorSource source;
  {
    WeightFiles weights = Open({Write("m.safetensors", kTensors)}).value();
    source = std::move(weights.source);
  }
  std::filesystem::remove(folder_.Path("m.safetensors"));
  std::vector<float> values(1);
  ASSERT_TRUE(source(zero::ModuleId{0}, 0, 5, values).ok());
  EXPECT_THAT(values, ElementsAre(5));
}

TEST_F(Weights, TensorsAreFoundAcrossShardsOfDifferentDtypes) {
  const std::vector<std::string> files = {
      Write("1.safetensors", Prefixed({kTensors[2]}), 100, DType::kFloat16),
      Write("2.safetensors", Prefixed({kTensors[0], kTensors[1]}), 0, DType::kBFloat16)};
  const WeightFiles weights = Open(files).value();
  EXPECT_THAT(Read(weights, 1, 1, 0, 6), ElementsAre(100, 101, 102, 103, 104, 105));
  EXPECT_THAT(Read(weights, 1, 0, 0, 2), ElementsAre(6, 7));
}

TEST_F(Weights, TheTiedHeadAndOldMasksAreLeftOut) {
  std::vector<Tensor> tensors = Prefixed(kTensors);
  tensors.push_back({"lm_head.weight", {3, 2}});
  tensors.push_back({"transformer.h.0.attn.bias", {1, 1, 4, 4}});
  tensors.push_back({"h.11.attn.masked_bias", {}});
  const WeightFiles weights = Open({Write("m.safetensors", tensors)}).value();
  EXPECT_THAT(weights.notices, IsEmpty());
}

TEST_F(Weights, ATiedMatrixKeptAsTheHeadOnlyIsTheEmbedding) {
  std::vector<Tensor> tensors = Prefixed(kTensors);
  tensors[0].name = "lm_head.weight";
  const WeightFiles weights = Open({Write("m.safetensors", tensors)}).value();
  EXPECT_THAT(Read(weights, 0, 0, 2, 2), ElementsAre(2, 3));
  tensors[0].shape = {2, 3};
  EXPECT_TRUE(Refused({Write("m.safetensors", tensors)}, {"lm_head.weight", "[2, 3]", "[3, 2]"}));
}

TEST_F(Weights, TensorsOutsideTheModelAreNoticed) {
  std::vector<Tensor> tensors = kTensors;
  for (int i = 0; i < 9; ++i) tensors.push_back({fmt::format("h.{}.attn.c_attn.bias", i + 1), {6}});
  tensors.push_back({"h.x.attn.bias", {1}});
  const WeightFiles weights = Open({Write("m.safetensors", tensors)}).value();
  EXPECT_THAT(weights.notices,
              ElementsAre(AllOf(HasSubstr("10 of the tensors"), HasSubstr("h.1.attn.c_attn.bias, "),
                                HasSubstr("…"))));
}

TEST_F(Weights, AMissingTensorIsNamedBeforeAnythingIsRead) {
  const std::string path = Write("m.safetensors", {kTensors[0], kTensors[1]});
  EXPECT_TRUE(Refused({path}, {"h.0.attn.c_attn.bias", "[6]", "missing", path}));
  const std::string rest = Write("n.safetensors", {{"other", {1}}});
  EXPECT_TRUE(Refused({path, rest}, {"h.0.attn.c_attn.bias", path, "1 more"}));
}

TEST_F(Weights, AWrongShapeIsNamedWithBoth) {
  std::vector<Tensor> tensors = Prefixed(kTensors);
  // The same elements in another order: a transposed matrix must not pass.
  tensors[1].shape = {6, 2};
  const std::string path = Write("m.safetensors", tensors);
  EXPECT_TRUE(Refused({path}, {path, "transformer.h.0.attn.c_attn.weight", "[6, 2]", "[2, 6]"}));
}

TEST_F(Weights, ATensorThatIsThereTwiceIsRefused) {
  const std::string one = Write("1.safetensors", kTensors);
  const std::string two = Write("2.safetensors", Prefixed({kTensors[0]}));
  EXPECT_TRUE(Refused({one, two}, {"wte.weight", one, two, "transformer.wte.weight"}));
}

class IndexedWeights : public Weights {
 protected:
  /// Two shards of the model and an index with this "weight_map".
  Result<WeightFiles> OpenIndexed(const std::string& map) const {
    Write("1.safetensors", {kTensors[0]});
    Write("2.safetensors", {kTensors[1], kTensors[2]});
    folder_.Write("model.safetensors.index.json", R"({"weight_map": {)" + map + "}}");
    return OpenWeights(FindSafetensors(folder_.Path()).value(), TwoModules(), Gpt2Family().names());
  }
};

TEST_F(IndexedWeights, AnIndexThatSaysWhatTheFilesHoldIsAccepted) {
  const auto weights = OpenIndexed(R"("wte.weight": "1.safetensors",
      "h.0.attn.c_attn.weight": "2.safetensors", "h.0.attn.c_attn.bias": "2.safetensors")");
  ASSERT_TRUE(weights.ok()) << weights.error().message;
  EXPECT_THAT(Read(*weights, 1, 1, 4, 2), ElementsAre(16, 17));
}

TEST_F(IndexedWeights, ATensorThatItsFileDoesNotHoldIsNamed) {
  EXPECT_TRUE(FailsWith(OpenIndexed(R"("wte.weight": "2.safetensors")"),
                        ErrorCode::kInvalidArgument,
                        {"model.safetensors.index.json", "tensor wte.weight", "2.safetensors"}));
}

TEST_F(IndexedWeights, ATensorThatTheIndexDoesNotNameIsNamed) {
  EXPECT_TRUE(FailsWith(
      OpenIndexed(R"("wte.weight": "1.safetensors", "h.0.attn.c_attn.weight": "2.safetensors")"),
      ErrorCode::kInvalidArgument,
      {"model.safetensors.index.json", "tensor h.0.attn.c_attn.bias", "2.safetensors"}));
}

TEST_F(Weights, ADtypeThatIsNotReadIsRefusedAtOnce) {
  const std::string header =
      R"({"h.0.attn.c_attn.bias":{"dtype":"F64","shape":[6],"data_offsets":[0,48]}})";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  const std::string path = folder_.Write("2.safetensors", length + header + std::string(48, '\0'));
  EXPECT_TRUE(Refused({Write("1.safetensors", {kTensors[0], kTensors[1]}), path},
                      {path, "h.0.attn.c_attn.bias", "F64"}));
}

TEST_F(Weights, ErrorsOfTheFilesPassThrough) {
  const std::string path = Write("m.safetensors", kTensors);
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_TRUE(FailsWith(Open({path}), ErrorCode::kCorruption, {path, "h.0.attn.c_attn.bias"}));
  EXPECT_TRUE(FailsWith(Open({folder_.Path("no")}), ErrorCode::kNotFound, {folder_.Path("no")}));
}

TEST_F(Weights, ValuesThatAreNotFiniteAreRefused) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    const std::string path = folder_.Path("m.safetensors");
    auto writer = SafetensorsWriter::Create(path, DType::kFloat32, kTensors).value();
    std::vector<float> values(24, 1.0f);
    values[6 + 7] = bad;
    ASSERT_TRUE(writer.Append(values).ok());
    ASSERT_TRUE(writer.Finish().ok());
    const WeightFiles weights = Open({path}).value();
    std::vector<float> read(4);
    EXPECT_TRUE(FailsWith(weights.source(zero::ModuleId{1}, 0, 5, read),
                          ErrorCode::kInvalidArgument,
                          {"element 7", "h.0.attn.c_attn.weight", path, "finite"}));
    EXPECT_TRUE(weights.source(zero::ModuleId{1}, 0, 8, read).ok());
  }
}

}  // namespace
}  // namespace penstock::train
