// The thresholds of all detectors, in one table. docs/numerics.md says what each means and why it
// is not tighter; the numbers D2 to D9 are those of its table.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::train {

/// The largest finite value of fp16.
inline constexpr double kMaxFloat16 = 65504;

// D1: overflows in a row of a gradient with a dynamic loss scale.
inline constexpr uint64_t kOverflowsToReport = 6;

// D2: headroom of activations, in bits.
inline constexpr double kMinHeadroom = 3;
inline constexpr double kTrendHeadroom = 6;
inline constexpr size_t kTrendSteps = 100;
inline constexpr size_t kTrendParts = 5;
inline constexpr double kTrendRise = 0.5;
/// Min change, in bits, for a new line in RUN/headroom.jsonl.
inline constexpr double kHeadroomChange = 0.5;

// D3: skipped steps in a row.
inline constexpr uint64_t kStreakSteps = 3;
inline constexpr uint64_t kSkipsLeftToReport = 10;

// D4: forwards in a row that are not finite.
inline constexpr uint64_t kForwardsToStop = 2;

// D5: spikes of the loss. D6 shares the window and the least history.
inline constexpr double kOverUniform = 1;
inline constexpr double kFarOverUniform = 3;
inline constexpr size_t kSpikeWindow = 64;
inline constexpr size_t kMinHistory = 32;
inline constexpr double kSpikeDeviations = 6;
inline constexpr double kSpikeRatio = 1.2;
inline constexpr double kSpikeReach = 3;
inline constexpr size_t kSpikeApproach = 8;

// D6: spikes of the gradient's norm.
inline constexpr double kNormRatio = 10;

// D7: updates against weights.
inline constexpr double kMaxUpdate = 0.5;
inline constexpr double kMaxSettledUpdate = 0.1;
inline constexpr double kGrowth = 2;
inline constexpr size_t kGrowthSteps = 100;
inline constexpr uint64_t kSettledSteps = 200;
inline constexpr double kMinWeightRms = 0.01;

// Replay: a weight of larger magnitude is destroyed, as no trained model has one.
inline constexpr double kMaxSoundWeight = 1e6;
// Replay: a loss that stands out of those before and after it.
inline constexpr size_t kNeighbours = 8;
inline constexpr double kOutlierDeviations = 24;
inline constexpr double kOutlierRatio = 1.15;

// D8: gradients that fp16 rounds to zero.
inline constexpr double kUnderflowShare = 0.5;

// D9: streaks of overflows within loss_scale_window applied steps.
inline constexpr size_t kOverflowsInWindow = 2;
inline constexpr size_t kOverflowsInFirstWindow = 8;

/// Number of steps for which a finding must be absent before it is reported again.
inline constexpr uint64_t kQuietSteps = 100;

/// How many steps RUN/overflow.json keeps.
inline constexpr size_t kBlackBoxSteps = 16;

}  // namespace penstock::train
