#include "numerics/advice.h"

#include <fmt/format.h>

namespace penstock::train {
namespace {

std::string ForwardAdvice(const Situation& situation) {
  if (situation.broken_by) {
    return fmt::format(
        "the weights are broken since the update of step {}: go back to a commit before that step, "
        "with a lower learning rate",
        *situation.broken_by);
  }
  if (situation.dtype == DType::kFloat16) {
    return "fp16 ends at 65504, and no loss scale fixes a forward: train in bf16, whose range is "
           "that of fp32, or in fp32";
  }
  return "the weights or the data are broken: look at the rows of the step; go back to an earlier "
         "commit, with a lower learning rate";
}

std::string BackwardAdvice(const Situation& situation) {
  if (situation.broken_by || situation.dtype != DType::kFloat16) {
    return "go back to an earlier commit, with a lower learning rate; look at the rows of the step";
  }
  if (situation.ended) {
    return "train in bf16, or go back to a commit before it, with a lower learning rate; a larger "
           "initial_scale_power only delays it";
  }
  if (!situation.dynamic_loss_scale) {
    return "lower fp16.loss_scale, or set it to 0, which lets it find its own value";
  }
  return "this is normal: the step is skipped and the scale goes down by itself";
}

std::string StreakAdvice(const Situation& situation) {
  if (situation.ended || !situation.dynamic_loss_scale) return BackwardAdvice(situation);
  return "if it does not recover, go back to a commit before it, in bf16 or with a lower learning "
         "rate";
}

}  // namespace

std::string OtherRemedy(const NumericEnd& end) {
  if (end.zero_gradient) {
    return fmt::format("{}, or train in bf16, whose range is that of fp32, in a new run",
                       end.static_scale > 0
                           ? "raise fp16.loss_scale, or set it to 0, which lets it find its own "
                             "value (--resume --change fp16.loss_scale=0)"
                           : "raise fp16.initial_scale_power");
  }
  // A scale of 1 changes nothing: the gradient itself is too large.
  if (end.forward_finite && end.static_scale > 1) {
    return fmt::format(
        "fp16.loss_scale {} is too large for these gradients: lower it, or set it to 0, which lets "
        "it find its own value (--resume --change fp16.loss_scale=0)",
        end.static_scale);
  }
  if (end.forward_finite && end.min_scale > 1) {
    return fmt::format(
        "fp16.min_loss_scale {} is too large for these gradients: lower it (--resume --change "
        "fp16.min_loss_scale=LOWER), or train in bf16, in a new run",
        end.min_scale);
  }
  if (end.updated) return "";
  return fmt::format(
      "no update was applied to these weights, so a lower learning rate does not help: look at "
      "them and at the data{}, or begin with other weights",
      end.dtype == DType::kFloat16 ? ", train in bf16 or in fp32, whose range is larger" : "");
}

std::string Advice(ReportKind kind, const std::optional<Pass>& pass, const Situation& situation) {
  switch (kind) {
    case ReportKind::kNonFinite:
      return pass == Pass::kBackward ? BackwardAdvice(situation) : ForwardAdvice(situation);
    case ReportKind::kHeadroom:
      return situation.dtype == DType::kFloat16
                 ? "train in bf16, or lower the learning rate, before it overflows"
                 : "stay in bf16";
    case ReportKind::kStreak:
      return StreakAdvice(situation);
    case ReportKind::kLossSpike:
      return "look at the rows of the step; if the loss does not come back, go back to a commit "
             "before it, without those rows or with a lower learning rate";
    case ReportKind::kNormSpike:
      return "gradient_clipping bounds what one step can do; look at the rows of the step, and if "
             "the loss rises, go back to a commit before it";
    case ReportKind::kUpdate:
      return "lower the learning rate or warm it up; commits before this step are sound";
    case ReportKind::kUnderflow:
      return situation.dynamic_loss_scale
                 ? "train in bf16, or raise fp16.min_loss_scale"
                 : "raise fp16.loss_scale, or set it to 0, which lets it find its own value";
    case ReportKind::kOverflows:
      return "a longer fp16.loss_scale_window doubles less often; if overflows persist, train in "
             "bf16";
  }
  return "";
}

}  // namespace penstock::train
