#include "train/doctor/step_bound.h"

#include <fmt/format.h>

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

const char* AdviceOf(StepBound bound) {
  switch (bound) {
    case StepBound::kTooFewSteps:
      return "train for more steps";
    case StepBound::kCommunication:
      return "a faster link; communication_data_type \"bf16\" and penstock.gradient_order \"rank\" "
             "send less; more micro-batches on fewer ranks";
    case StepBound::kIo:
      return "more tokens a step (the bytes stay the same), a larger --host-memory, a second drive "
             "in nvme_path, bf16.bf16_optimizer_states";
    case StepBound::kBalanced:
      return "drive and computation would both have to be faster; what still waits is their order: "
             "gradient_clipping 0 without an overflow check lets updates begin during backward";
    case StepBound::kOptimizer:
      return "more penstock.optimizer_threads, or more tokens a step";
    case StepBound::kUpdatesAlone:
      return "penstock.overlap true, and more tokens a step; gradient_clipping 0 without an "
             "overflow "
             "check lets updates begin during backward";
    case StepBound::kCompute:
      return "a faster device; faster I/O gains nothing";
    case StepBound::kHostMemory:
      return "a larger --host-memory reads further ahead; the drive is far below its speed";
    case StepBound::kSlowIo:
      return "the drive is far below its speed: penstock tune finds better I/O settings, larger "
             "penstock.tile_elements make larger requests, and other programs may use the drive";
    case StepBound::kNothing:
      return "train with --trace for a few steps; docs/performance.md says how to read it";
  }
  return "";
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

const char* ToString(StepBound bound) {
  switch (bound) {
    case StepBound::kTooFewSteps:
      return "too few steps";
    case StepBound::kCommunication:
      return "communication-bound";
    case StepBound::kIo:
      return "io-bound";
    case StepBound::kBalanced:
      return "balanced";
    case StepBound::kOptimizer:
      return "optimizer-bound";
    case StepBound::kUpdatesAlone:
      return "updates with nothing beside them";
    case StepBound::kCompute:
      return "compute-bound";
    case StepBound::kHostMemory:
      return "host memory too small";
    case StepBound::kSlowIo:
      return "slow I/O";
    case StepBound::kNothing:
      return "nothing in particular";
  }
  return "unknown";
}

std::optional<double> DriveSeconds(const StepFigures& figures,
                                   const std::optional<aio::SimulatedDrive>& speed) {
  std::optional<sim::DriveSpeed> drive;
  if (speed) {
    drive = {.read_bytes_a_second = speed->read_gbps * 1e9,
             .write_bytes_a_second = speed->write_gbps * 1e9,
             .shared = speed->shared};
  }
  return DriveTime(figures.read_bytes, figures.write_bytes, drive);
}

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
        name, fmt::format("{}: {} rows; {}", ToString(bound), figures.rows, AdviceOf(bound)));
  }
  std::string advice = AdviceOf(bound);
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
