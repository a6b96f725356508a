#include "train/doctor/step_bound.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "train/plan/step_floors.h"

namespace penstock::train {
namespace {

constexpr uint64_t kFewestRows = 3;
constexpr double kMuchWaiting = 0.2;  // of a step
constexpr double kMuchComputing = 0.5;
constexpr double kMuchUpdating = 0.5;
constexpr double kLittleOverlap = 0.3;
constexpr double kFullHost = 0.9;
constexpr double kBusyDrive = 0.25;
// The drive's time over that of computation: between drives of half, once and four times the speed
// that computation needs.
constexpr double kSlowDrive = 1.4;
constexpr double kFastDrive = 0.6;

/// What bounds a step, and what to do.
struct BoundText {
  StepBound bound;
  const char* name;
  const char* advice;
};
constexpr std::array<BoundText, 10> kTexts = {{
    {StepBound::kTooFewSteps, "too few steps", "train for more steps"},
    {StepBound::kCommunication, "communication-bound",
     "a faster link; communication_data_type \"bf16\" and penstock.gradient_order \"rank\" send "
     "less; more micro-batches on fewer ranks"},
    {StepBound::kIo, "io-bound",
     "more tokens a step (the bytes stay the same), a larger --host-memory, a second drive in "
     "nvme_path, bf16.bf16_optimizer_states"},
    {StepBound::kBalanced, "balanced",
     "drive and computation would both have to be faster; what still waits is their order: "
     "gradient_clipping 0 without an overflow check lets updates begin during backward"},
    {StepBound::kOptimizer, "optimizer-bound",
     "more penstock.optimizer_threads, or more tokens a step"},
    {StepBound::kUpdatesAlone, "updates with nothing beside them",
     "penstock.overlap true, and more tokens a step; gradient_clipping 0 without an overflow check "
     "lets updates begin during backward"},
    {StepBound::kCompute, "compute-bound", "a faster device; faster I/O gains nothing"},
    {StepBound::kHostMemory, "host memory too small",
     "a larger --host-memory reads further ahead; the drive is far below its speed"},
    {StepBound::kSlowIo, "slow I/O",
     "the drive is far below its speed: penstock tune finds better I/O settings, larger "
     "penstock.tile_elements make larger requests, and other programs may use the drive"},
    {StepBound::kNothing, "nothing in particular",
     "train with --trace for a few steps; docs/performance.md says how to read it"},
}};

const BoundText& TextOf(StepBound bound) {
  return *std::ranges::find(kTexts, bound, &BoundText::bound);
}

/// The figures as shares of a step.
struct Shares {
  double compute = 0;
  double wait = 0;
  double optimizer = 0;
  double communication = 0;
  std::optional<double> drive;

  /// How much longer the drive needs than computation.
  std::optional<double> ratio() const {
    if (!drive || compute <= 0) return std::nullopt;
    return *drive / compute;
  }
};

Shares SharesOf(const StepFigures& figures, const std::optional<double>& drive_s) {
  const double step = figures.step_s;
  Shares shares = {.compute = figures.compute_s / step,
                   .wait = figures.io_wait_s / step,
                   .optimizer = figures.optimizer_s / step,
                   .communication = figures.comm_wait_s / step};
  if (drive_s) shares.drive = *drive_s / step;
  return shares;
}

std::string SharesText(const StepFigures& figures, const Shares& shares, const std::string& note) {
  const auto percent = [](double share) { return fmt::format("{:.0f} %", 100 * share); };
  std::string text = fmt::format(
      "of a step of {:.3g} s computation takes {}, waiting for data {}, the optimizer {}",
      figures.step_s / static_cast<double>(figures.rows), percent(shares.compute),
      percent(shares.wait), percent(shares.optimizer));
  if (figures.overlap) {
    text += fmt::format(" ({} of it under computation)", percent(*figures.overlap));
  }
  if (figures.comm_wait_s > 0) {
    text += fmt::format(", waiting for ranks {}", percent(shares.communication));
  }
  if (figures.host_share) {
    text += fmt::format(", host memory is used to {}", percent(*figures.host_share));
  }
  if (!shares.drive) return text + "; how fast the drive is is not known";
  return text + fmt::format(", and the drive needs {}{}", percent(*shares.drive),
                            note.empty() ? "" : " (" + note + ")");
}

}  // namespace

const char* ToString(StepBound bound) { return TextOf(bound).name; }

StepBound FindBound(const StepFigures& figures, const std::optional<double>& drive_s) {
  if (figures.rows < kFewestRows || !(figures.step_s > 0)) return StepBound::kTooFewSteps;
  const Shares shares = SharesOf(figures, drive_s);
  const bool waits = shares.wait >= kMuchWaiting;
  const bool moves = figures.read_bytes + figures.write_bytes > 0;
  if (shares.communication >= kMuchWaiting && shares.communication >= shares.wait) {
    return StepBound::kCommunication;
  }
  const LongestFloor longest = LongestOf({.compute = figures.compute_s,
                                          .drive = drive_s,
                                          .update = figures.optimizer_s,
                                          .copies = {},
                                          .link = {}});
  if (shares.optimizer >= kMuchUpdating && longest.resource == StepResource::kOptimizer) {
    return StepBound::kOptimizer;
  }
  const std::optional<double> ratio = shares.ratio();
  if (ratio && *ratio >= kFastDrive && *shares.drive >= kBusyDrive) {
    return *ratio > kSlowDrive ? StepBound::kIo : StepBound::kBalanced;
  }
  if (shares.optimizer >= kMuchWaiting && figures.overlap.value_or(1) < kLittleOverlap) {
    return StepBound::kUpdatesAlone;
  }
  if (!waits && shares.compute >= kMuchComputing) return StepBound::kCompute;
  if (!waits || !moves) return StepBound::kNothing;
  if (!drive_s) return StepBound::kIo;
  return figures.host_share.value_or(1) >= kFullHost ? StepBound::kHostMemory : StepBound::kSlowIo;
}

Check BoundCheck(const StepFigures& figures, const DriveNeed& need) {
  const StepBound bound = FindBound(figures, need.seconds);
  const std::string name = "bound by";
  if (bound == StepBound::kTooFewSteps) {
    return UnknownCheck(
        name, fmt::format("{}: {} rows; {}", ToString(bound), figures.rows, TextOf(bound).advice));
  }
  std::string advice = TextOf(bound).advice;
  if (bound == StepBound::kIo && !need.seconds) advice += "; " + need.how_to_know;
  return {.state = bound == StepBound::kCompute || bound == StepBound::kBalanced
                       ? CheckState::kOk
                       : CheckState::kWarn,
          .name = name,
          .found = fmt::format("{}: {}", ToString(bound),
                               SharesText(figures, SharesOf(figures, need.seconds), need.note)),
          .advice = std::move(advice)};
}

}  // namespace penstock::train
