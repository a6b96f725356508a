#include "train/loop/metrics_summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "config/to_json.h"

namespace penstock::train {
namespace {

using Json = nlohmann::ordered_json;

Json OrNull(const std::optional<double>& value) {
  return value.has_value() ? Json(*value) : Json(nullptr);
}

Json Groups(const RunSummary& summary) {
  Json decay = Json::array();
  Json no_decay = Json::array();
  for (const offload::ModuleLayout& module : summary.layout.model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const bool decays = tensor.group == offload::kDecay;
      (decays ? decay : no_decay).push_back(tensor.name);
    }
  }
  const double weight_decay = kernels::WeightDecay(summary.config.optimizer.hyper);
  return Json::array({{{"name", "decay"}, {"weight_decay", weight_decay}, {"tensors", decay}},
                      {{"name", "no_decay"}, {"weight_decay", 0.0}, {"tensors", no_decay}}});
}

/// Sums over the rows of all ranks, with the names of the rows.
void AddTotals(const LoopSummary& loop, const ModelCost& cost, uint32_t ranks, Json* json) {
  StepRow total;
  total.tokens = loop.tokens;
  Measure(loop.begin, loop.end, cost, &total);
  Json& out = *json;
  out["steps"] = loop.steps;
  out["skipped"] = loop.skipped;
  out["tokens"] = loop.tokens;
  out["step_s"] = total.step_s;
  out["tokens_per_s"] = total.tokens_per_s;
  out["tflops"] = total.tflops;
  out["hardware_tflops"] = total.hardware_tflops;
  out["compute_s"] = total.compute_s;
  out["io_wait_s"] = total.io_wait_s;
  out["optimizer_s"] = total.optimizer_s;
  if (ranks > 1) {
    out["comm_wait_s"] = total.comm_wait_s;
    out["world_size"] = ranks;
  }
  out["update_overlap_s"] =
      ToSeconds(loop.end.activity.update_hidden - loop.begin.activity.update_hidden);
  out["device_peak_bytes"] = total.device_peak_bytes;
  out["host_peak_bytes"] = total.host_peak_bytes;
  out["nvme_read_bytes"] = total.nvme_read_bytes;
  out["nvme_write_bytes"] = total.nvme_write_bytes;
  out["nvme_init_bytes"] = loop.end.counters.nvme_init_bytes;
  out["nvme_commit_bytes"] = loop.end.counters.nvme_commit_bytes;
  out["nvme_verify_bytes"] = loop.end.counters.nvme_verify_bytes;
  out["evictions"] = loop.end.counters.evictions;
}

Json FiguresJson(const PlanFigures& figures) {
  return {{"device_peak_bytes", figures.device_peak_bytes},
          {"host_peak_bytes", figures.host_peak_bytes},
          {"nvme_read_bytes_per_step", figures.nvme_read_bytes_per_step},
          {"nvme_write_bytes_per_step", figures.nvme_write_bytes_per_step},
          {"step_s", OrNull(figures.step_s)}};
}

std::string Loss(const std::optional<double>& loss) {
  return loss.has_value() ? LossText(*loss) : "none";
}

/// "12.3 %", or another text if there is nothing to divide by.
std::string Share(double part, double whole) {
  return whole > 0 ? fmt::format("{:.1f} %", 100 * part / whole) : "none";
}

}  // namespace

std::string ToJson(const RunSummary& summary) {
  Json json;
  json["parameters"] = summary.layout.model.parameters;
  json["model_state_bytes"] = summary.model_state().value;
  json["device_memory_bytes"] = summary.device_memory.value;
  json["host_memory_bytes"] = summary.host_memory.value;
  AddTotals(summary.loop, summary.cost, summary.layout.world_size, &json);
  json["aio_engine"] = summary.aio_engine;
  json["device"] = summary.device;
  json["device_name"] = summary.device_name;
  json["seed"] = summary.seed;
  json["first_loss"] = OrNull(summary.loop.first_loss);
  json["last_loss"] = OrNull(summary.loop.last_loss);
  json["last_step"] = summary.loop.last_step;
  json["committed_step"] = summary.loop.committed_step;
  json["interrupted"] = summary.loop.interrupted;
  json["planned"] = summary.plan ? FiguresJson(summary.plan->planned) : Json(nullptr);
  json["measured"] = summary.plan ? FiguresJson(summary.plan->measured) : Json(nullptr);
  json["version"] = PENSTOCK_VERSION;
  json["parameter_groups"] = Groups(summary);
  json["config"] = Json::parse(config::ConfigToJson(summary.config));
  return json.dump(2) + "\n";
}

std::string ToTable(const RunSummary& summary) {
  const LoopSummary& loop = summary.loop;
  const zero::EngineCounters& first = loop.begin.counters;
  const zero::EngineCounters& last = loop.end.counters;
  const double seconds = loop.seconds();
  const double io_wait = ToSeconds(loop.end.activity.io_wait - loop.begin.activity.io_wait);
  const double update = ToSeconds(loop.end.activity.update - loop.begin.activity.update);
  const double hidden =
      ToSeconds(loop.end.activity.update_hidden - loop.begin.activity.update_hidden);
  const double ratio = static_cast<double>(summary.model_state().value) /
                       static_cast<double>(std::max<uint64_t>(summary.device_memory.value, 1));
  std::string table;
  const auto line = [&table](const char* name, const std::string& value) {
    table += fmt::format("{:<26}{}\n", name, value);
  };
  line("steps", fmt::format("{} in {:.1f} s, the last commit is step {}", loop.steps, seconds,
                            loop.committed_step));
  line("loss", fmt::format("first {}, last {}", Loss(loop.first_loss), Loss(loop.last_loss)));
  line("tokens a second",
       seconds > 0 ? fmt::format("{:.0f}", static_cast<double>(loop.tokens) / seconds) : "none");
  line("model states", fmt::format("{} (16 bytes a parameter), {} times the device memory of {}",
                                   ToString(summary.model_state()),
                                   ratio < 0.1 ? "less than 0.1" : fmt::format("{:.1f}", ratio),
                                   ToString(summary.device_memory)));
  line("peak memory", fmt::format("device {}, host {} of {}", ToString(loop.end.device_peak),
                                  ToString(loop.end.host_peak), ToString(summary.host_memory)));
  line("nvme, in steps",
       fmt::format("{} read, {} written",
                   ToString(Bytes{last.nvme_read_bytes - first.nvme_read_bytes}),
                   ToString(Bytes{last.nvme_write_bytes - first.nvme_write_bytes})));
  line("nvme, beside them",
       fmt::format("{} at the start, {} in commits, {} read back of them",
                   ToString(Bytes{last.nvme_init_bytes}), ToString(Bytes{last.nvme_commit_bytes}),
                   ToString(Bytes{last.nvme_verify_bytes})));
  line("waiting for I/O", fmt::format("{} of the time", Share(io_wait, seconds)));
  line("updates under compute", fmt::format("{} of {:.2f} s", Share(hidden, update), update));
  return table;
}

}  // namespace penstock::train
