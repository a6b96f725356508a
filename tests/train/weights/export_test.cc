#include "train/weights/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/dtype.h"
#include "tests/temp_folder.h"
#include "train/models/gpt2_family.h"
#include "train/weights/safetensors.h"
#include "train/weights/safetensors_writer.h"
#include "train/weights/weights.h"
#include "zero/states/source_tiles.h"

namespace penstock::train {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr char kConfig[] = R"({"model_type": "gpt2", "n_embd": 4, "custom": [1, 2]})";

/// A committed state in memory. Fails the read number `fail_at`, where it is set.
class FakeState final : public zero::CommittedState {
 public:
  explicit FakeState(DType dtype) {
    layout_.model.groups = offload::DecayGroups(offload::MakePlanes(dtype));
    Add("wte", {{"wte.weight", {5, 3}}});
    Add("h.0", {{"h.0.ln_1.weight", {3}}, {"h.0.mlp.c_fc.weight", {3, 4}}});
  }

  void Add(const std::string& module, const std::vector<SafetensorsWriter::Tensor>& tensors) {
    offload::ModuleLayout& layout = layout_.model.modules.emplace_back();
    layout.name = module;
    for (const auto& [name, shape] : tensors) {
      uint64_t elements = 1;
      for (const uint64_t extent : shape) elements *= extent;
      layout.tensors.push_back({.name = name, .shape = shape, .elements = elements});
    }
  }
  /// Element `i` of a tensor is `i` times a number that no 16-bit type holds exactly, unless it is
  /// set.
  float Value(const std::string& tensor, uint64_t i) const {
    const auto found = values_.find({tensor, i});
    return found == values_.end() ? 0.1f * static_cast<float>(i) - 0.37f : found->second;
  }
  void Set(const std::string& tensor, uint64_t i, float value) { values_[{tensor, i}] = value; }
  void FailAt(int read) { fail_at_ = read; }
  uint64_t largest_read() const { return largest_read_; }

  const zero::TrainState& train_state() const override { return train_state_; }
  offload::CommitName commit() const override { return {}; }
  std::string uuid() const override { return {}; }
  const offload::ModelLayout& model() const override { return layout_.model; }
  uint32_t world_size() const override { return 1; }
  const offload::ShardLayout& shard(uint32_t) const override { return layout_; }
  bool durable() const override { return true; }
  std::vector<double> Shares() const override { return {1}; }
  Result<std::vector<std::string>> CallerPaths() const override {
    return std::vector<std::string>();
  }
  Result<std::string> ReadCaller() const override { return std::string(); }
  Status ReadState(zero::StateKind kind, zero::ModuleId module, size_t tensor, uint64_t begin,
                   std::span<float> values) override {
    PENSTOCK_CHECK(kind == zero::StateKind::kMaster);
    if (reads_++ == fail_at_) return MakeError(ErrorCode::kCorruption, "tile 7 is damaged");
    const offload::TensorLayout& layout = layout_.module(module).tensors[tensor];
    PENSTOCK_CHECK(begin + values.size() <= layout.elements);
    largest_read_ = std::max<uint64_t>(largest_read_, values.size());
    for (size_t i = 0; i < values.size(); ++i) values[i] = Value(layout.name, begin + i);
    return {};
  }
  uint64_t ReadableAtOnce(zero::ModuleId module, size_t tensor, uint64_t begin) const override {
    return layout_.module(module).tensors[tensor].elements - begin;
  }
  Result<std::unique_ptr<zero::SourceTiles>> OpenTiles(int) const override {
    return MakeError(ErrorCode::kUnavailable, "an export reads tensors in their order");
  }
  std::vector<offload::CommitName> commits() const override { return {commit()}; }
  Status Use(const offload::CommitName&) override { return {}; }
  Result<std::vector<std::string>> DamagedTiles(const offload::CheckProgress&, uint32_t,
                                                uint32_t) const override {
    return std::vector<std::string>();
  }
  Result<zero::CommitCheck> Check(const offload::CheckProgress&) override {
    return zero::CommitCheck{};
  }

