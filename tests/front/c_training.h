// Trains the small model of tests/front/c_engine.h, through the C interface and by the reference.
#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "kernels/dtype.h"
#include "tests/front/c_engine.h"

namespace penstock::front {

inline const penstock_group kGroups[] = {{1e-2, 0.9, 0.99, 1e-8, 0.1}, {3e-2, 0.8, 0.95, 1e-6, 0}};
inline constexpr uint64_t kElements[kTensors] = {100 * 91, 13, 50};

inline int CodeOf(const std::string& dtype) {
  return dtype == "fp32"   ? PENSTOCK_FLOAT32
         : dtype == "bf16" ? PENSTOCK_BFLOAT16
                           : PENSTOCK_FLOAT16;
}
inline size_t SizeOfCode(int dtype) { return dtype == PENSTOCK_FLOAT32 ? 4 : 2; }

inline float Load(const std::byte* bytes, int dtype, uint64_t i) {
  uint16_t bits = 0;
  float value = 0;
  if (dtype == PENSTOCK_FLOAT32) {
    std::memcpy(&value, bytes + 4 * i, 4);
    return value;
  }
  std::memcpy(&bits, bytes + 2 * i, 2);
  return dtype == PENSTOCK_BFLOAT16 ? kernels::ToFloat(kernels::BFloat16{bits})
                                    : kernels::Float16ToFloat(bits);
}
inline void Store(std::byte* bytes, int dtype, uint64_t i, float value) {
  if (dtype == PENSTOCK_FLOAT32) {
    std::memcpy(bytes + 4 * i, &value, 4);
    return;
  }
  const uint16_t bits = dtype == PENSTOCK_BFLOAT16 ? kernels::RoundToBFloat16(value).bits
                                                   : kernels::RoundToFloat16(value);
  std::memcpy(bytes + 2 * i, &bits, 2);
}

/// A tensor in its dtype.
struct Values {
  int dtype = PENSTOCK_FLOAT32;
  std::vector<std::byte> bytes;

  Values(int of, uint64_t elements) : dtype(of), bytes(SizeOfCode(of) * elements) {}
  float At(uint64_t i) const { return Load(bytes.data(), dtype, i); }
  void Set(uint64_t i, float value) { Store(bytes.data(), dtype, i, value); }
};

/// What the weights begin with.
inline Values FirstWeights(int dtype, uint32_t unit, uint32_t tensor) {
  Values values(dtype, kElements[tensor]);
  for (uint64_t i = 0; i < kElements[tensor]; ++i) {
    values.Set(i, 0.01F * static_cast<float>((7 * i + 13 * tensor + 31 * unit) % 101) - 0.5F);
  }
  return values;
}

/// The gradient of a micro-batch: a function of the weight, in its dtype.
inline Values GradientOf(const Values& weight, uint64_t micro_batch) {
  Values gradient(weight.dtype, weight.bytes.size() / SizeOfCode(weight.dtype));
  const float factor = 0.3F + 0.01F * static_cast<float>(micro_batch);
  for (uint64_t i = 0; i < gradient.bytes.size() / SizeOfCode(weight.dtype); ++i) {
    gradient.Set(i, weight.At(i) * factor + 0.001F * static_cast<float>(i % 5));
  }
  return gradient;
}

/// What a training came to: norms, and the bytes of all weights and masters.
struct Trained {
  std::vector<double> norms;
  std::vector<std::vector<std::byte>> weights;
  std::vector<std::vector<float>> masters;

  bool operator==(const Trained&) const = default;
};

/// One unit's buffer, and where tensors lie in it.
class UnitBuffer {
 public:
  UnitBuffer(const json& description, uint32_t unit, int dtype)
      : bytes_(description["units"][unit]["bytes"].get<size_t>(), std::byte{0x5a}), dtype_(dtype) {
    for (const json& tensor : description["units"][unit]["tensors"]) {
      offsets_.push_back(tensor["offset"].get<size_t>());
    }
  }
  std::byte* data() { return bytes_.data(); }
  Values Tensor(uint32_t tensor) const {
    Values values(tensor == 1 ? PENSTOCK_FLOAT32 : dtype_, kElements[tensor]);
    std::memcpy(values.bytes.data(), bytes_.data() + offsets_[tensor], values.bytes.size());
    return values;
  }

