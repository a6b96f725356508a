// An engine that marks the begin of backward on the compute stream, and forwards everything to
// another.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "zero/engine/forwarding_engine.h"

namespace penstock::bench {

class PhaseEngine final : public zero::ForwardingEngine {
 public:
  PhaseEngine(std::unique_ptr<zero::Engine> engine, const zero::ModelSpec& model)
      : ForwardingEngine(engine.get()), engine_(std::move(engine)) {
    while (!model.step[first_backward_].backward) ++first_backward_;
  }

  /// Sets the function for the steps from now on; empty: none.
  void MarkBackward(std::function<void()> mark) { mark_ = std::move(mark); }

  Status BeginStep(double lr, uint64_t t) override {
    use_ = 0;
    return ForwardingEngine::BeginStep(lr, t);
  }
  Result<const std::byte*> Acquire(zero::ModuleId module) override {
    if (use_++ == first_backward_ && mark_) compute_stream().Call(mark_);
    return ForwardingEngine::Acquire(module);
  }

 private:
  const std::unique_ptr<zero::Engine> engine_;
  std::function<void()> mark_;
  size_t first_backward_ = 0;
  size_t use_ = 0;
};

}  // namespace penstock::bench
