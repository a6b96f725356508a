// Judged topologies as text and as JSON.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "sizing/topology_table.h"

namespace penstock::train {
namespace {

using nlohmann::json;

constexpr const char* kHeader =
    "   DP   TP   PP  MBS    GBS   memory     s/step  TFLOPs  hardware  samples/s\n";

bool HeadsUnknown(const JudgedTopology& judged) {
  return judged.row.shape.has_value() && judged.row.shape->heads == 0;
}

/// "608: DP 4, TP 8, PP 12, MBS 2"
std::string NameOf(const JudgedTopology& judged) {
  const Topology& t = judged.row.topology;
  return fmt::format("{}DP {}, TP {}, PP {}, MBS {}",
                     judged.row.label.empty() ? "" : judged.row.label + ": ", t.data, t.tensor,
                     t.pipeline, t.micro_batch);
}

/// With a star where it was measured.
std::string Number(std::optional<double> number, bool measured) {
  if (!number) return "- ";
  return fmt::format("{:.2f}{}", *number, measured ? "*" : " ");
}

std::string MemoryCell(const JudgedTopology& judged) {
  std::optional<Bytes> bytes = judged.row.memory;
  if (!bytes && judged.memory) bytes = judged.memory->total();
  if (!bytes) return "- ";
  return fmt::format("{:.0f}GB{}", static_cast<double>(bytes->value) / 0x1p30,
                     judged.row.memory ? "*" : " ");
}

/// Two digits, or a dash where a speed is not known.
std::string Speed(double tflops) { return tflops > 0 ? fmt::format("{:.2f}", tflops) : "-"; }

std::string PossibleRow(const JudgedTopology& judged) {
  const Topology& t = judged.row.topology;
  std::string text =
      fmt::format("{:5}{:5}{:5}{:5}{:7}{:>9}{:>11}{:>8}{:>10}{:11.3f}", t.data, t.tensor,
                  t.pipeline, t.micro_batch, t.global_batch, MemoryCell(judged),
                  Number(judged.seconds, judged.row.seconds.has_value()), Speed(judged.tflops),
                  Speed(judged.hardware_tflops), judged.samples_per_second);
  if (!judged.row.label.empty()) text += "  " + judged.row.label;
  text += "\n";
  for (const std::string& warning : judged.warnings) text += "        " + warning + "\n";
  return text;
}

std::string RefusedRow(const JudgedTopology& judged) {
  std::vector<std::string_view> texts;
  for (const TopologyReason& reason : judged.reasons) texts.push_back(reason.text);
  return fmt::format("  {}: {}\n", NameOf(judged), fmt::join(texts, "; "));
}

/// The others: each with its reasons where it came from a file, else how many have which reason.
std::string RefusedText(std::span<const JudgedTopology> refused) {
  std::string text = fmt::format("Not possible: {}\n", refused.size());
  std::map<std::string_view, std::vector<const JudgedTopology*>> by_rule;
  for (const JudgedTopology& judged : refused) {
    if (!judged.row.label.empty()) text += RefusedRow(judged);
    if (judged.row.label.empty()) by_rule[judged.reasons.front().rule].push_back(&judged);
  }
  for (const auto& [rule, rows] : by_rule) {
    text += fmt::format("  {} by {}, as {}: {}\n", rows.size(), rule, NameOf(*rows.front()),
                        rows.front()->reasons.front().text);
  }
  return text;
}

json KnownNumber(double number) { return number > 0 ? json(number) : json(nullptr); }

json ReasonTexts(const JudgedTopology& judged) {
  json texts = json::array();
  for (const TopologyReason& reason : judged.reasons) texts.push_back(reason.text);
  return texts;
}

}  // namespace

std::string TopologiesText(std::span<const JudgedTopology> judged, size_t most) {
  const auto first = std::ranges::find_if_not(judged, &JudgedTopology::possible);
  const auto possible = static_cast<size_t>(first - judged.begin());
  std::string text = fmt::format(
      "{} of {} topologies are possible; the least time a step first (* measured, GB: 2^30 bytes, "
      "TFLOPs of a GPU without and with recomputation)\n",
      possible, judged.size());
  if (possible > 0) text += kHeader;
  for (size_t i = 0; i < std::min(possible, most); ++i) text += PossibleRow(judged[i]);
  if (possible > most) text += fmt::format("  and {} slower ones\n", possible - most);
  if (possible < judged.size()) text += RefusedText(judged.subspan(possible));
  if (std::ranges::any_of(judged, HeadsUnknown)) {
    text += "Heads are not known, so whether TP divides them was not looked at.\n";
  }
  return text;
}

json TopologiesJson(std::span<const JudgedTopology> judged) {
  json list = json::array();
  for (const JudgedTopology& one : judged) {
    const Topology& t = one.row.topology;
    json object = {{"label", one.row.label},
                   {"gpus", t.gpus},
                   {"dp", t.data},
                   {"tp", t.tensor},
                   {"pp", t.pipeline},
                   {"mbs", t.micro_batch},
                   {"gbs", t.global_batch},
                   {"hidden", nullptr},
                   {"layers", nullptr},
                   {"possible", one.possible()},
                   {"reasons", ReasonTexts(one)},
                   {"warnings", one.warnings},
                   {"step_s", KnownNumber(one.seconds.value_or(0))},
                   {"measured", one.row.seconds.has_value()},
                   {"memory_bytes", nullptr},
                   {"estimated_memory_bytes", nullptr},
                   {"tflops", KnownNumber(one.tflops)},
                   {"hardware_tflops", KnownNumber(one.hardware_tflops)},
                   {"earlier_tflops", KnownNumber(one.earlier_tflops)},
                   {"samples_per_s", KnownNumber(one.samples_per_second)},
                   {"wave_efficiency", KnownNumber(one.wave_efficiency)}};
    if (one.row.shape) {
      object["hidden"] = one.row.shape->width;
      object["layers"] = one.row.shape->layers;
    }
    if (one.row.memory) object["memory_bytes"] = one.row.memory->value;
    if (one.memory) object["estimated_memory_bytes"] = one.memory->total().value;
    list.push_back(std::move(object));
  }
  return list;
}

}  // namespace penstock::train
