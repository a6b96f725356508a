#include "numerics/headroom.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "numerics/advice.h"
#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

bool Rises(const History& bits) {
  if (!bits.full()) return false;
  double before = bits.PartMedian(0, kTrendParts);
  const double first = before;
  for (size_t part = 1; part < kTrendParts; ++part) {
    const double now = bits.PartMedian(part, kTrendParts);
    if (!(now > before)) return false;
    before = now;
  }
  return before - first >= kTrendRise;
}

}  // namespace

double HeadroomBits(double largest) {
  if (!std::isfinite(largest)) return std::numeric_limits<double>::quiet_NaN();
  return std::log2(kMaxFloat16) - std::log2(largest);
}

size_t HeadroomDetector::Count(const StepNumbers& numbers) const {
  return kOutputs * std::min(numbers.layers.size(), facts_.layers.size());
}

std::optional<HeadroomDetector::Output> HeadroomDetector::OutputAt(const StepNumbers& numbers,
                                                                   size_t index) const {
  const size_t layer = index / kOutputs;
  const LayerNumbers& of = numbers.layers[layer];
  const WatchedLayer& names = facts_.layers[layer];
  const std::array largest = {of.attention, of.mlp, of.residual};
  const std::array name = {&names.attention, &names.mlp, &names.residual};
  const size_t output = index % kOutputs;
  if (!largest[output] || !std::isfinite(*largest[output])) return {};
  return Output{name[output], static_cast<uint32_t>(layer), *largest[output]};
}

std::optional<HeadroomDetector::Output> HeadroomDetector::FirstTooLarge(
    const StepNumbers& numbers) const {
  for (size_t i = 0; i < Count(numbers); ++i) {
    const std::optional<Output> output = OutputAt(numbers, i);
    if (output && HeadroomBits(output->largest) < kMinHeadroom) return output;
  }
  return {};
}

std::optional<HeadroomDetector::Output> HeadroomDetector::FirstRising(const StepNumbers& numbers) {
  bits_.resize(std::max(bits_.size(), Count(numbers)), History(kTrendSteps));
  std::optional<Output> first;
  for (size_t i = 0; i < Count(numbers); ++i) {
    const std::optional<Output> output = OutputAt(numbers, i);
    if (!output || output->largest <= 0) continue;
    bits_[i].Add(std::log2(output->largest));
    const bool near = HeadroomBits(output->largest) < kTrendHeadroom;
    if (!first && near && Rises(bits_[i])) first = output;
  }
  return first;
}

Report HeadroomDetector::MakeReport(uint64_t step, const Output& output, bool rising) const {
  const bool fp16 = facts_.dtype == DType::kFloat16;
  const double bits = HeadroomBits(output.largest);
  const std::string change =
      rising ? fmt::format("has risen for {} steps to", kTrendSteps) : std::string("reaches");
  return {.step = step,
          .kind = ReportKind::kHeadroom,
          .severity = fp16 ? Severity::kWarning : Severity::kInfo,
          .tensor = *output.name,
          .layer = output.layer,
          .pass = Pass::kForward,
          .value = bits,
          .message = fmt::format(
              "step {}: {} of layer {} {} {}, {:.1f} bits {} the end of fp16{}; {}", step,
              *output.name, output.layer, change, NumberText(output.largest), std::abs(bits),
              bits < 0 ? "beyond" : "below", fp16 ? "" : ": this model would not fit fp16",
              Advice(ReportKind::kHeadroom, Pass::kForward, {.dtype = facts_.dtype}))};
}

std::optional<Report> HeadroomDetector::Step(const StepNumbers& numbers) {
  if (facts_.dtype == DType::kFloat32) return {};
  const std::optional<Output> large = FirstTooLarge(numbers);
  if (facts_.dtype == DType::kBFloat16) {
    if (!large || std::exchange(said_in_bf16_, true)) return {};
    return MakeReport(numbers.step, *large, /*rising=*/false);
  }
  const std::optional<Output> rising = FirstRising(numbers);
  if (large && large_.Say(numbers.step)) return MakeReport(numbers.step, *large, false);
  if (!large && rising && rising_.Say(numbers.step)) {
    return MakeReport(numbers.step, *rising, true);
  }
  return {};
}

void HeadroomDetector::Remember(uint64_t step) {
  said_in_bf16_ = true;
  static_cast<void>(large_.Say(step));
  static_cast<void>(rising_.Say(step));
}

}  // namespace penstock::train
