#include "numerics/conclusion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/median.h"
#include "numerics/text.h"
#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

/// Lines of one kind that are quoted.
constexpr size_t kQuoted = 3;

bool LossIsFinite(const ReplayedStep& step) { return std::isfinite(step.loss); }

bool IsTooLarge(const ReplayedStep& step) {
  return step.update && (step.update->too_large > 0 || step.update->broken);
}

/// A step whose loss or gradient stands out.
struct Spike {
  uint64_t step = 0;
  std::vector<uint64_t> rows;
  std::string line;
};

/// The losses of the steps around the one at `at`.
std::vector<double> Around(const std::vector<ReplayedStep>& steps, size_t at) {
  std::vector<double> losses;
  const size_t first = at - std::min(at, kNeighbours);
  for (size_t i = first; i < std::min(steps.size(), at + kNeighbours + 1); ++i) {
    if (i != at && LossIsFinite(steps[i])) losses.push_back(steps[i].loss);
  }
  return losses;
}

/// A watch sees what came before a step; a replay sees what comes after it as well, and so finds
/// smaller jumps.
std::optional<Spike> Outlier(const std::vector<ReplayedStep>& steps, size_t at) {
  const ReplayedStep& step = steps[at];
  const std::vector<double> around = Around(steps, at);
  if (!LossIsFinite(step) || around.size() < kNeighbours) return {};
  const double median = MedianOf(around);
  std::vector<double> distances;
  for (const double loss : around) distances.push_back(std::fabs(loss - median));
  const double deviation = MedianOf(distances);
  const bool far = step.loss > median + kOutlierDeviations * deviation;
  if (!far || step.loss <= kOutlierRatio * median) return {};
  return Spike{.step = step.step,
               .rows = step.rows,
               .line = fmt::format("step {}: the loss is {}, {} times the median of the {} losses "
                                   "around it, from which these are {} away (median)",
                                   step.step, NumberText(step.loss), NumberText(step.loss / median),
                                   around.size(), NumberText(deviation))};
}

/// Those that the watch reported and those that it could not see, by step.
std::vector<Spike> FindSpikes(const ReplayEvidence& evidence) {
  std::vector<Spike> spikes;
  for (const Report& report : evidence.reports) {
    if (report.kind != ReportKind::kLossSpike && report.kind != ReportKind::kNormSpike) continue;
    spikes.push_back({.step = report.step, .rows = report.rows, .line = report.message});
  }
  std::vector<ReplayedStep> all = evidence.before;
  all.insert(all.end(), evidence.steps.begin(), evidence.steps.end());
  for (size_t i = evidence.before.size(); i < all.size(); ++i) {
    const bool said = std::ranges::find(spikes, all[i].step, &Spike::step) != spikes.end();
    std::optional<Spike> spike = said ? std::nullopt : Outlier(all, i);
    if (spike) spikes.push_back(*std::move(spike));
  }
  std::ranges::stable_sort(spikes, {}, &Spike::step);
  return spikes;
}

/// Returns steps with known updates: for an fp16 run of which only rows are known, those of fp32.
const std::vector<ReplayedStep>& WithUpdates(const ReplayEvidence& evidence) {
  const auto known = [](const ReplayedStep& step) { return step.update.has_value(); };
  if (evidence.in_fp32 && std::ranges::none_of(evidence.steps, known)) return *evidence.in_fp32;
  return evidence.steps;
}

/// The first update, of a step before `before`, whose weights are destroyed.
const ReplayedStep* FirstBroken(const std::vector<ReplayedStep>& steps) {
  const auto found = std::ranges::find_if(
      steps, [](const ReplayedStep& step) { return step.update && step.update->broken; });
  return found == steps.end() ? nullptr : &*found;
}

/// The first update that is too large for its weights, of at most kBlackBoxSteps before a step.
const ReplayedStep* TooLargeBefore(const std::vector<ReplayedStep>& steps, uint64_t before) {
  const auto found = std::ranges::find_if(steps, [before](const ReplayedStep& step) {
    return IsTooLarge(step) && step.step < before && step.step + kBlackBoxSteps >= before;
  });
  return found == steps.end() ? nullptr : &*found;
}