 private:
  offload::ShardLayout layout_;
  zero::TrainState train_state_;
  std::map<std::pair<std::string, uint64_t>, float> values_;
  int reads_ = 0;
  int fail_at_ = -1;
  uint64_t largest_read_ = 0;
};

class Export : public testing::Test {
 protected:
  ExportOptions Options(DType dtype = DType::kFloat32) const {
    return {.folder = folder_.Path("out"),
            .family = &Gpt2Family(),
            .config_json = kConfig,
            .dtype = dtype};
  }
  std::string Out(const std::string& name) const { return folder_.Path("out/" + name); }
  SafetensorsReader Open(const std::string& name = "model.safetensors") const {
    return SafetensorsReader::Open(Out(name)).value();
  }
  /// That the file has every tensor of the state, each element as `expected` makes it from the
  /// master.
  template <typename Expected>
  void ExpectValues(const FakeState& state, Expected expected) const {
    const SafetensorsReader reader = Open();
    for (const offload::ModuleLayout& module : state.model().modules) {
      for (const offload::TensorLayout& tensor : module.tensors) {
        const std::string name = "transformer." + tensor.name;
        ASSERT_TRUE(reader.entries().contains(name)) << name;
        EXPECT_EQ(reader.entries().at(name).shape, tensor.shape);
        std::vector<float> values(tensor.elements);
        ASSERT_TRUE(reader.Read(name, 0, values).ok());
        for (uint64_t i = 0; i < tensor.elements; ++i) {
          EXPECT_EQ(std::bit_cast<uint32_t>(values[i]),
                    std::bit_cast<uint32_t>(expected(state.Value(tensor.name, i))))
              << name << " " << i;
        }
      }
    }
  }

