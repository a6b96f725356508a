// The model's step: order of uses, exactness of its gradients, and independence of what must not
// matter.
#include "train/models/gpt2.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "tests/train/models/gpt2_rig.h"

namespace penstock::train {
namespace {

using ::testing::ElementsAre;

const Gpt2Config kTiny = {.vocab_size = 13,
                          .n_positions = 6,
                          .n_embd = 8,
                          .n_layer = 2,
                          .n_head = 2,
                          .initializer_range = 0.3};
// No size is a multiple of another, and the MLP is narrower than q, k and v together.
const Gpt2Config kOdd = {.vocab_size = 37,
                         .n_positions = 9,
                         .n_embd = 15,
                         .n_layer = 3,
                         .n_head = 3,
                         .n_inner = 17,
                         .initializer_range = 0.3};

Tokens TokensFor(const Gpt2Config& config, const BatchShape& shape, uint64_t seed = 1) {
  return TestTokens(config.vocab_size, shape.micro_batches * shape.micro_batch * shape.sequence,
                    seed);
}

std::vector<std::string> WithPrefix(const std::vector<std::string>& calls, const char* prefix) {
  std::vector<std::string> found;
  std::copy_if(calls.begin(), calls.end(), std::back_inserter(found),
               [&](const std::string& call) { return call.starts_with(prefix); });
  return found;
}

TEST(Gpt2Test, ReducesEachGradientWhenItIsComplete) {
  const BatchShape shape = {.micro_batch = 1, .micro_batches = 2, .sequence = 5};
  Gpt2Rig rig(kTiny, shape);
  const Tokens tokens = TokensFor(kTiny, shape);
  ASSERT_TRUE(rig.Enqueue(tokens).ok());
  EXPECT_THAT(WithPrefix(rig.engine->calls(), "reduce"),
              ElementsAre("reduce ln_f", "reduce h.1", "reduce h.0", "reduce wpe", "reduce wte"));
  EXPECT_THAT(WithPrefix(rig.engine->calls(), "acquire"),
              ElementsAre("acquire wte", "acquire wpe", "acquire h.0", "acquire h.1",
                          "acquire ln_f", "acquire wte", "acquire h.1", "acquire h.0"));
  ASSERT_TRUE(rig.model->Loss().ok());
  rig.engine->FinishStep();
}

/// d loss / d tensor along `direction` (of length one), by central differences of fourth order.
double Slope(Gpt2Rig& rig, const Tokens& tokens, const std::string& tensor,
             const std::vector<float>& direction) {
  constexpr double kReach = 3e-2;
  const std::span<float> weights = rig.engine->weights(tensor);
  const std::vector<float> home(weights.begin(), weights.end());
  const auto loss_at = [&](double distance) {
    for (size_t i = 0; i < home.size(); ++i) {
      weights[i] = static_cast<float>(home[i] + distance * direction[i]);
    }
    return rig.Step(tokens);
  };
  const double near = loss_at(kReach) - loss_at(-kReach);
  const double far = loss_at(2 * kReach) - loss_at(-2 * kReach);
  const double slope = (8 * near - far) / (12 * kReach);
  std::copy(home.begin(), home.end(), weights.begin());
  return slope;
}

std::vector<float> RandomDirection(size_t size, uint64_t seed) {
  std::vector<float> direction(size);
  for (size_t i = 0; i < size; ++i) direction[i] = StandardNormal(seed, size, i);
  double square = 0;
  for (const float x : direction) square += double{x} * x;
  for (float& x : direction) x /= static_cast<float>(std::sqrt(square));
  return direction;
}

TEST(Gpt2Test, GradientsAreTheSlopesOfTheLoss) {
  const BatchShape shape = {.micro_batch = 2, .micro_batches = 2, .sequence = 6};
  Gpt2Rig rig(kTiny, shape);
  const Tokens tokens = TokensFor(kTiny, shape);
  rig.Step(tokens);
  std::vector<std::vector<float>> gradients;
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto gradient = rig.engine->gradients(name);
    gradients.emplace_back(gradient.begin(), gradient.end());
  }
  for (size_t t = 0; t < gradients.size(); ++t) {
    const std::string name = rig.engine->tensor_names()[t];
    const std::vector<float>& gradient = gradients[t];
    double square = 0;
    for (const float g : gradient) square += double{g} * g;
    for (const uint64_t seed : {1, 2, 3}) {
      const std::vector<float> direction = RandomDirection(gradient.size(), seed);
      double expected = 0;
      for (size_t i = 0; i < gradient.size(); ++i) expected += double{gradient[i]} * direction[i];
      EXPECT_NEAR(Slope(rig, tokens, name, direction), expected, 2e-3 * std::sqrt(square) + 5e-5)
          << name;
    }
  }
}

TEST(Gpt2Test, MicroBatchesChangeNothingButTheOrderOfSums) {
  const BatchShape whole = {.micro_batch = 3, .micro_batches = 1, .sequence = 7};
  const BatchShape split = {.micro_batch = 1, .micro_batches = 3, .sequence = 7};
  const Tokens tokens = TokensFor(kOdd, whole);
  Gpt2Rig one(kOdd, whole);
  Gpt2Rig three(kOdd, split);
  const double loss = one.Step(tokens);
  EXPECT_GT(loss, 1);
  EXPECT_NEAR(three.Step(tokens), loss, 1e-6 * loss);
  ExpectGradientsNear(*three.engine, *one.engine, 1e-5);
}

TEST(Gpt2Test, CheckpointsOnTheHostChangeNoBit) {
  Gpt2Config config = kTiny;
  config.n_layer = 6;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const uint64_t micro_batches : {1, 3}) {
      BatchShape shape = {.micro_batch = 2, .micro_batches = micro_batches, .sequence = 6};
      Gpt2Rig on_device(config, shape, dtype);
      shape.checkpoint_home = Tier::kHost;
      Gpt2Rig on_host(config, shape, dtype);
      for (uint64_t step = 0; step < 3; ++step) {
        const Tokens tokens = TokensFor(config, shape, step);
        EXPECT_EQ(on_host.Step(tokens), on_device.Step(tokens));
        ExpectGradientsNear(*on_host.engine, *on_device.engine, 0);
      }
    }
  }
}