 private:
  std::vector<std::byte> bytes_;
  std::vector<size_t> offsets_;
  int dtype_;
};

class CTraining {
 public:
  CTraining(const Home& home, const std::string& folder, const std::string& dtype,
            uint64_t micro_batches = 1, const json& more = json::object(),
            const json& config = json::object())
      : dtype_(CodeOf(dtype)),
        micro_batches_(micro_batches),
        engine_(Make(home, folder, dtype, more, config)) {}

  /// Of an engine that was made elsewhere.
  CTraining(CEngine engine, const std::string& dtype, uint64_t micro_batches = 1)
      : dtype_(CodeOf(dtype)), micro_batches_(micro_batches), engine_(std::move(engine)) {}

  CEngine& engine() { return engine_; }

  void Fill() {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      std::vector<Values> values;
      std::vector<const void*> tensors;
      for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        values.push_back(FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : dtype_, unit, tensor));
      }
      for (const Values& value : values) tensors.push_back(value.bytes.data());
      ASSERT_EQ(penstock_fill(engine_.handle, unit, tensors.data()), PENSTOCK_OK)
          << penstock_error();
    }
  }

  /// Brings a unit's weights and returns them.
  UnitBuffer Use(uint32_t unit, int kind) {
    UnitBuffer buffer(description(), unit, dtype_);
    EXPECT_EQ(penstock_use(engine_.handle, unit, kind, buffer.data()), PENSTOCK_OK)
        << penstock_error();
    return buffer;
  }

  void ForwardAndBackward(uint64_t micro_batch) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) Use(unit, PENSTOCK_FORWARD);
    for (uint32_t unit = kUnits; unit-- > 0;) {
      const UnitBuffer buffer = Use(unit, PENSTOCK_BACKWARD);
      for (const uint32_t tensor : {1U, 0U}) {
        const Values gradient = GradientOf(buffer.Tensor(tensor), micro_batch);
        ASSERT_EQ(
            penstock_gradient(engine_.handle, unit, tensor, gradient.bytes.data(), gradient.dtype),
            PENSTOCK_OK)
            << penstock_error();
      }
    }
  }

  penstock_outcome Step(double max_norm = 0) {
    penstock_outcome outcome{};
    for (uint64_t i = 0; i < micro_batches_; ++i) ForwardAndBackward(i);
    EXPECT_EQ(penstock_end_step(engine_.handle, kGroups, 2, max_norm, 1, &outcome), PENSTOCK_OK)
        << penstock_error();
    return outcome;
  }

  /// Adds what the weights and masters are.
  void ReadInto(Trained* trained) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      const UnitBuffer buffer = Use(unit, PENSTOCK_ASIDE);
      for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        trained->weights.push_back(buffer.Tensor(tensor).bytes);
        std::vector<float> master(kElements[tensor]);
        ASSERT_EQ(penstock_read(engine_.handle, unit, tensor, PENSTOCK_MASTER, 0, master.size(),
                                master.data()),
                  PENSTOCK_OK)
            << penstock_error();
        trained->masters.push_back(std::move(master));
      }
    }
  }

  const json& description() {
    if (description_.is_null()) description_ = engine_.Describe();
    return description_;
  }

 private:
  static CEngine Make(const Home& home, const std::string& folder, const std::string& dtype,
                      const json& more, const json& changes) {
    json options{{"folders", {folder}}};
    options.update(more);
    json config = ConfigOf(home, folder);
    config.merge_patch(changes);
    CEngine engine(config, ModelOf(dtype), options);
    EXPECT_EQ(engine.code, PENSTOCK_OK) << engine.error;
    return engine;
  }

  int dtype_;
  uint64_t micro_batches_;
  CEngine engine_;
  json description_;
};

}  // namespace penstock::front
