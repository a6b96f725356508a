// A step of a session, and the leases of modules within it: see zero/session/session.h.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/result.h"
#include "device/device.h"
#include "offload/layout.h"
#include "zero/engine/state_port.h"
#include "zero/gradient_norm.h"
#include "zero/model.h"
#include "zero/session/step_life.h"
#include "zero/step_note.h"

namespace penstock::zero {

class Session;

struct StepOutcome {
  uint64_t step = 0;  ///< its number, from 1
  double lr = 0;
  double grad_norm = 0;   ///< of the gradient of the mean loss, before clipping; may be non-finite
  double loss_scale = 1;  ///< after the step: that of the next one
  bool skipped = false;   ///< the loss or the gradient was not finite: nothing changed
  std::vector<StepNote> notes;                         ///< of all ranks
  std::chrono::steady_clock::time_point loss_at;       ///< when it was reported, if it was
  std::chrono::steady_clock::time_point gradients_at;  ///< when the last of them was there
};

/// What a caller says of one step in place of the configuration.
struct StepEnd {
  StepScalars scalars;
  std::vector<GroupSpec> groups;  ///< groups of its update; none: those of the model
};

/// The lease of a module's weights on the device. It ends with the object, or with the step.
class Use {
 public:
  Use(Use&& other) noexcept;
  Use& operator=(Use&& other) noexcept;
  ~Use() { Release(); }

  ModuleId module() const { return module_; }
  /// Returns the module's flat parameters; tensors lie at layout offsets. For work that is enqueued
  /// on the compute stream before the lease ends.
  const std::byte* weights() const { return weights_; }
  void Release();

 private:
  friend class Session;
  Use(Session& session, uint64_t step, ModuleId module, const std::byte* weights)
      : session_(&session), step_(step), module_(module), weights_(weights) {}

  Session* session_;  ///< none: released
  uint64_t step_;
  ModuleId module_;
  const std::byte* weights_;
};

class Step {
 public:
  Step(Step&& other) noexcept : session_(std::exchange(other.session_, nullptr)), id_(other.id_) {}
  Step& operator=(Step&& other) noexcept;
  /// Drops the step, unless it was finished.
  ~Step() { End(); }

  const offload::ShardLayout& layout() const;
  device::Stream& compute_stream();
  /// Returns the factor that the gradient of the mean loss has in this step; 1 without fp16. The
  /// loss that is reported does not have it.
  double loss_scale() const;

  /// Returns the weights of the version that the last step left. Not to be called after the
  /// module's gradient is reduced, because its update may have begun.
  Result<Use> Acquire(ModuleId module);
  /// These replace Acquire and ReduceGradients where the caller computes by itself: it uses the
  /// module, whose weights it brings, and whose last update it waits for before it gives a
  /// gradient; it gives the states the module's whole gradient, by the end of the step.
  Status CountUse(ModuleId module);
  Status AnnounceGradient(ModuleId module);
  /// Returns where the kernels of a micro-batch add the module's fp32 gradient on the device:
  /// [ModelLayout::TrainedElements], the beginning of the flat index, as frozen elements have none.
  /// It holds zeros, or what was added in this step. Valid until AddGradients or ReduceGradients.
  Result<float*> Gradients(ModuleId module);
  /// Says that the gradient of a micro-batch, of the mean loss over all tokens of the step times
  /// loss_scale(), is complete on the compute stream. Without these calls, all micro-batches of a
  /// rank are added up before they are exchanged: with several ranks another order, and so other
  /// bits.
  Status AddGradients(ModuleId module);
  /// Says that the gradients of all micro-batches are complete. Precondition of this and of
  /// BeginHostGradients: the module was acquired in this step. Acquire waits for the module's last
  /// update, which reads the last gradient until then.
  Status ReduceGradients(ModuleId module);
  /// These replace the last two for gradients in host memory. BeginHostGradients returns where the
  /// caller writes a module's gradients, rounded to the dtype of its weights; EndHostGradients says
  /// that they are written.
  Result<std::vector<HostGradient>> BeginHostGradients(ModuleId module);
  Status EndHostGradients(ModuleId module);
  /// Returns where kernels add the loss of each micro-batch of this rank, a sum over its tokens, on
  /// the device: `micro_batches` doubles, zeroed at the first call in a step. Errors:
  /// kInvalidArgument if the step was begun with another number of micro-batches.
  Result<double*> Losses(uint64_t micro_batches);
  /// Reports the losses, which are complete on the compute stream. The loss of the step is their
  /// sum over all ranks, in the order of the global batch, divided by `tokens`, those of all ranks.
  /// `reported`, if any, is called with it, from a thread of the device; after a failure of the
  /// device it is NaN.
  Status ReportLosses(uint64_t tokens, std::function<void(double loss)> reported = {});
  /// Replaces ReportLosses for a loss that the caller computes, with one rank: reports the mean
  /// loss of the step's forward. The first call counts. May be called from any thread, also one of
  /// the compute stream. A finite loss must not be reported if the forward failed.
  void ReportLoss(double loss);
  /// Returns a function that reports the loss of this step, also after the Step was moved. It must
  /// not run after the session has ended.
  std::function<void(double loss)> LossReporter();

  /// Returns the norm of the step's gradient as it was given, with the loss scale. Every gradient
  /// is there; none is taken afterwards. Precondition: updates begin when the step ends. Errors: as
  /// Finish.
  Result<GradientNorm::Value> Norm();
  /// Updates the state or skips the step, and returns as soon as the updates are under way. Every
  /// gradient must be reduced, and no lease may be left. `note` is told to all ranks. Errors:
  /// kInvalidArgument, after which the step is still open, or, if no loss was reported, over
  /// without a change; kNumeric for a gradient that is not finite and may not be skipped, which
  /// ends the training, as do errors of the engine.
  Result<StepOutcome> Finish(const StepNote& note = {}, StepEnd end = {});
  /// Ends the step as one that is skipped, because its caller has found the gradient not finite,
  /// which need not be complete. It counts, with its loss. With one rank. Errors: as Finish and
  /// Drop.
  Result<StepOutcome> Skip();
  /// Ends the step without an update. Errors: kUnavailable if updates have begun with their
  /// gradients, which ends the training.
  Status Drop();

 private:
  friend class Session;
  Step(Session& session, uint64_t id) : session_(&session), id_(id) {}
  void End();

  Session* session_;  ///< none: moved from
  uint64_t id_;
};

}  // namespace penstock::zero
