#include "train/trainer/alike.h"

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

/// Prefixes of keys that each rank may choose for itself.
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

/// Elements in the checksum, at each end of a tensor.
constexpr uint64_t kRecognised = 64;

/// "/optimizer/params/lr" as "optimizer.params.lr".
std::string KeyName(std::string pointer) {
  pointer.erase(0, 1);
  std::ranges::replace(pointer, '/', '.');
  return pointer;
}

/// "rank 2 (host b)"
std::string RankText(const comm::Job& job, size_t rank) {
  return fmt::format("rank {} (host {})", rank, job.hosts()[rank]);
}

using NamedValue = NamedValues::value_type;

/// The first value in which two ranks differ; null: one of them has no such value.
Error Differ(const std::string& rank, const NamedValue* value, const std::string& first_rank,
             const NamedValue* first_value) {
  if (value == nullptr || first_value == nullptr || value->first != first_value->first) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} has other keys than {}: {} is on one of them only; start all ranks alike",
                     rank, first_rank, (value != nullptr ? value : first_value)->first);
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "{} differs between ranks: {} on {}, {} on {}; start all ranks alike",
                   value->first, value->second, rank, first_value->second, first_rank);
}

/// Returns the error for texts of the ranks that differ.
Status FindDifference(const comm::Job& job, const std::vector<std::string>& texts) {
  const auto first_rank = nlohmann::json::parse(texts.front()).get<NamedValues>();
  for (size_t rank = 1; rank < texts.size(); ++rank) {
    const auto other = nlohmann::json::parse(texts[rank]).get<NamedValues>();
    const auto [one, two] = std::ranges::mismatch(other, first_rank);
    if (one == other.end() && two == first_rank.end()) continue;
    return Differ(RankText(job, rank), one == other.end() ? nullptr : &*one, RankText(job, 0),
                  two == first_rank.end() ? nullptr : &*two);
  }
  return {};
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

Status CheckAlike(comm::Job& job, const NamedValues& mine) {
  const std::string text = nlohmann::json(mine).dump();
  const uint64_t hash = offload::Checksum(std::as_bytes(std::span(text)));
  PENSTOCK_ASSIGN(const std::vector<std::string> hashes, job.Gather(fmt::format("{:016x}", hash)));
  const auto is_first = [&](const std::string& other) { return other == hashes.front(); };
  if (std::ranges::all_of(hashes, is_first)) return job.Agree(Status());
  // All ranks see the same hashes and the same texts, and so find the same difference.
  PENSTOCK_ASSIGN(const std::vector<std::string> texts, job.Gather(text));
  return job.Agree(FindDifference(job, texts));
}

}  // namespace penstock::train
