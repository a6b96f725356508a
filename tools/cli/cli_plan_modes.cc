#include "tools/cli/cli_plan_modes.h"

#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/cli_auto.h"

namespace penstock::train {
namespace {

using Names = std::vector<std::string_view>;

const CLI::Option& OptionOf(const CLI::App& plan, std::string_view name) {
  return *plan.get_option(std::string(name));
}

bool Given(const CLI::App& plan, std::string_view name) { return OptionOf(plan, name).count() > 0; }

/// The option that says what is asked, and what is of no use to it.
struct Question {
  std::string_view by;
  Names refuses;
};

Names And(Names names, const Names& more) {
  names.insert(names.end(), more.begin(), more.end());
  return names;
}

/// A list of choices has neither days nor wear in it, but as JSON.
Question QuestionOfRun(const CLI::App& plan) {
  const Names others = {"--as", "--tensor-parallel", "--global-batch"};
  const bool lists = Given(plan, "--choose") && !Given(plan, "--json");
  if (!lists) return {.by = "--config", .refuses = others};
  return {.by = "--choose without --json", .refuses = And(others, {"--tokens", "--drive-rating"})};
}

/// The rows of a file have their ranks and batches.
Question QuestionOfTopologies(const CLI::App& plan, const Names& of_run) {
  const Names others = And(of_run, {"--as", "--tensor-parallel", "--tokens"});
  const std::string file = OptionOf(plan, "--topologies").as<std::string>();
  if (file.empty()) return {.by = "--topologies", .refuses = others};
  const Names of_rows =
      Given(plan, "--nodes") ? Names{"--global-batch"} : Names{"--global-batch", "--ranks"};
  return {.by = "--topologies FILE", .refuses = And(others, of_rows)};
}

Question QuestionOf(const CLI::App& plan) {
  if (Given(plan, "--config") && !Given(plan, "--topologies")) return QuestionOfRun(plan);
  const Names of_run = {"--choose", "--device",          "--host-memory",  "--tune",
                        "--drive",  "--sequence-length", "--drive-rating", "--drive-capacity"};
  if (Given(plan, "--topologies")) return QuestionOfTopologies(plan, of_run);
  const Names of_machine = And(of_run, {"--device-memory", "--link"});
  const Names of_length = And(of_machine, {"--tokens", "--device-tflops", "--global-batch"});
  if (Given(plan, "--as")) return {.by = "--as", .refuses = And(of_length, {"--tensor-parallel"})};
  if (Given(plan, "--tensor-parallel")) {
    return {.by = "--tensor-parallel", .refuses = And(of_length, {"--ranks", "--nodes"})};
  }
  if (!Given(plan, "--tokens")) return {};  // nothing is asked, which is said elsewhere
  return {.by = "--tokens without --config", .refuses = And(of_machine, {"--nodes"})};
}

Error HasNoEffect(std::string_view name, const Question& question) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} has no effect on a plan by {}; leave one of them out", name, question.by);
}

}  // namespace

Status CheckPlanOptions(const CLI::App& plan) {
  const Question question = QuestionOf(plan);
  for (const std::string_view name : question.refuses) {
    if (Given(plan, name)) return HasNoEffect(name, question);
  }
  if (Given(plan, "--config") || question.by.empty()) return {};
  for (const CLI::Option* option : plan.get_options()) {
    if (option->get_group() != kAutoGroup || option->count() == 0) continue;
    return HasNoEffect(option->get_name(), question);
  }
  return {};
}

}  // namespace penstock::train
