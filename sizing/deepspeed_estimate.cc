#include "sizing/deepspeed_estimate.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"

namespace penstock::train {
namespace {

__extension__ using WideProduct = unsigned __int128;

/// Python's int(): truncates. kMaxCount beyond 64 bits.
uint64_t Truncated(double value) {
  return value < 0x1p64 ? static_cast<uint64_t>(value) : kMaxCount;
}

/// a · b of Python's whole numbers, which are exact, where the product meets a float.
double AsFloat(uint64_t a, uint64_t b) {
  return static_cast<double>(static_cast<WideProduct>(a) * b);
}

/// int(factor * count / over)
uint64_t Share(uint64_t factor, uint64_t count, uint64_t over) {
  return Truncated(AsFloat(factor, count) / static_cast<double>(over));
}

/// What every row is made of.
class Estimator {
 public:
  explicit Estimator(const EstimateInput& input)
      : in_(input),
        gpus_(SaturatingMultiply(input.gpus_per_node, input.nodes)),
        node_share_(1 / static_cast<double>(input.nodes)) {}

  EstimateRow Stage3(bool offload_param, bool offload_optimizer, bool zero_init) const {
    const uint64_t kept = offload_param ? 0 : offload_optimizer ? 2 : 18;
    return {.stage = 3,
            .offload_param = offload_param,
            .offload_optimizer = offload_optimizer,
            .zero_init = zero_init,
            .cpu = Bytes{offload_optimizer ? Offloaded(offload_param ? 18 : 16, zero_init)
                                           : Kept(zero_init)},
            .gpu = Bytes{in_.largest_module} * 4 + Bytes{Share(kept, in_.parameters, gpus_)}};
  }

  EstimateRow Stage2(bool offload_optimizer) const {
    const uint64_t p = in_.parameters;
    EstimateRow row{.stage = 2, .offload_optimizer = offload_optimizer, .cpu = {}, .gpu = {}};
    if (offload_optimizer) {
      row.cpu = Bytes{Buffered(AsFloat(p, std::max<uint64_t>(4 * gpus_, 16)))};
      row.gpu = Bytes{p} * 2;
    } else {
      row.cpu = Bytes{Kept(false)};
      row.gpu = Bytes{p} * 4 + Bytes{Share(16, p, gpus_)};
      row.gpu_since_2024 = Bytes{p} * 2 + Bytes{Share(18, p, gpus_)};
    }
    return row;
  }

 private:
  uint64_t Buffered(double bytes) const { return Truncated(bytes * in_.buffer_factor); }

  /// CPU memory where `factor` bytes a parameter are offloaded. A model that is not built in
  /// shards is there in fp32 once for each GPU of a node, before it is cut up.
  uint64_t Offloaded(uint64_t factor, bool zero_init) const {
    if (zero_init) return Buffered(AsFloat(in_.parameters, factor) * node_share_);
    const double share = static_cast<double>(factor) * node_share_;
    const auto copies = static_cast<double>(4 * in_.gpus_per_node);
    return Buffered(static_cast<double>(in_.parameters) * std::max(copies, share));
  }

  /// CPU memory where nothing is offloaded.
  uint64_t Kept(bool zero_init) const {
    const uint64_t count = zero_init ? in_.largest_module : in_.parameters;
    return Buffered(AsFloat(count, 4 * in_.gpus_per_node));
  }

  const EstimateInput& in_;
  uint64_t gpus_;
  double node_share_;
};

const char* Device(bool offloaded) { return offloaded ? "cpu" : "none"; }

double InGib(Bytes bytes) { return static_cast<double>(bytes.value) / 0x1p30; }

std::string RowText(const EstimateRow& row) {
  std::string options = fmt::format("offload_optimizer={:4}", Device(row.offload_optimizer));
  if (row.stage == 3) {
    options = fmt::format("offload_param={:4}, {}, zero_init={}", Device(row.offload_param),
                          options, *row.zero_init ? 1 : 0);
  }
  return fmt::format("  ZeRO-{} | {:7.2f}GB | {:6.2f}GB | {}\n", row.stage, InGib(row.cpu),
                     InGib(row.gpu), options);
}

}  // namespace

std::vector<EstimateRow> DeepSpeedEstimate(const EstimateInput& input) {
  PENSTOCK_CHECK(input.gpus_per_node > 0 && input.nodes > 0);
  const Estimator estimate(input);
  std::vector<EstimateRow> rows;
  for (const auto& [param, optimizer] : {std::pair(true, true), {false, true}, {false, false}}) {
    for (const bool zero_init : {true, false}) {
      rows.push_back(estimate.Stage3(param, optimizer, zero_init));
    }
  }
  for (const bool optimizer : {true, false}) rows.push_back(estimate.Stage2(optimizer));
  return rows;
}

std::string EstimateText(const EstimateInput& input) {
  std::string text = fmt::format(
      "DeepSpeed's estimate of memory for weights, optimizer states and gradients, and nothing "
      "else:\n{} parameters, {} of them in the largest module; {} node{}, {} GPU{} in each\n"
      "  stage  |  per node |  per GPU | options (GB: 2^30 bytes)\n",
      input.parameters, input.largest_module, input.nodes, input.nodes == 1 ? "" : "s",
      input.gpus_per_node, input.gpus_per_node == 1 ? "" : "s");
  for (const EstimateRow& row : DeepSpeedEstimate(input)) {
    text += RowText(row);
    if (row.gpu_since_2024.value_or(row.gpu) == row.gpu) continue;
    text += fmt::format("           DeepSpeed since 2024 says {:.2f}GB per GPU for this row\n",
                        InGib(*row.gpu_since_2024));
  }
  return text;
}

nlohmann::json EstimateJson(const EstimateInput& input) {
  nlohmann::json rows = nlohmann::json::array();
  for (const EstimateRow& row : DeepSpeedEstimate(input)) {
    nlohmann::json object = {{"stage", row.stage},
                             {"offload_param", Device(row.offload_param)},
                             {"offload_optimizer", Device(row.offload_optimizer)},
                             {"zero_init", nullptr},
                             {"cpu_bytes", row.cpu.value},
                             {"gpu_bytes", row.gpu.value}};
    if (row.zero_init) object["zero_init"] = *row.zero_init;
    if (row.gpu_since_2024) object["gpu_bytes_since_2024"] = row.gpu_since_2024->value;
    rows.push_back(std::move(object));
  }
  return {{"parameters", input.parameters},
          {"largest_module", input.largest_module},
          {"gpus_per_node", input.gpus_per_node},
          {"nodes", input.nodes},
          {"rows", std::move(rows)}};
}

}  // namespace penstock::train
