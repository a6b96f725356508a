// Trains the small model of tests/front/c_engine.h with weights and gradients in the memory of the
// fake driver's device: kernels on one stream, copies on another.
#pragma once

#include <gmock/gmock.h>

#include <list>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/front/c_training.h"
#include "tests/front/fake_cuda/fake_cuda.h"

namespace penstock::front {

/// A context, and what is noted while it lives: nothing, or the test fails.
class CudaTest : public ::testing::Test {
 protected:
  void SetUp() override {
    static_cast<void>(fake_cuda_violations());
    ASSERT_EQ(cuCtxSetCurrent(Context()), 0);
  }
  void TearDown() override {
    EXPECT_STREQ(fake_cuda_violations(), "");
    EXPECT_EQ(fake_cuda_registered(), 0);
  }
  static CUcontext Context() {
    static CUcontext context = fake_cuda_context();
    return context;
  }
};

/// Memory of the device.
class DeviceBytes {
 public:
  explicit DeviceBytes(size_t size) : size_(size) { EXPECT_EQ(cuMemAlloc_v2(&address_, size), 0); }
  DeviceBytes(DeviceBytes&& other) noexcept
      : address_(std::exchange(other.address_, 0)), size_(other.size_) {}
  DeviceBytes& operator=(DeviceBytes&&) = delete;
  ~DeviceBytes() {
    if (address_ != 0) cuMemFree_v2(address_);
  }
  /// For the driver's functions and penstock's.
  void* pointer() const { return reinterpret_cast<void*>(address_); }
  /// For kernels.
  std::byte* bytes() const { return static_cast<std::byte*>(fake_cuda_memory(address_, size_)); }
  size_t size() const { return size_; }

