#include "train/cli/cli_plan_modes.h"

#include <string>
#include <string_view>
#include <vector>

namespace penstock::train {
namespace {

using Names = std::vector<std::string_view>;

bool Given(const CLI::App& plan, std::string_view name) {
  return plan.get_option(std::string(name))->count() > 0;
}

/// The option that says what is asked, and what is of no use to it.
struct Question {
  std::string_view by;
  Names refuses;
};

Names And(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

Question QuestionOf(const CLI::App& plan) {
  if (Given(plan, "--config") && !Given(plan, "--topologies")) {
    return {.by = "--config", .refuses = {"--as", "--tensor-parallel", "--global-batch"}};
  }
  const Names of_run = {"--choose", "--device",          "--host-memory", "--tune",
                        "--drive",  "--sequence-length", "--drive-rating"};
  if (Given(plan, "--topologies")) {
    return {.by = "--topologies",
            .refuses = And(of_run, {"--as", "--tensor-parallel", "--tokens"})};
  }
  const Names of_machine = And(of_run, {"--device-memory", "--link"});
  if (!Given(plan, "--as") && !Given(plan, "--tensor-parallel")) {
    return {.by = "--tokens without --config", .refuses = And(of_machine, {"--nodes"})};
  }
  const Names of_length = And(of_machine, {"--tokens", "--device-tflops", "--global-batch"});
  if (Given(plan, "--as")) return {.by = "--as", .refuses = And(of_length, {"--tensor-parallel"})};
  return {.by = "--tensor-parallel", .refuses = And(of_length, {"--ranks", "--nodes"})};
}

}  // namespace

Status CheckPlanOptions(const CLI::App& plan) {
  const Question question = QuestionOf(plan);
  for (const std::string_view name : question.refuses) {
    if (!Given(plan, name)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} has no effect on a plan by {}; leave one of them out", name, question.by);
  }
  return {};
}

}  // namespace penstock::train
