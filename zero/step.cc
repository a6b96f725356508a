#include "zero/step.h"

#include "zero/session.h"

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
device::Stream& Step::compute_stream() { return session_->compute_stream(); }
Result<Use> Step::Acquire(ModuleId module) { return session_->Acquire(id_, module); }

Result<float*> Step::Gradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckGradient(id_, module));
  return session_->engine_.Gradients(module);
}

Status Step::ReduceGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckUsed(id_, module));
  PENSTOCK_TRY(session_->engine_.ReduceGradients(module));
  session_->Reduced(module);
  return {};
}

Result<std::vector<HostGradient>> Step::BeginHostGradients(ModuleId module) {
  PENSTOCK_TRY(session_->CheckUsed(id_, module));
  PENSTOCK_ASSIGN(std::vector<HostGradient> gradients,
                  session_->engine_.BeginHostGradients(module));
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
  PENSTOCK_TRY(session_->engine_.EndHostGradients(module));
  session_->Reduced(module);
  return {};
}

void Step::ReportLoss(double loss) { session_->ReportLoss(id_, loss); }

std::function<void(double)> Step::LossReporter() {
  return [session = session_, step = id_](double loss) { session->ReportLoss(step, loss); };
}

Result<StepOutcome> Step::Finish() { return session_->Finish(id_); }
Status Step::Drop() { return session_->Drop(id_); }

}  // namespace penstock::zero
