// Names with shape, and how many parameters they have.
#include "sizing/model_shape.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace penstock::train {
namespace {

ModelShape ShapeOf(const std::string& text) {
  Result<ModelShape> shape = ParseModelShape(text);
  EXPECT_TRUE(shape.ok()) << (shape.ok() ? "" : shape.error().message);
  return shape.ok() ? *shape : ModelShape{};
}

uint64_t TotalOf(const std::string& text) { return CountParameters(ShapeOf(text)).total(); }

std::string ErrorOf(const std::string& text) {
  const Result<ModelShape> shape = ParseModelShape(text);
  return shape.ok() ? "no error" : shape.error().message;
}

TEST(ModelShapeTest, CountsGpt2AsItsPublishedFormulaDoes) {
  struct Case {
    uint64_t h, l, v, total, ratio;
  };
  for (const Case& c : std::vector<Case>{{11600, 64, 50257, 103958492400, 181},
                                         {20480, 105, 50257, 529581506560, 195}}) {
    const ModelShape shape = ShapeOf(fmt::format("gpt2:h={},l={},v={},s=2048", c.h, c.l, c.v));
    EXPECT_EQ(CountParameters(shape).total(), c.total);
    EXPECT_EQ(WidthToDepth(shape), c.ratio);
  }
  EXPECT_EQ(TotalOf("gpt2:h=64,l=3,v=256,s=64"), 170560);
  EXPECT_EQ(TotalOf("gpt2:h=768,l=12,v=50257,s=1024"), 124439808);
}

TEST(ModelShapeTest, LargeModelsHaveTheBillionsAndRatiosOfTheirNames) {
  struct Case {
    uint64_t h, l, v, billions, ratio;
  };
  for (const Case& c : std::vector<Case>{{12288, 112, 150257, 205, 109},
                                         {13312, 96, 150257, 206, 138},
                                         {12288, 80, 50257, 146, 153},
                                         {16384, 96, 50257, 310, 170},
                                         {14336, 80, 150257, 199, 179},
                                         {14336, 70, 250880, 176, 204}}) {
    const ModelShape shape = ShapeOf(fmt::format("gpt2:h={},l={},v={},s=2048", c.h, c.l, c.v));
    EXPECT_EQ((CountParameters(shape).total() + 500000000) / 1000000000, c.billions);
    EXPECT_EQ(WidthToDepth(shape), c.ratio);
  }
}

TEST(ModelShapeTest, KindsOfGpt2AddUpToTheFormulaForAnyShape) {
  std::mt19937_64 random(1);
  const auto draw = [&](uint64_t most) { return 1 + random() % most; };
  for (int i = 0; i < 1000; ++i) {
    const uint64_t h = draw(20000), l = draw(200), v = draw(300000), s = draw(10000);
    const ModelShape shape = ShapeOf(fmt::format("gpt2:h={},l={},v={},s={}", h, l, v, s));
    const ParameterKinds kinds = CountParameters(shape);
    EXPECT_EQ(kinds.total(), l * (12 * h * h + 13 * h) + v * h + s * h + 2 * h);
    EXPECT_EQ(LayerParameters(shape), 12 * h * h + 13 * h);
    EXPECT_EQ(kinds.embedding, v * h);
    EXPECT_EQ(kinds.positions, s * h);
    EXPECT_EQ(kinds.attention, l * (4 * h * h + 4 * h));
    EXPECT_EQ(kinds.mlp, l * (8 * h * h + 5 * h));
    EXPECT_EQ(kinds.norms, (2 * l + 1) * 2 * h);
    EXPECT_EQ(kinds.head, 0);
  }
}

TEST(ModelShapeTest, CountsPublishedLlamas) {
  const std::string llama2 = "llama:h=4096,l=32,v=32000,i=11008,heads=32";
  EXPECT_EQ(TotalOf(llama2), 6738415616);
  EXPECT_EQ(TotalOf(llama2 + ",kv=32"), 6738415616);
  EXPECT_EQ(TotalOf("llama:h=2048,l=22,v=32000,i=5632,heads=32,kv=4"), 1100048384);
  EXPECT_EQ(TotalOf("llama:h=4096,l=32,v=128256,i=14336,heads=32,kv=8"), 8030261248);
  EXPECT_EQ(TotalOf("llama:h=16384,l=126,v=128256,i=53248,heads=128,kv=8"), 405853388800);
  // Llama-3.2-1B ties its head.
  EXPECT_EQ(TotalOf("llama:h=2048,l=16,v=128256,i=8192,heads=32,kv=8,head=0"), 1235814400);
}

TEST(ModelShapeTest, CountsT5AndItsLargestModule) {
  const ModelShape xl = ShapeOf("t5:h=2048,l=24,v=32128,i=5120,heads=32");
  EXPECT_EQ(CountParameters(xl).total(), 2783959040);
  EXPECT_EQ(LargestModule(xl), 65798144);
  EXPECT_EQ(TotalOf("t5:h=2048,l=24,v=32128,i=5120,heads=32,head=1"), 2849757184);
  EXPECT_EQ(TotalOf("t5:h=512,l=6,v=32128,i=2048,heads=8,gated=0"), 60506624);
  // Heads of T5-3B are together wider than the model.
  EXPECT_EQ(TotalOf("t5:h=1024,l=24,v=32128,i=16384,heads=32,d=128,gated=0"), 2851598336);
}

TEST(ModelShapeTest, CountsBloomWithTheNormBehindItsEmbedding) {
  const ModelShape bloom = ShapeOf("bloom:h=14336,l=70,v=250880");
  EXPECT_EQ(CountParameters(bloom).total(), 176247271424);
  EXPECT_EQ(CountParameters(bloom).positions, 0);
  EXPECT_EQ(TotalOf("bloom:h=1024,l=24,v=250880,heads=16"), 559214592);  // bloom-560m
}

TEST(ModelShapeTest, TheLargestModuleIsOneMatrixWithItsBias) {
  EXPECT_EQ(LargestModule(ShapeOf("gpt2:h=1000,l=3,v=5000,s=10")), 5000 * 1000);
  EXPECT_EQ(LargestModule(ShapeOf("gpt2:h=1000,l=3,v=50,s=10")), 4000 * 1000 + 4000);
  EXPECT_EQ(LargestModule(ShapeOf("gpt2:h=1000,l=3,v=50,s=10,i=100")), 3000 * 1000 + 3000);
  EXPECT_EQ(LargestModule(ShapeOf("gpt2:h=1000,l=3,v=50,s=9000")), 9000 * 1000);
  EXPECT_EQ(LargestModule(ShapeOf("gpt2:h=1000,l=3,v=50,s=10,i=3")), 3000 * 1000 + 3000);
  EXPECT_EQ(LargestModule(ShapeOf("llama:h=100,l=3,v=50,i=300,heads=4")), 300 * 100);
}

TEST(ModelShapeTest, TensorsOfOneNameAreOneModule) {
  const std::vector<NamedElements> tensors = {
      {"a.weight", 10}, {"a.bias", 5}, {"b.weight", 12}, {"c.d.weight", 8}, {"c.weight", 9}};
  EXPECT_EQ(LargestModule(tensors), 15);
  EXPECT_EQ(LargestModule(std::vector<NamedElements>{}), 0);
}

TEST(ModelShapeTest, TellsAShapeFromAPath) {
  EXPECT_TRUE(IsModelShape("gpt2:h=12288,l=96"));
  EXPECT_TRUE(IsModelShape("gpt3:h=1"));
  for (const char* path :
       {"gpt2", "config.json", "models/a:b=1", "./gpt2:h=1", ":h=1", "c:model"}) {
    EXPECT_FALSE(IsModelShape(path)) << path;
  }
}

TEST(ModelShapeTest, GivesWhatIsNotSaidItsUsualValue) {
  const ModelShape gpt2 = ShapeOf("gpt2:h=64,l=3,v=256,s=64,heads=4");
  EXPECT_EQ(gpt2.inner, 256);
  EXPECT_EQ(gpt2.head_width, 16);
  EXPECT_EQ(ShapeOf("gpt2:h=64,l=3,v=256,s=64").heads, 0);
  const ModelShape llama = ShapeOf("llama:h=64,l=3,v=256,i=100,heads=4");
  EXPECT_EQ(llama.kv_heads, 4);
  EXPECT_EQ(llama.sequence, 2048);
  EXPECT_TRUE(llama.head);
  EXPECT_EQ(ShapeOf("t5:h=64,l=3,v=256,i=100,heads=4").decoder_layers, 3);
  EXPECT_EQ(ShapeOf("t5:h=64,l=3,dl=5,v=256,i=100,heads=4").decoder_layers, 5);
}

TEST(ModelShapeTest, SaysWhatIsWrongAndWhatToDo) {
  EXPECT_EQ(ErrorOf("gpt3:h=1,l=1,v=1,s=1"),
            "model shape \"gpt3:h=1,l=1,v=1,s=1\": unknown family \"gpt3\"; did you mean \"gpt2\"? "
            "the families are gpt2, llama, t5 and bloom");
  EXPECT_EQ(ErrorOf("mixtral:h=1"),
            "model shape \"mixtral:h=1\": unknown family \"mixtral\"; the families are gpt2, "
            "llama, t5 and bloom");
  EXPECT_EQ(ErrorOf("gpt2:hidden=1"),
            "model shape \"gpt2:hidden=1\": gpt2 has no key \"hidden\"; did you mean \"h\" "
            "(hidden_size)? its keys are h, l, v, s, i, heads, head");
  EXPECT_EQ(ErrorOf("gpt2:kv=1"),
            "model shape \"gpt2:kv=1\": gpt2 has no key \"kv\"; did you mean \"v\" (vocab_size)? "
            "its keys are h, l, v, s, i, heads, head");
  EXPECT_EQ(ErrorOf("gpt2:h=1,l=1,v=1"),
            "model shape \"gpt2:h=1,l=1,v=1\": s (sequence_length) is missing; write it as in "
            "gpt2:h=12288,l=96,v=50257,s=2048");
  EXPECT_EQ(ErrorOf("gpt2:h=1,h=1"),
            "model shape \"gpt2:h=1,h=1\": h is there twice; leave one out");
  EXPECT_EQ(ErrorOf("gpt2:h"), "model shape \"gpt2:h\": h has no value; write h=NUMBER");
  EXPECT_EQ(ErrorOf("gpt2:h=12k"),
            "model shape \"gpt2:h=12k\": h: \"12k\" is not a whole number from 1 to 4294967296");
  EXPECT_EQ(ErrorOf("gpt2:h=0"),
            "model shape \"gpt2:h=0\": h: \"0\" is not a whole number from 1 to 4294967296");
  EXPECT_EQ(ErrorOf("gpt2:h=4294967296,l=4294967296,v=1,s=1"),
            "model shape \"gpt2:h=4294967296,l=4294967296,v=1,s=1\": it has more parameters than "
            "64 bits count; make h, l, v or i smaller");
  EXPECT_EQ(ErrorOf("gpt2:h=99999999999999999999"),
            "model shape \"gpt2:h=99999999999999999999\": h: \"99999999999999999999\" is not a "
            "whole number from 1 to 4294967296");
  EXPECT_EQ(ErrorOf("gpt2:h=10,l=1,v=1,s=1,heads=3"),
            "model shape \"gpt2:h=10,l=1,v=1,s=1,heads=3\": heads=3 does not divide h=10; choose "
            "heads that do");
  EXPECT_EQ(ErrorOf("llama:h=10,l=1,v=1,i=1,heads=3"),
            "model shape \"llama:h=10,l=1,v=1,i=1,heads=3\": heads=3 does not divide h=10; choose "
            "heads that do, or give d");
  EXPECT_EQ(ErrorOf("llama:h=8,l=1,v=1,i=1,heads=4,kv=3"),
            "model shape \"llama:h=8,l=1,v=1,i=1,heads=4,kv=3\": kv=3 does not divide heads=4; "
            "choose kv that does");
  EXPECT_EQ(ErrorOf("gpt2"),
            "model shape \"gpt2\": h (hidden_size) is missing; write it as in "
            "gpt2:h=12288,l=96,v=50257,s=2048");
  EXPECT_EQ(ErrorOf("gpt2:,h=1"),
            "model shape \"gpt2:,h=1\": gpt2 has no key \"\"; its keys are h, "
            "l, v, s, i, heads, head");
}

TEST(ModelShapeTest, TheNearestKeyIsOfTheFamilyAndByMeaning) {
  const std::vector<std::pair<std::string, std::string>> hints = {
      {"n_embd", "h"},   {"d_model", "h"},     {"layer", "l"},
      {"n_layers", "l"}, {"vocab", "v"},       {"seq_length", "s"},
      {"d_ff", "i"},     {"n_heads", "heads"}, {"kv_head", "kv"}};
  for (const auto& [written, meant] : hints) {
    EXPECT_NE(ErrorOf(fmt::format("llama:{}=1", written)).find(fmt::format("mean \"{}\"", meant)),
              std::string::npos)
        << ErrorOf(fmt::format("llama:{}=1", written));
  }
  EXPECT_EQ(ErrorOf("llama:q=1").find("did you mean"), std::string::npos);
}

}  // namespace
}  // namespace penstock::train