  TempFolder folder_;
};

TEST_F(Export, Fp32IsTheExactMaster) {
  for (const DType run : {DType::kFloat32, DType::kBFloat16}) {
    FakeState state(run);
    state.Set("h.0.ln_1.weight", 1, 0x1.234567p-130f);
    ExportOptions options = Options();
    options.folder = folder_.Path("out");
    const ExportReport report = ExportModel(state, options).value();
    ExpectValues(state, [](float master) { return master; });
    EXPECT_EQ(report.elements, 30u);
    EXPECT_EQ(report.tensor_bytes, 120_B);
    EXPECT_THAT(report.files, ElementsAre(Out("model.safetensors"), Out("config.json")));
    std::filesystem::remove_all(folder_.Path("out"));
  }
}

TEST_F(Export, Bf16OfABf16RunIsTheHiHalf) {
  FakeState state(DType::kBFloat16);
  // A tie: nearest even goes down to 1, hi goes away from zero.
  const float tie = 1.0f + 0x1p-8f;
  state.Set("wte.weight", 3, tie);
  state.Set("wte.weight", 4, -tie);
  ASSERT_TRUE(ExportModel(state, Options(DType::kBFloat16)).ok());
  ExpectValues(state, [](float master) { return kernels::ToFloat(kernels::Split(master).hi); });
  std::vector<float> values(2);
  ASSERT_TRUE(Open().Read("transformer.wte.weight", 3, values).ok());
  EXPECT_THAT(values, ElementsAre(1.0f + 0x1p-7f, -(1.0f + 0x1p-7f)));
  EXPECT_EQ(Open().entries().at("transformer.wte.weight").stored, "BF16");
}

TEST_F(Export, Bf16OfAnFp32RunIsNearestEven) {
  FakeState state(DType::kFloat32);
  state.Set("wte.weight", 3, 1.0f + 0x1p-8f);
  ASSERT_TRUE(ExportModel(state, Options(DType::kBFloat16)).ok());
  ExpectValues(state,
               [](float master) { return kernels::ToFloat(kernels::RoundToBFloat16(master)); });
  std::vector<float> values(1);
  ASSERT_TRUE(Open().Read("transformer.wte.weight", 3, values).ok());
  EXPECT_THAT(values, ElementsAre(1.0f));
}

TEST_F(Export, Fp16IsNearestEvenOfTheMaster) {
  FakeState state(DType::kBFloat16);
  state.Set("wte.weight", 3, 1.0f + 0x3p-11f);
  state.Set("wte.weight", 4, 65504.0f);
  ASSERT_TRUE(ExportModel(state, Options(DType::kFloat16)).ok());
  ExpectValues(
      state, [](float master) { return kernels::Float16ToFloat(kernels::RoundToFloat16(master)); });
}

TEST_F(Export, AWeightBeyondFp16IsRefusedAndNothingIsLeft) {
  FakeState state(DType::kFloat32);
  state.Set("h.0.mlp.c_fc.weight", 5, -7e4f);
  EXPECT_TRUE(FailsWith(ExportModel(state, Options(DType::kFloat16)), ErrorCode::kInvalidArgument,
                        {"fp16", "element 5", "h.0.mlp.c_fc.weight", "-70000", "bf16"}));
  EXPECT_FALSE(folder_.Has("out"));
}

TEST_F(Export, WeightsThatNoHealthyTrainingHasAreExportedAndReported) {
  FakeState state(DType::kBFloat16);
  EXPECT_TRUE(ExportModel(state, Options()).value().faults.empty());
  std::filesystem::remove_all(folder_.Path("out"));
  state.Set("h.0.mlp.c_fc.weight", 7, std::numeric_limits<float>::infinity());
  state.Set("h.0.mlp.c_fc.weight", 8, -3e30F);
  const auto report = ExportModel(state, Options(DType::kBFloat16));
  ASSERT_TRUE(report.ok()) << report.error().message;
  ASSERT_EQ(report->faults.size(), 1U);
  EXPECT_EQ(ToText(report->faults[0]),
            "transformer.h.0.mlp.c_fc.weight: of 12 weights 1 are not finite, and 1 are beyond "
            "1e+06, up to 3e+30");
}

TEST_F(Export, TheConfigIsTheRunsWithItsDtype) {
  FakeState state(DType::kFloat32);
  ASSERT_TRUE(ExportModel(state, Options(DType::kBFloat16)).ok());
  EXPECT_EQ(json::parse(folder_.Read("out/config.json")),
            json::parse(R"({"model_type": "gpt2", "n_embd": 4, "custom": [1, 2],
                            "architectures": ["GPT2LMHeadModel"], "torch_dtype": "bfloat16",
                            "bos_token_id": 50256, "eos_token_id": 50256})"));
}

TEST_F(Export, TheConfigHasTokenIdsOfItsVocabularyOnly) {
  struct Case {
    const char* given;
    const char* written;
  };
  for (const Case& ids : {
           Case{R"("vocab_size": 256)", R"("bos_token_id": null, "eos_token_id": null)"},
           Case{R"("vocab_size": 50257)", R"("bos_token_id": 50256, "eos_token_id": 50256)"},
           Case{R"("vocab_size": 256, "bos_token_id": 255, "eos_token_id": [0, 1])",
                R"("bos_token_id": 255, "eos_token_id": [0, 1])"},
           Case{R"("vocab_size": 256, "bos_token_id": 256, "eos_token_id": [0, 256],
                   "pad_token_id": -1)",
                R"("bos_token_id": null, "eos_token_id": null, "pad_token_id": null)"},
           Case{R"("vocab_size": 256, "bos_token_id": null, "eos_token_id": 7,
                   "pad_token_id": 0)",
                R"("bos_token_id": null, "eos_token_id": 7, "pad_token_id": 0)"},
       }) {
    const TempFolder folder;
    FakeState state(DType::kFloat32);
    ExportOptions options = Options();
    options.folder = folder.Path("out");
    options.config_json = fmt::format("{{{}}}", ids.given);
    ASSERT_TRUE(ExportModel(state, options).ok());
    json written = json::parse(folder.Read("out/config.json"));
    for (const char* key : {"architectures", "torch_dtype", "vocab_size"}) written.erase(key);
    EXPECT_EQ(written, json::parse(fmt::format("{{{}}}", ids.written))) << ids.given;
  }
}

