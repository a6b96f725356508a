// A GPT-2 with everything that it needs, for tests: device, operators, engine, weights and tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "tests/train/models/gpt2_fake_engine.h"
#include "train/models/checked_operators.h"
#include "train/models/gpt2.h"
#include "zero/session/session.h"

namespace penstock::train {

/// Weights far from zero and one in every tensor, so that each matters to the loss.
zero::TensorSource TestWeights(const Gpt2Config& config, uint64_t seed);

struct Tokens {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};
/// `count` tokens of each kind below the vocabulary, a function of the seed.
Tokens TestTokens(uint64_t vocabulary, uint64_t count, uint64_t seed);

struct Gpt2Rig {
  /// The device's memory is NaN at first: nothing may count on zeros.
  Gpt2Rig(const Gpt2Config& config, const BatchShape& shape, DType dtype = DType::kFloat32);

  /// Waits for the stream, which may still report a loss to the session.
  ~Gpt2Rig();

  /// One whole step, of as many micro-batches as there are tokens for; the mean loss.
  double Step(const Tokens& tokens);
  /// Enqueues one and does not wait for it.
  Status Enqueue(const Tokens& tokens);

  uint64_t micro_batch_tokens;
  std::unique_ptr<device::Device> device;
  std::unique_ptr<kernels::ModelOperators> operators;
  std::unique_ptr<CheckedOperators> checked;  ///< what the model works with
  std::unique_ptr<Gpt2> model;
  std::unique_ptr<FakeEngine> engine;
  std::unique_ptr<zero::Session> session;
};

/// Every gradient of `actual` is within `tolerance` times the largest one of its tensor in
/// `expected`.
void ExpectGradientsNear(FakeEngine& actual, FakeEngine& expected, double tolerance);

}  // namespace penstock::train
