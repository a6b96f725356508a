#include "zero/session/step.h"

#include <span>

#include "zero/session/session.h"

namespace penstock::zero {

Use::Use(Use&& other) noexcept
    : session_(std::exchange(other.session_, nullptr)),
      step_(other.step_),
      module_(other.module_),
      weights_(other.weights_) {}

Use& Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  Release();
  session_ = std::exchange(other.session_, nullptr);
  step_ = other.step_;
  module_ = other.module_;
  weights_ = other.weights_;
  return *this;
}

void Use::Release() {
  if (Session* session = std::exchange(session_, nullptr)) session->Release(step_, module_);
}

Step& Step::operator=(Step&& other) noexcept {
  if (this == &other) return *this;
  End();
  session_ = std::exchange(other.session_, nullptr);
  id_ = other.id_;
  return *this;
}

void Step::End() {
  if (session_ != nullptr && session_->CheckOpen(id_).ok()) static_cast<void>(Drop());
}

const offload::ShardLayout& Step::layout() const { return session_->layout(); }
double Step::loss_scale() const { return session_->life_.scale_of_step(); }
device::Stream& Step::compute_stream() { return session_->compute_stream(); }
Result<Use> Step::Acquire(ModuleId module) { return session_->Acquire(id_, module); }

Status Step::CountUse(ModuleId module) {
  PENSTOCK_TRY(session_->CheckModule(id_, module));
  session_->life_.Use(module);
  return {};
}

Status Step::AnnounceGradient(ModuleId module) {
  PENSTOCK_TRY(session_->CheckGradient(id_, module));
  session_->Reduced(module);
  return {};
}

Result<float*> Step::Gradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckGradient(id_, module));
  return session_->device().Gradients(module);
}

Status Step::AddGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckGradient(id_, module));
  return session_->device().AddGradients(module);
}

Status Step::ReduceGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckUsed(id_, module));
  PENSTOCK_TRY(session_->device().ReduceGradients(module));
  session_->Reduced(module);
  return {};
}

Result<std::vector<HostGradient>> Step::BeginHostGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckUsed(id_, module));
  PENSTOCK_ASSIGN(std::vector<HostGradient> gradients,
                  session_->states_.BeginHostGradients(module));
  session_->Of(module).on_host = true;
  return gradients;
}

Status Step::EndHostGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckGradient(id_, module));
  if (!session_->Of(module).on_host) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the gradient of module {} was ended before it was begun; ask "
                     "BeginHostGradients where to write it first",
                     session_->NameOf(module));
  }
  PENSTOCK_TRY(session_->states_.EndHostGradients(module));
  session_->Reduced(module);
  return {};
}

Result<double*> Step::Losses(uint64_t micro_batches) {
  PENSTOCK_TRY(session_->CheckOpen(id_));
  const uint64_t begun_with = session_->micro_batches_;
  if (micro_batches == begun_with) return session_->device().Losses(micro_batches);
  return MakeError(ErrorCode::kInvalidArgument,
                   "losses of {} micro-batches were asked for, and the step was begun with {}; "
                   "compute as many as that, or begin it with another number",
                   micro_batches, begun_with);
}

Status Step::ReportLosses(uint64_t tokens, std::function<void(double)> reported) {
  PENSTOCK_TRY(session_->CheckOpen(id_));
  session_->device().ShareLosses([session = session_, step = id_, tokens,
                                  reported = std::move(reported)](std::span<const double> losses) {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    const double mean = sum / static_cast<double>(tokens);
    if (reported) reported(mean);
    session->ReportLoss(step, mean);
  });
  return {};
}

void Step::ReportLoss(double loss) { LossReporter()(loss); }

/// Ranks that each decide by a loss of their own would decide differently.
std::function<void(double)> Step::LossReporter() {
  return [session = session_, step = id_](double loss) {
    if (session->layout().world_size == 1) session->ReportLoss(step, loss);
  };
}

Result<GradientNorm::Value> Step::Norm() { return session_->Norm(id_); }

Result<StepOutcome> Step::Finish(const StepNote& note, StepEnd end) {
  return session_->Finish(id_, note, std::move(end));
}

Result<StepOutcome> Step::Skip() { return session_->Skip(id_); }

Status Step::Drop() { return session_->Drop(id_); }

}  // namespace penstock::zero