TEST_F(Export, ABrokenConfigIsRefusedBeforeAnythingIsWritten) {
  FakeState state(DType::kFloat32);
  ExportOptions options = Options();
  options.config_json = "{";
  EXPECT_TRUE(FailsWith(ExportModel(state, options), ErrorCode::kInvalidArgument, {"config.json"}));
  EXPECT_FALSE(folder_.Has("out"));
}

TEST_F(Export, ShardsHoldWholeTensorsUpToTheLimitAndAnIndexNamesThem) {
  FakeState state(DType::kFloat32);  // 15, 3 and 12 elements
  ExportOptions options = Options();
  options.shard_limit = 60_B;
  const ExportReport report = ExportModel(state, options).value();
  EXPECT_THAT(report.files, ElementsAre(Out("model-00001-of-00002.safetensors"),
                                        Out("model-00002-of-00002.safetensors"),
                                        Out("model.safetensors.index.json"), Out("config.json")));
  EXPECT_EQ(Open("model-00001-of-00002.safetensors").entries().size(), 1u);
  EXPECT_EQ(Open("model-00002-of-00002.safetensors").entries().size(), 2u);
  EXPECT_EQ(json::parse(folder_.Read("out/model.safetensors.index.json")), json::parse(R"({
    "metadata": {"total_size": 120},
    "weight_map": {"transformer.wte.weight": "model-00001-of-00002.safetensors",
                   "transformer.h.0.ln_1.weight": "model-00002-of-00002.safetensors",
                   "transformer.h.0.mlp.c_fc.weight": "model-00002-of-00002.safetensors"}})"));
}

TEST_F(Export, ATensorAboveTheLimitHasAFileOfItsOwn) {
  FakeState state(DType::kFloat32);
  ExportOptions options = Options();
  options.shard_limit = 13_B;
  const ExportReport report = ExportModel(state, options).value();
  EXPECT_EQ(report.files.size(), 5u);
  EXPECT_EQ(Open("model-00001-of-00003.safetensors").entries().size(), 1u);
  EXPECT_EQ(Open("model-00003-of-00003.safetensors").entries().size(), 1u);
}

TEST_F(Export, MemoryIsBoundedByChunksForAnyTensor) {
  FakeState state(DType::kFloat32);
  state.Add("big", {{"big.weight", {3, 1 << 20}}, {"big.bias", {(1 << 20) + 1}}});
  ASSERT_TRUE(ExportModel(state, Options()).ok());
  EXPECT_EQ(state.largest_read(), uint64_t{1} << 20);
  std::vector<float> values(1);
  for (const uint64_t at : {uint64_t{1} << 20, (uint64_t{3} << 20) - 1}) {
    ASSERT_TRUE(Open().Read("transformer.big.weight", at, values).ok());
    EXPECT_EQ(values[0], state.Value("big.weight", at));
  }
  ASSERT_TRUE(Open().Read("transformer.big.bias", 1 << 20, values).ok());
  EXPECT_EQ(values[0], state.Value("big.bias", 1 << 20));
}

TEST_F(Export, WhatIsThereIsNotOverwritten) {
  for (const char* name : {"config.json", "model.safetensors", "model-00001-of-00009.safetensors",
                           "model.safetensors.index.json"}) {
    folder_.Write(std::string("out/") + name, "mine");
    FakeState state(DType::kFloat32);
    EXPECT_TRUE(FailsWith(ExportModel(state, Options()), ErrorCode::kInvalidArgument,
                          {folder_.Path("out"), name, "not overwritten"}));
    EXPECT_EQ(folder_.Read(std::string("out/") + name), "mine");
    std::filesystem::remove_all(folder_.Path("out"));
  }
}

