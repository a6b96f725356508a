#include "train/loop/alike.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "config/to_json.h"
#include "offload/checksum.h"

namespace penstock::train {
namespace {

/// Beginnings of keys that each rank may choose for itself.
constexpr auto kOwn = std::to_array<std::string_view>({
    "/aio",
    "/arithmetic",
    "/penstock/aio/engine",
    "/penstock/aio/iopoll",
    "/penstock/aio/registered_buffers",
    "/penstock/aio/sqpoll",
    "/penstock/device_memory",
    "/penstock/host_memory",
    "/penstock/optimizer_threads",
    "/zero_optimization/offload_optimizer/nvme_path",
    "/zero_optimization/offload_param/nvme_path",
});

/// Elements that are looked at, at each end of a tensor.
constexpr uint64_t kRecognised = 64;

/// "/optimizer/params/lr" as "optimizer.params.lr".
std::string KeyName(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

}  // namespace

NamedValues ValuesToBeAlike(const std::string& identity, const config::Config& config,
                            uint64_t last_step) {
  std::map<std::string, std::string> values;
  for (const std::string& text : {identity, config::ConfigToJson(config)}) {
    const nlohmann::json flat = nlohmann::json::parse(text).flatten();
    for (const auto& [pointer, value] : flat.items()) {
      const bool own = std::ranges::any_of(
          kOwn, [&pointer = pointer](std::string_view key) { return pointer.starts_with(key); });
      if (!own) values[KeyName(pointer)] = value.dump();
    }
  }
  values["--steps"] = std::to_string(last_step);
  return {values.begin(), values.end()};
}

Result<std::string> RecogniseWeights(const zero::ModelSpec& model,
                                     const zero::TensorSource& weights) {
  std::vector<float> values;
  for (size_t module = 0; module < model.modules.size(); ++module) {
    const std::vector<zero::TensorSpec>& tensors = model.modules[module].tensors;
    for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
      const uint64_t elements = tensors[tensor].elements();
      const uint64_t count = std::min(elements, kRecognised);
      for (const uint64_t begin : {uint64_t{0}, elements - count}) {
        values.resize(values.size() + count);
        PENSTOCK_TRY(weights(zero::ModuleId{static_cast<uint32_t>(module)}, tensor, begin,
                             std::span(values).last(count)));
      }
    }
  }
  return fmt::format("{:016x}", offload::Checksum(std::as_bytes(std::span(values))));
}

}  // namespace penstock::train
