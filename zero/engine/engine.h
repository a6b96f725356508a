// What a placement does in a step. An engine knows where weights, gradients and states are, and
// updates them: it is a port of states (zero/engine/state_port.h), and a port of the device on
// which a model of ours computes (zero/engine/device_port.h). A caller that computes by itself
// needs the first alone.
//
// With several ranks, each holds its share of everything (offload::ShardLayout), and all engines
// make the same calls in the same order. Every rank computes with whole modules, which the engine
// gathers, and gives whole gradients, of which each rank gets its share.
//
// Owns the streams, the slab, the state and the optimizer threads; borrows device, operators and
// communicator.
// Threads: AllowUpdates from any thread, all else from one.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"
#include "zero/engine/device_port.h"
#include "zero/engine/engine_options.h"
#include "zero/engine/state_port.h"
#include "zero/model.h"

namespace penstock::kernels {
class StateOperators;
}  // namespace penstock::kernels

namespace penstock::zero {

/// The least memory that the engine works with; the trainer adds its own (activations, scratch).
struct MemoryMinimum {
  Bytes device_minimum;
  Bytes host_minimum;
  std::string device_sum;  ///< "parameters 6.00 MiB + gradients …", for messages
  std::string host_sum;
};

class Engine : public StatePort, public DevicePort {
 public:
  /// Returns the sums for a model and a config, without allocating anything. Precondition:
  /// WithOrder (zero/plan/use_order.h) accepts the model.
  static MemoryMinimum MinimumMemory(const ModelSpec& model, const config::Config& config,
                                     const comm::World& world = {});

  /// Creates the slab, the state (preallocated) and the threads. The model must have an order of
  /// use. Errors: kBudget with the sum and the smallest limit that works; those of the state and
  /// the I/O engines.
  static Result<std::unique_ptr<Engine>> Create(EngineOptions options, device::Device& device,
                                                kernels::StateOperators& operators);
  /// Stops the optimizer threads after the tiles they work on; what was not committed is lost.
  ~Engine() override = default;
};

}  // namespace penstock::zero