std::string Steps(const ReplayedStep& first, const ReplayedStep& last) {
  return first.step == last.step ? fmt::format("step {}", first.step)
                                 : fmt::format("steps {} to {}", first.step, last.step);
}

/// "step 1: the update of h.1.mlp.c_fc.weight is 1.2 times its weights (rms), with learning rate
/// 0.3 (7 more of its tensors)".
std::string UpdateLine(const ReplayedStep& step) {
  const ReplayedUpdate& update = *step.update;
  std::string line = fmt::format(
      "step {}: the update of {} is {} times its weights (rms), with learning rate {}{}", step.step,
      update.largest_of, NumberText(update.largest), NumberText(step.lr),
      update.too_large < 2
          ? ""
          : fmt::format("; {} tensors have one that is too large", update.too_large));
  if (!update.broken) return line;
  return line + fmt::format("; the weights of {} then {}", *update.broken,
                            std::isfinite(update.largest_weight)
                                ? "reach " + NumberText(update.largest_weight)
                                : "are not finite");
}

std::string FailureLine(const ReplayedStep& step) {
  const std::string what =
      !LossIsFinite(step) ? fmt::format("the loss is {}", NumberText(step.loss))
                          : fmt::format("the norm of the gradient is {} at loss scale {}",
                                        NumberText(step.grad_norm), ScaleText(step.loss_scale));
  if (!step.first) return fmt::format("step {}: {}", step.step, what);
  const NonFinitePlace& place = *step.first;
  const std::string where = PlaceText(place.layer, place.micro_batch, place.rows);
  return fmt::format("step {}: {}; {}, in {}{}", step.step, what,
                     place.tensor ? *place.tensor + " is the first that is not finite"
                                  : "which tensor was the first is not known",
                     place.pass == Pass::kBackward ? "backward" : "forward",
                     where.empty() ? "" : " (" + where + ")");
}

/// What the updates before a step were, if they were small.
std::string SmallUpdatesLine(const std::vector<ReplayedStep>& steps, uint64_t before) {
  const ReplayedStep* largest = nullptr;
  for (const ReplayedStep& step : steps) {
    if (!step.update || step.step >= before) continue;
    if (largest == nullptr || step.update->largest > largest->update->largest) largest = &step;
  }
  if (largest == nullptr) return "";
  return fmt::format(
      "all weights before it are finite, and the largest update before it is {} times its weights "
      "({}, step {})",
      NumberText(largest->update->largest), largest->update->largest_of, largest->step);
}

void Add(std::vector<std::string>& lines, std::string line) {
  if (!line.empty()) lines.push_back(std::move(line));
}

std::string BackTo(uint64_t step, const std::string& rate_key) {
  return fmt::format(
      "go back to a commit of step {} or earlier (--resume-from SNAPSHOT, or --resume if it is the "
      "newest), with a lower learning rate (--change {}=LOWER)",
      step - 1, rate_key);
}

/// Whether every step, in fp32 if they were computed in it, has a loss that even weights without
/// any training do not reach: so had the weights with which the first of them began.
bool AllWorseThanUniform(const ReplayEvidence& evidence) {
  const std::vector<ReplayedStep>& steps = evidence.in_fp32 ? *evidence.in_fp32 : evidence.steps;
  if (steps.empty() || evidence.vocabulary < 2) return false;
  const double bound = std::log(static_cast<double>(evidence.vocabulary)) + kOverUniform;
  return std::ranges::all_of(steps,
                             [bound](const ReplayedStep& step) { return step.loss > bound; });
}

std::string WorseThanUniformLine(const ReplayEvidence& evidence) {
  if (!AllWorseThanUniform(evidence)) return "";
  const std::vector<ReplayedStep>& steps = evidence.in_fp32 ? *evidence.in_fp32 : evidence.steps;
  return fmt::format("from step {} on every loss{} is above ln(vocabulary) + {}; the first is {}",
                     steps.front().step, evidence.in_fp32 ? " in fp32" : "", kOverUniform,
                     NumberText(steps.front().loss));
}

Conclusion Weights(const ReplayEvidence& evidence, const ReplayedStep& since,
                   const ReplayedStep* failure) {
  Conclusion conclusion{.cause = Cause::kWeights,
                        .text = fmt::format("the weights, since the update of step {}", since.step),
                        .evidence = {UpdateLine(since)},
                        .advice = BackTo(since.step, evidence.rate_key)};
  if (failure != nullptr) conclusion.evidence.push_back(FailureLine(*failure));
  return conclusion;
}

