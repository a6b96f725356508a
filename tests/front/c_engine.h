// An engine of the C interface as tests use it: a small model, computed by arithmetic on its
// weights, in any placement.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "front/penstock.h"
#include "tests/temp_folder.h"

namespace penstock::front {

using nlohmann::json;

/// Where states and weights of a training live.
struct Home {
  std::string name;
  std::string optimizer;   ///< "none", "cpu", "nvme"
  std::string parameters;  ///< the same
  bool tier_split = false;
};
inline const Home kHomes[] = {{"device", "none", "none"},
                              {"host", "cpu", "cpu"},
                              {"optimizer on nvme", "nvme", "none"},
                              {"nvme", "nvme", "nvme"},
                              {"split", "nvme", "nvme", true}};

inline json ConfigOf(const Home& home, const std::string& folder, uint64_t micro_batches = 1) {
  json zero{{"stage", 3}};
  const auto offload = [&](const char* key, const std::string& device) {
    if (device == "none") return;
    zero[key]["device"] = device;
    if (device == "nvme") zero[key]["nvme_path"] = folder;
  };
  offload("offload_optimizer", home.optimizer);
  offload("offload_param", home.parameters);
  return {{"train_micro_batch_size_per_gpu", 1},
          {"gradient_accumulation_steps", micro_batches},
          {"gradient_clipping", 0},
          {"optimizer", {{"type", "AdamW"}, {"params", {{"lr", 1e-3}}}}},
          {"zero_optimization", zero},
          {"penstock", {{"tile_elements", 4096}, {"tier_split", home.tier_split}}}};
}

/// Three repeated units and one that is not, in two trained groups and a frozen one.
inline json ModelOf(const std::string& dtype) {
  json units = json::array();
  for (int i = 0; i < 4; ++i) {
    const std::string name = "u" + std::to_string(i);
    units.push_back({{"name", name},
                     {"repeated", i > 0},
                     {"tensors",
                      {{{"name", name + ".w"}, {"shape", {100, 91}}, {"group", 0}},
                       {{"name", name + ".b"}, {"shape", {13}}, {"group", 1}},
                       {{"name", name + ".f"}, {"shape", {50}}, {"group", 2}}}}});
  }
  return {{"units", units},
          {"groups",
           {{{"name", "decay"}, {"dtype", dtype}},
            {{"name", "none"}, {"dtype", "fp32"}},
            {{"name", "frozen"}, {"dtype", dtype}, {"frozen", true}}}}};
}
inline constexpr uint32_t kUnits = 4;
inline constexpr uint32_t kTensors = 3;

class CEngine {
 public:
  CEngine() = default;
  CEngine(const json& config, const json& model, const json& options) {
    code = penstock_create(config.dump().c_str(), model.dump().c_str(), options.dump().c_str(),
                           &handle);
    if (code != PENSTOCK_OK) error = penstock_error();
  }
  CEngine(penstock_run* run, const json& config, const json& model, const json& options) {
    code = penstock_create_in(run, config.dump().c_str(), model.dump().c_str(),
                              options.dump().c_str(), &handle);
    if (code != PENSTOCK_OK) error = penstock_error();
  }
  CEngine(CEngine&& other) noexcept : handle(std::exchange(other.handle, nullptr)) {}
  CEngine& operator=(CEngine&&) = delete;
  ~CEngine() { penstock_close(handle); }

  json Describe() const { return Text(penstock_describe); }
  json Counters() const { return Text(penstock_counters); }
  json Text(int (*function)(penstock_engine*, char**)) const {
    char* text = nullptr;
    EXPECT_EQ(function(handle, &text), PENSTOCK_OK) << penstock_error();
    json value = json::parse(text == nullptr ? "null" : text);
    penstock_free(text);
    return value;
  }

  penstock_engine* handle = nullptr;
  int code = PENSTOCK_OK;
  std::string error;
};

}  // namespace penstock::front