 private:
  CUdeviceptr address_ = 0;
  size_t size_;
};

class Stream {
 public:
  Stream() { EXPECT_EQ(cuStreamCreate(&stream_, 1), 0); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() {
    Synchronize();
    for (CUevent event : events_) cuEventDestroy_v2(event);
    cuStreamDestroy_v2(stream_);
  }
  CUstream get() const { return stream_; }
  void Synchronize() const { cuStreamSynchronize(stream_); }
  /// Has what is enqueued from now on come after what the other has now.
  void WaitFor(const Stream& other) {
    CUevent event = nullptr;
    cuEventCreate(&event, 2);
    cuEventRecord(event, other.stream_);
    cuStreamWaitEvent(stream_, event, 0);
    events_.push_back(event);
  }
  template <typename Kernel>
  void Launch(Kernel kernel) const {
    auto* const call = new Kernel(std::move(kernel));
    fake_cuda_launch(
        stream_,
        [](void* argument) {
          const std::unique_ptr<Kernel> of(static_cast<Kernel*>(argument));
          (*of)();
        },
        call);
  }

 private:
  CUstream stream_ = nullptr;
  std::vector<CUevent> events_;  ///< that it waits for
};

/// The smallest budget of the host, in which weights of the drive are read again and again.
inline uint64_t LeastMemory(const Home& home, const std::string& folder, const std::string& dtype,
                            const json& changes) {
  json config = ConfigOf(home, folder);
  config.merge_patch(changes);
  const json options{{"folders", {folder}}, {"cuda", true}};
  char* text = nullptr;
  EXPECT_EQ(penstock_plan(config.dump().c_str(), ModelOf(dtype).dump().c_str(),
                          options.dump().c_str(), &text),
            PENSTOCK_OK)
      << penstock_error();
  const json plan = json::parse(text);
  penstock_free(text);
  return plan["host_minimum"].get<uint64_t>();
}

/// How weights are asked for: all of a unit's with one address, or with one for each tensor.
enum class Addresses { kOfUnit, kOfTensors };

class CudaTraining {
 public:
  /// `more`: options, of which "continue" leaves the weights as they are. `config`: changes of it.
  CudaTraining(const Home& home, const std::string& folder, const std::string& dtype,
               uint64_t micro_batches = 1, Addresses addresses = Addresses::kOfUnit,
               json more = json::object(), json config = json::object())
      : dtype_(CodeOf(dtype)),
        micro_batches_(micro_batches),
        addresses_(addresses),
        training_(home, folder, dtype, micro_batches,
                  Options(home, folder, dtype, With(micro_batches, config), more),
                  With(micro_batches, config)) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      const json& layout = training_.description()["units"][unit];
      weights_.emplace_back(layout["bytes"].get<size_t>());
      for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        offsets_[unit][tensor] = layout["tensors"][tensor]["offset"].get<size_t>();
      }
    }
    if (!more.contains("continue")) training_.Fill();
  }
  /// Streams end before the memory that they use.
  ~CudaTraining() {
    copies_.Synchronize();
    compute_.Synchronize();
  }

  CTraining& host() { return training_; }
  penstock_engine* handle() { return training_.engine().handle; }
  Stream& copies() { return copies_; }
  const DeviceBytes& weights(uint32_t unit) const { return weights_[unit]; }

  int TryUse(uint32_t unit, int kind) {
    if (addresses_ == Addresses::kOfTensors) {
      std::vector<void*> tensors;
      for (const size_t offset : offsets_[unit]) {
        tensors.push_back(static_cast<std::byte*>(weights_[unit].pointer()) + offset);
      }
      return penstock_use_tensors_on(handle(), unit, kind, tensors.data(), copies_.get());
    }
    return penstock_use_on(handle(), unit, kind, weights_[unit].pointer(), copies_.get());
  }
  void Use(uint32_t unit, int kind) {
    copies_.WaitFor(compute_);
    ASSERT_EQ(TryUse(unit, kind), PENSTOCK_OK) << penstock_error();
    compute_.WaitFor(copies_);
  }
  int TryGradient(uint32_t unit, uint32_t tensor, const DeviceBytes& gradient) {
    return penstock_gradient_on(handle(), unit, tensor, gradient.pointer(), DTypeOf(tensor),
                                copies_.get());
  }

  void ForwardAndBackward(uint64_t micro_batch) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) Use(unit, PENSTOCK_FORWARD);
    for (uint32_t unit = kUnits; unit-- > 0;) {
      Use(unit, PENSTOCK_BACKWARD);
      for (const uint32_t tensor : {1U, 0U}) {
        const DeviceBytes& gradient = LaunchBackward(unit, tensor, micro_batch);
        copies_.WaitFor(compute_);
        ASSERT_EQ(TryGradient(unit, tensor, gradient), PENSTOCK_OK) << penstock_error();
      }
    }
  }
  penstock_outcome Step(double max_norm = 0) {
    for (uint64_t i = 0; i < micro_batches_; ++i) ForwardAndBackward(i);
    penstock_outcome outcome{};
    EXPECT_EQ(penstock_end_step(handle(), kGroups, 2, max_norm, 1, &outcome), PENSTOCK_OK)
        << penstock_error();
    gradients_.clear();
    return outcome;
  }

  /// The weights on the device, once everything before has run.
  Values Weights(uint32_t unit, uint32_t tensor) {
    copies_.Synchronize();
    Values values(DTypeOf(tensor), kElements[tensor]);
    std::memcpy(values.bytes.data(), weights_[unit].bytes() + offsets_[unit][tensor],
                values.bytes.size());
    return values;
  }
  void ReadInto(Trained* trained) {
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      Use(unit, PENSTOCK_ASIDE);
      for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
        trained->weights.push_back(Weights(unit, tensor).bytes);
        std::vector<float> master(kElements[tensor]);
        ASSERT_EQ(
            penstock_read(handle(), unit, tensor, PENSTOCK_MASTER, 0, master.size(), master.data()),
            PENSTOCK_OK);
        trained->masters.push_back(std::move(master));
      }
    }
  }
  int DTypeOf(uint32_t tensor) const { return tensor == 1 ? int{PENSTOCK_FLOAT32} : dtype_; }

 private:
  static json Options(const Home& home, const std::string& folder, const std::string& dtype,
                      const json& config, json more) {
    more["cuda"] = true;
    more["host_memory"] = LeastMemory(home, folder, dtype, config);
    return more;
  }
  static json With(uint64_t micro_batches, json config) {
    config["gradient_accumulation_steps"] = micro_batches;
    return config;
  }
  /// The kernel of a backward: it reads the unit's weights where they are when it runs.
  const DeviceBytes& LaunchBackward(uint32_t unit, uint32_t tensor, uint64_t micro_batch) {
    Values weight(DTypeOf(tensor), kElements[tensor]);
    const DeviceBytes& gradient = gradients_.emplace_back(weight.bytes.size());
    const std::byte* const from = weights_[unit].bytes() + offsets_[unit][tensor];
    compute_.Launch([weight, from, to = gradient.bytes(), micro_batch]() mutable {
      std::memcpy(weight.bytes.data(), from, weight.bytes.size());
      const Values values = GradientOf(weight, micro_batch);
      std::memcpy(to, values.bytes.data(), values.bytes.size());
    });
    return gradient;
  }

  int dtype_;
  uint64_t micro_batches_;
  Addresses addresses_;
  CTraining training_;
  std::vector<DeviceBytes> weights_;
  size_t offsets_[kUnits][kTensors] = {};
  std::list<DeviceBytes> gradients_;  ///< of the step
  Stream compute_;
  Stream copies_;
};

}  // namespace penstock::front