Conclusion CommittedWeights(const ReplayEvidence& evidence, const ReplayedStep* failure) {
  Conclusion conclusion{
      .cause = Cause::kWeights,
      .text = fmt::format("the weights, which the commit of step {} has already", evidence.from),
      .advice = "replay from an earlier snapshot to see since when, or begin with other weights"};
  const size_t quoted = std::min(evidence.commit_faults.size(), kQuoted);
  conclusion.evidence.assign(evidence.commit_faults.begin(),
                             evidence.commit_faults.begin() + static_cast<ptrdiff_t>(quoted));
  if (quoted < evidence.commit_faults.size()) {
    conclusion.evidence.push_back(
        fmt::format("and {} more tensors", evidence.commit_faults.size() - quoted));
  }
  if (failure != nullptr) conclusion.evidence.push_back(FailureLine(*failure));
  Add(conclusion.evidence, WorseThanUniformLine(evidence));
  return conclusion;
}

Conclusion Fp16Range(const ReplayEvidence& evidence, const ReplayedStep& failure) {
  const std::vector<ReplayedStep>& fp32 = *evidence.in_fp32;
  Conclusion conclusion{
      .cause = Cause::kFp16Range,
      .text = "fp16's range: what is not finite in fp16 is finite in fp32",
      .evidence = {FailureLine(failure)},
      .advice =
          "train in bf16 (bf16.enabled), whose range is that of fp32, or in fp32, from what "
          "penstock export writes of the commit"};
  conclusion.evidence.push_back(
      fmt::format("{} in fp32: every loss and gradient is finite, the last loss is {}",
                  Steps(fp32.front(), fp32.back()), NumberText(fp32.back().loss)));
  Add(conclusion.evidence, SmallUpdatesLine(WithUpdates(evidence), failure.step));
  return conclusion;
}

Conclusion DataAtFailure(const ReplayEvidence& evidence, const ReplayedStep& failure) {
  Conclusion conclusion{.cause = Cause::kData,
                        .text = fmt::format("the data of step {}", failure.step),
                        .evidence = {FailureLine(failure)},
                        .advice =
                            "look at these rows, and pass over the step (--skip-steps) or go "
                            "on without them"};
  if (evidence.in_fp32) conclusion.evidence.emplace_back("fp32 does not compute the step either");
  Add(conclusion.evidence, SmallUpdatesLine(WithUpdates(evidence), failure.step));
  return conclusion;
}

Conclusion DataAtSpike(const ReplayEvidence& evidence, const std::vector<Spike>& spikes) {
  const Spike& first = spikes.front();
  const std::string rows = PlaceText({}, {}, first.rows);
  Conclusion conclusion{
      .cause = Cause::kData,
      .text = fmt::format("the data of step {}{}", first.step, rows.empty() ? "" : ": " + rows),
      .advice =
          fmt::format("look at these rows; if the loss does not come back, go back to a commit "
                      "before and pass over the step (--skip-steps {}:{})",
                      first.step, first.step)};
  for (size_t i = 0; i < std::min(spikes.size(), kQuoted); ++i) {
    conclusion.evidence.push_back(spikes[i].line);
  }
  if (spikes.size() > kQuoted) {
    conclusion.evidence.push_back(fmt::format("and {} more such steps", spikes.size() - kQuoted));
  }
  Add(conclusion.evidence, SmallUpdatesLine(WithUpdates(evidence), first.step));
  return conclusion;
}

Conclusion LearningRate(const ReplayEvidence& evidence, const std::vector<Spike>& spikes) {
  const std::vector<ReplayedStep>& steps = WithUpdates(evidence);
  std::vector<const ReplayedStep*> large;
  for (const ReplayedStep& step : steps) {
    if (IsTooLarge(step)) large.push_back(&step);
  }
  const ReplayedStep& first = *large.front();
  Conclusion conclusion{
      .cause = Cause::kLearningRate,
      .text = fmt::format("the learning rate: the updates of {} steps, from step {} on, are too "
                          "large for the weights",
                          large.size(), first.step),
      .evidence = {UpdateLine(first)},
      .advice = BackTo(first.step, evidence.rate_key)};
  if (large.size() > 1) conclusion.evidence.push_back(UpdateLine(*large.back()));
  conclusion.evidence.push_back(fmt::format("the loss is {} in step {} and {} in step {}",
                                            NumberText(steps.front().loss), steps.front().step,
                                            NumberText(steps.back().loss), steps.back().step));
  if (!spikes.empty()) conclusion.evidence.push_back(spikes.front().line);
  return conclusion;
}