TEST_F(Export, AFolderWithOtherFilesIsUsedAndKept) {
  folder_.Write("out/tokenizer.json", "{}");
  FakeState failing(DType::kFloat32);
  failing.FailAt(1);
  EXPECT_FALSE(ExportModel(failing, Options()).ok());
  EXPECT_TRUE(folder_.Has("out/tokenizer.json"));
  FakeState state(DType::kFloat32);
  EXPECT_TRUE(ExportModel(state, Options()).ok());
  EXPECT_TRUE(folder_.Has("out/config.json"));
  EXPECT_TRUE(folder_.Has("out/tokenizer.json"));
}

TEST_F(Export, FoldersAboveAreCreated) {
  FakeState state(DType::kFloat32);
  ExportOptions options = Options();
  options.folder = folder_.Path("a/b/c");
  ASSERT_TRUE(ExportModel(state, options).ok());
  EXPECT_TRUE(folder_.Has("a/b/c/config.json"));
}

TEST_F(Export, AFileInTheFoldersPlaceIsNamed) {
  folder_.Write("out", "");
  FakeState state(DType::kFloat32);
  EXPECT_TRUE(FailsWith(ExportModel(state, Options()), ErrorCode::kInvalidArgument,
                        {folder_.Path("out"), "is a file"}));
}

TEST_F(Export, AFailedReadLeavesNothingBehind) {
  for (int read = 0; read < 3; ++read) {
    FakeState state(DType::kFloat32);
    state.FailAt(read);
    ExportOptions options = Options();
    options.shard_limit = 60_B;
    EXPECT_TRUE(FailsWith(ExportModel(state, options), ErrorCode::kCorruption, {"tile 7"}));
    EXPECT_THAT(folder_.List(), IsEmpty());
  }
}

TEST_F(Export, AskedToStopItLeavesNothingBehind) {
  for (int chunks = 0; chunks < 3; ++chunks) {
    FakeState state(DType::kFloat32);
    ExportOptions options = Options();
    options.shard_limit = 60_B;
    options.stop_requested = [asked = 0, chunks]() mutable { return asked++ == chunks; };
    EXPECT_TRUE(FailsWith(ExportModel(state, options), ErrorCode::kCancelled, {"interrupted"}));
    EXPECT_THAT(folder_.List(), IsEmpty());
  }
}

TEST_F(Export, FoldersMadeAboveAFailedExportAreRemoved) {
  FakeState state(DType::kFloat32);
  state.FailAt(0);
  folder_.Write("a/mine", "");
  ExportOptions options = Options();
  options.folder = folder_.Path("a/b/c");
  EXPECT_FALSE(ExportModel(state, options).ok());
  EXPECT_THAT(folder_.List("a"), ElementsAre("mine"));
}

TEST_F(Export, AnExportLoadsAsAModelsWeights) {
  FakeState state(DType::kFloat32);
  ExportOptions options = Options();
  options.shard_limit = 60_B;
  const ExportReport report = ExportModel(state, options).value();
  zero::ModelSpec spec;
  for (const offload::ModuleLayout& module : state.model().modules) {
    zero::ModuleSpec& added = spec.modules.emplace_back();
    for (const offload::TensorLayout& tensor : module.tensors) {
      added.tensors.push_back({.name = tensor.name, .shape = tensor.shape});
    }
  }
  const WeightFiles weights =
      OpenWeights(FindSafetensors(folder_.Path("out")).value(), spec, Gpt2Family().names()).value();
  std::vector<float> values(12);
  ASSERT_TRUE(weights.source(zero::ModuleId{1}, 1, 0, values).ok());
  for (uint64_t i = 0; i < 12; ++i) EXPECT_EQ(values[i], state.Value("h.0.mlp.c_fc.weight", i));
  EXPECT_THAT(weights.notices, IsEmpty());
}

}  // namespace
}  // namespace penstock::train