TEST(Gpt2Test, LossAndGradientsOfTheSameStepAreTheSameBits) {
  const BatchShape shape = {.micro_batch = 2, .micro_batches = 3, .sequence = 5};
  Gpt2Rig rig(kOdd, shape);
  const Tokens tokens = TokensFor(kOdd, shape);
  const double loss = rig.Step(tokens);
  std::vector<float> before;
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto gradient = rig.engine->gradients(name);
    before.insert(before.end(), gradient.begin(), gradient.end());
  }
  rig.Step(TokensFor(kOdd, shape, 2));
  EXPECT_EQ(rig.Step(tokens), loss);
  std::vector<float> after;
  for (const std::string& name : rig.engine->tensor_names()) {
    const auto gradient = rig.engine->gradients(name);
    after.insert(after.end(), gradient.begin(), gradient.end());
  }
  EXPECT_TRUE(std::none_of(before.begin(), before.end(), [](float g) { return std::isnan(g); }));
  EXPECT_EQ(after, before);
}

TEST(Gpt2Test, PositionsBeyondTheSequenceGetNoGradient) {
  const BatchShape shape = {.micro_batch = 1, .micro_batches = 1, .sequence = 4};
  Gpt2Rig rig(kOdd, shape);
  rig.Step(TokensFor(kOdd, shape));
  const auto gradient = rig.engine->gradients("wpe.weight");
  const auto used = gradient.first(shape.sequence * kOdd.n_embd);
  EXPECT_TRUE(std::all_of(used.begin(), used.end(), [](float g) { return g != 0; }));
  EXPECT_THAT(gradient.subspan(used.size()), ::testing::Each(0.0F));
}