Conclusion Nothing(const ReplayEvidence& evidence) {
  const std::vector<ReplayedStep>& steps = evidence.steps;
  if (steps.empty()) return {.text = "nothing found: no step was computed"};
  Conclusion conclusion{.text = "nothing found"};
  conclusion.evidence.push_back(fmt::format("{}: every loss is finite, the last is {}",
                                            Steps(steps.front(), steps.back()),
                                            NumberText(steps.back().loss)));
  Add(conclusion.evidence, SmallUpdatesLine(steps, steps.back().step + 1));
  return conclusion;
}

bool AllFinite(const std::vector<ReplayedStep>& steps) {
  return !steps.empty() && std::ranges::all_of(steps, [](const ReplayedStep& step) {
    return LossIsFinite(step) && std::isfinite(step.grad_norm);
  });
}

Conclusion ConcludeFailure(const ReplayEvidence& evidence, const ReplayedStep& failure) {
  if (!evidence.commit_faults.empty()) return CommittedWeights(evidence, &failure);
  const ReplayedStep* const large = TooLargeBefore(WithUpdates(evidence), failure.step);
  if (large != nullptr) return Weights(evidence, *large, &failure);
  if (AllWorseThanUniform(evidence)) return CommittedWeights(evidence, &failure);
  const bool fp16 = evidence.dtype == DType::kFloat16;
  if (fp16 && evidence.in_fp32 && AllFinite(*evidence.in_fp32)) return Fp16Range(evidence, failure);
  return DataAtFailure(evidence, failure);
}

}  // namespace

const ReplayedStep* FirstFailure(const ReplayEvidence& evidence) {
  const std::vector<ReplayedStep>& steps = evidence.steps;
  const auto broken =
      std::ranges::find_if_not(steps, [](const ReplayedStep& step) { return LossIsFinite(step); });
  if (broken != steps.end()) return &*broken;
  // Skipped steps are how a loss scale finds its value, unless they are what the steps end with.
  const auto streak = std::find_if_not(steps.rbegin(), steps.rend(),
                                       [](const ReplayedStep& step) { return step.skipped; });
  const auto length = static_cast<uint64_t>(streak - steps.rbegin());
  const bool mends = evidence.dtype == DType::kFloat16 && !evidence.stopped;
  if (length == 0 || (mends && length < kOverflowsToReport)) return nullptr;
  return &*streak.base();
}

bool IsSuspicious(const ReplayEvidence& evidence) {
  return FirstFailure(evidence) != nullptr || !FindSpikes(evidence).empty() ||
         std::ranges::any_of(WithUpdates(evidence), IsTooLarge);
}

Conclusion Conclude(const ReplayEvidence& evidence) {
  const std::vector<ReplayedStep>& steps = WithUpdates(evidence);
  const ReplayedStep* const failure = FirstFailure(evidence);
  const ReplayedStep* const broken = FirstBroken(steps);
  if (broken != nullptr && evidence.commit_faults.empty())
    return Weights(evidence, *broken, failure);
  if (failure != nullptr) return ConcludeFailure(evidence, *failure);
  const bool large_first = !steps.empty() && IsTooLarge(steps.front());
  const bool worse = AllWorseThanUniform(evidence) && !large_first;
  if (!evidence.commit_faults.empty() || worse) return CommittedWeights(evidence, nullptr);
  const std::vector<Spike> spikes = FindSpikes(evidence);
  if (!spikes.empty() && TooLargeBefore(steps, spikes.front().step) == nullptr) {
    return DataAtSpike(evidence, spikes);
  }
  const auto large = std::ranges::count_if(steps, IsTooLarge);
  if (large > 1 || (large == 1 && !spikes.empty())) return LearningRate(evidence, spikes);
  return Nothing(evidence);
}

}  // namespace penstock::train
