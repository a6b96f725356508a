// Loss and gradients against an independent GPT-2 in PyTorch, which computes in double precision.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tests/train/models/gpt2_rig.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

const Gpt2Config kConfig = {.vocab_size = 50,
                            .n_positions = 12,
                            .n_embd = 24,
                            .n_layer = 2,
                            .n_head = 3,
                            .n_inner = 40,
                            .initializer_range = 0.2};
const BatchShape kReferenceShape = {.micro_batch = 2, .micro_batches = 3, .sequence = 11};

struct Output {
  int exit_code;
  std::string text;  // stdout
};

Output RunCommand(const std::string& command) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {-1, ""};
  Output output{};
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) output.text.append(buffer, n);
  const int status = pclose(pipe);
  output.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return output;
}

class Gpt2ReferenceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (RunCommand(PENSTOCK_TEST_PYTHON " -c 'import torch' 2>&1").exit_code != 0) {
      GTEST_SKIP() << PENSTOCK_TEST_PYTHON << " has no torch";
    }
    folder_ = fs::path(::testing::TempDir()) / ("gpt2_reference_" + std::to_string(getpid()));
    fs::create_directories(folder_);
  }
  void TearDown() override {
    if (!folder_.empty()) fs::remove_all(folder_);
  }

  void WriteModel(FakeEngine& engine);
  void WriteTokens(const std::vector<uint16_t>& tokens);
  nlohmann::json RunReference();
  static std::vector<float> ReadNpy(const fs::path& path);

  fs::path folder_;
};

void Gpt2ReferenceTest::WriteModel(FakeEngine& engine) {
  std::ofstream(folder_ / "config.json")
      << nlohmann::json{{"n_layer", kConfig.n_layer},
                        {"n_head", kConfig.n_head},
                        {"layer_norm_epsilon", kConfig.layer_norm_epsilon}};
  nlohmann::json header;
  std::string data;
  for (const offload::ModuleLayout& module : engine.layout().model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const auto weights = std::as_bytes(engine.weights(tensor.name));
      header[tensor.name] = {{"dtype", "F32"},
                             {"shape", tensor.shape},
                             {"data_offsets", {data.size(), data.size() + weights.size()}}};
      data.append(reinterpret_cast<const char*>(weights.data()), weights.size());
    }
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream file(folder_ / "model.safetensors", std::ios::binary);
  file.write(reinterpret_cast<const char*>(&length), sizeof(length));
  file << text << data;
}

void Gpt2ReferenceTest::WriteTokens(const std::vector<uint16_t>& tokens) {
  std::ofstream file(folder_ / "tokens.bin", std::ios::binary);
  file.write(reinterpret_cast<const char*>(tokens.data()),
             static_cast<std::streamsize>(tokens.size() * sizeof(tokens[0])));
}

nlohmann::json Gpt2ReferenceTest::RunReference() {
  const std::string folder = fmt::format("'{}'", folder_.string());
  const Output output = RunCommand(fmt::format(
      "{} '{}' --model {} --data {}/tokens.bin --steps 1 --batch {} --accumulate {} --sequence {} "
      "--dtype float64 --out {}/out",
      PENSTOCK_TEST_PYTHON, PENSTOCK_GPT2_REFERENCE, folder, folder, kReferenceShape.micro_batch,
      kReferenceShape.micro_batches, kReferenceShape.sequence, folder));
  EXPECT_EQ(output.exit_code, 0);
  return nlohmann::json::parse(output.text);
}

/// A version 1 file of little-endian fp32: 10 bytes, the last two the length of a header, then
/// data.
std::vector<float> Gpt2ReferenceTest::ReadNpy(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  uint16_t header = 0;
  if (bytes.size() < 10 || bytes.find("'<f4'") == std::string::npos) return {};
  std::memcpy(&header, bytes.data() + 8, sizeof(header));
  std::vector<float> values((bytes.size() - 10 - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + 10 + header, values.size() * sizeof(float));
  return values;
}

TEST_F(Gpt2ReferenceTest, LossAndGradientsAgreeElementByElement) {
  Gpt2Rig rig(kConfig, kReferenceShape);
  WriteModel(*rig.engine);
  const uint64_t count =
      kReferenceShape.micro_batches * kReferenceShape.micro_batch * kReferenceShape.sequence;
  Tokens tokens = TestTokens(kConfig.vocab_size, count + 1, 9);
  WriteTokens({tokens.inputs.begin(), tokens.inputs.end()});
  tokens.targets.assign(tokens.inputs.begin() + 1, tokens.inputs.end());
  tokens.inputs.pop_back();
  const double loss = rig.Step(tokens);

  const nlohmann::json reference = RunReference();
  EXPECT_NEAR(loss, reference["losses"][0].get<double>(), 1e-5 * loss);
  double square = 0;
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto gradient = rig.engine->gradients(name);
    const auto expected = ReadNpy(folder_ / "out" / "gradients" / (name + ".npy"));
    ASSERT_EQ(expected.size(), gradient.size()) << name;
    double largest = 0;
    for (const float value : expected) largest = std::max(largest, std::abs(double{value}));
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(gradient[i], expected[i], 1e-4 * largest) << name << " element " << i;
      square += double{gradient[i]} * gradient[i];
    }
  }
  EXPECT_NEAR(std::sqrt(square), reference["grad_norms"][0].get<double>(),
              1e-4 * std::sqrt(square));
}

}  // namespace
}  // namespace penstock::train
