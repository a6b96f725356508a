// The monitors: one writes CSV files, the others must be off; and wall_clock_breakdown.
#include "config/sections.h"

namespace penstock::config {
namespace {

constexpr std::string_view kCurvesHint =
    "set it to false; csv_monitor writes the curves, and metrics.jsonl of the run has every step";

}  // namespace

void ReadMonitors(JsonSection& top, Config& config) {
  config.wall_clock_breakdown = top.Bool("wall_clock_breakdown", false);
  top.Object("csv_monitor", [&config](JsonSection& section) {
    CsvMonitor monitor;
    const bool enabled = section.Bool("enabled", false);
    monitor.output_path = section.OptionalText("output_path").value_or("");
    monitor.job_name = section.OptionalText("job_name").value_or(monitor.job_name);
    if (enabled) config.csv_monitor = std::move(monitor);
  });
  ReadFeature(top, "tensorboard", {{"output_path", kText | kNull}, {"job_name", kText | kNull}},
              kCurvesHint);
  ReadFeature(top, "wandb",
              {{"group", kText | kNull}, {"team", kText | kNull}, {"project", kText | kNull}},
              kCurvesHint);
  ReadFeature(top, "comet",
              {{"samples_log_interval", kInteger},
               {"project", kText | kNull},
               {"workspace", kText | kNull},
               {"api_key", kText | kNull},
               {"experiment_name", kText | kNull},
               {"experiment_key", kText | kNull},
               {"online", kBool | kNull},
               {"mode", kText | kNull}},
              kCurvesHint);
}

}  // namespace penstock::config
