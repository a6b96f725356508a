#include "tests/train/models/gpt2_rig.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"

namespace penstock::train {
namespace {

constexpr uint64_t kSeed = 7;
constexpr uint64_t kNoiseSeed = 8;
constexpr float kNoise = 0.1F;

void FillWithNaN(device::Device& device) {
  const std::vector<std::byte> ones(device.limit().value, std::byte{0xff});
  const device::DeviceBuffer all = device.Allocate(device.limit(), "everything").value();
  const auto stream = device.CreateStream("fill").value();
  stream->CopyToDevice(all.data(), ones.data(), all.size());
  EXPECT_TRUE(stream->Synchronize().ok());
}

}  // namespace

zero::TensorSource TestWeights(const Gpt2Config& config, uint64_t seed) {
  return
      [base = Gpt2Initialization(config, seed)](zero::ModuleId module, size_t tensor,
                                                uint64_t begin, std::span<float> values) -> Status {
        PENSTOCK_TRY(base(module, tensor, begin, values));
        const uint64_t stream = offload::Index(module) << 8 | tensor;
        for (size_t i = 0; i < values.size(); ++i) {
          values[i] += kNoise * StandardNormal(kNoiseSeed, stream, begin + i);
        }
        return {};
      };
}

Tokens TestTokens(uint64_t vocabulary, uint64_t count, uint64_t seed) {
  Tokens tokens;
  for (uint64_t i = 0; i < count; ++i) {
    const auto bits = Philox(seed, 0, i);
    tokens.inputs.push_back(static_cast<int32_t>(bits[0] % vocabulary));
    tokens.targets.push_back(static_cast<int32_t>(bits[1] % vocabulary));
  }
  return tokens;
}

Gpt2Rig::Gpt2Rig(const Gpt2Config& config, const BatchShape& shape, DType dtype)
    : micro_batch_tokens(shape.micro_batch * shape.sequence) {
  device = device::CreateCpuDevice({.memory = 16_MiB}).value();
  FillWithNaN(*device);
  operators =
      kernels::CreateModelOperators(*device, Gpt2Operators(config, shape, dtype, 1)).value();
  engine = std::make_unique<FakeEngine>(Gpt2Spec(config), dtype, *device,
                                        TestWeights(config, kSeed), shape.micro_batches);
  session = std::make_unique<zero::Session>(*engine, zero::LossReports::kNever);
  EXPECT_TRUE(session->Fill([](auto, auto, auto) { return Status(); }, {}).ok());
  checked = CheckedOperators::Create(*device, *operators).value();
  model = Gpt2::Create(config, shape, dtype, *device, *checked).value();
}

Gpt2Rig::~Gpt2Rig() { static_cast<void>(engine->compute_stream().Synchronize()); }

Status Gpt2Rig::Enqueue(const Tokens& tokens) {
  PENSTOCK_ASSIGN(zero::Step step, session->BeginStep(tokens.inputs.size() / micro_batch_tokens));
  PENSTOCK_TRY(model->ForwardBackward(step, tokens.inputs, tokens.targets));
  return step.Finish().status();
}

double Gpt2Rig::Step(const Tokens& tokens) {
  const Status status = Enqueue(tokens);
  EXPECT_TRUE(status.ok());
  const double loss = model->Loss().value();
  engine->FinishStep();
  return loss;
}

void ExpectGradientsNear(FakeEngine& actual, FakeEngine& expected, double tolerance) {
  for (const std::string& name : expected.tensor_names()) {
    const auto want = expected.gradients(name);
    const auto got = actual.gradients(name);
    double largest = 0;
    for (const float value : want) largest = std::max(largest, std::abs(double{value}));
    EXPECT_GT(largest, 0) << name;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * largest) << name << " element " << i;
    }
  }
}

}  // namespace penstock::train
