#include "train/loop/alike.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "config/to_json.h"

namespace penstock::train {
namespace {

/// Beginnings of keys that each rank may choose for itself.
constexpr std::array<std::string_view, 8> kOwn = {"/aio",
                                                  "/arithmetic",
                                                  "/penstock/aio",
                                                  "/penstock/device_memory",
                                                  "/penstock/host_memory",
                                                  "/penstock/optimizer_threads",
                                                  "/zero_optimization/offload_optimizer/nvme_path",
                                                  "/zero_optimization/offload_param/nvme_path"};

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
  values["version"] = PENSTOCK_VERSION;
  return {values.begin(), values.end()};
}

}  // namespace penstock::train