TEST(Gpt2Test, BFloat16IsNearSinglePrecision) {
  const BatchShape shape = {.micro_batch = 2, .micro_batches = 2, .sequence = 8};
  const Tokens tokens = TokensFor(kOdd, shape);
  Gpt2Rig single(kOdd, shape);
  Gpt2Rig half(kOdd, shape, DType::kBFloat16);
  const double loss = single.Step(tokens);
  EXPECT_NEAR(half.Step(tokens), loss, 0.01 * loss);
  ExpectGradientsNear(*half.engine, *single.engine, 0.1);
}

TEST(Gpt2Test, CopiesTheTokensBeforeItReturns) {
  const BatchShape shape = {.micro_batch = 1, .micro_batches = 2, .sequence = 5};
  const Tokens tokens = TokensFor(kTiny, shape);
  Gpt2Rig rig(kTiny, shape);
  const double loss = rig.Step(tokens);
  const double other_loss = rig.Step(TokensFor(kTiny, shape, 2));
  ASSERT_NE(loss, other_loss);

  // The stream stands still while the step is enqueued and its tokens destroyed.
  std::promise<void> open;
  rig.engine->compute_stream().Call([gate = open.get_future().share()] { gate.wait(); });
  Tokens destroyed = tokens;
  ASSERT_TRUE(rig.Enqueue(destroyed).ok());
  rig.engine->FinishStep();
  std::fill(destroyed.inputs.begin(), destroyed.inputs.end(), 0);
  std::fill(destroyed.targets.begin(), destroyed.targets.end(), 0);
  open.set_value();
  EXPECT_EQ(rig.model->Loss().value(), loss);
}

TEST(Gpt2Test, ALaterStepDoesNotOverwriteTokensThatAreStillToBeCopied) {
  constexpr uint64_t kSteps = 4;
  const BatchShape shape = {.micro_batch = 1, .micro_batches = 1, .sequence = 6};
  Gpt2Rig rig(kTiny, shape);
  const auto gradients = [&] {
    const auto values = rig.engine->gradients("wte.weight");
    return std::vector<float>(values.begin(), values.end());
  };
  std::vector<std::vector<float>> expected;
  for (uint64_t step = 0; step < kSteps; ++step) {
    rig.Step(TokensFor(kTiny, shape, step));
    expected.push_back(gradients());
  }

  // The stream stands still; the model runs ahead of it until it has to wait, and then it is
  // opened. A model that need not wait finishes first.
  std::promise<void> open;
  std::promise<void> enqueued;
  std::thread opener([&open, done = enqueued.get_future()] {
    done.wait_for(std::chrono::milliseconds(200));
    open.set_value();
  });
  rig.engine->compute_stream().Call([gate = open.get_future().share()] { gate.wait(); });
  std::vector<std::vector<float>> actual;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const Tokens tokens = TokensFor(kTiny, shape, step);
    EXPECT_TRUE(rig.Enqueue(tokens).ok());
    rig.engine->FinishStep();
    rig.engine->compute_stream().Call([&] { actual.push_back(gradients()); });
  }
  enqueued.set_value();
  opener.join();
  ASSERT_TRUE(rig.model->Loss().ok());
  EXPECT_EQ(actual, expected);
}

TEST(Gpt2Test, AFailedAcquireEndsTheStepAndHoldsNothing) {
  const BatchShape shape = {.micro_batch = 1, .micro_batches = 1, .sequence = 6};
  const Tokens tokens = TokensFor(kTiny, shape);
  for (size_t use = 0; use < Gpt2Spec(kTiny).step.size(); ++use) {
    Gpt2Rig rig(kTiny, shape);
    rig.engine->FailAcquire(use);
    const Status status = rig.Enqueue(tokens);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, ErrorCode::kIo);
    EXPECT_EQ(rig.engine->held(), 0U);
    EXPECT_EQ(WithPrefix(rig.engine->calls(), "acquire").size(), use);
  }
}

}  // namespace
}  // namespace penstock::train
