// The batch triangle: train_batch_size = micro batch * gradient accumulation steps * world size;
// and how the batch grows to it.
#include <algorithm>

#include "config/sections.h"

namespace penstock::config {
namespace {

constexpr char kRampup[] = "penstock.rampup_batch_size";
constexpr int64_t kMaxBatch = (int64_t{1} << 31) - 1;
constexpr IntegerRange kBatches = {1, kMaxBatch};

/// What still says "auto" is derived from the other two.
std::optional<int64_t> ReadBatchSize(JsonSection& top, const char* key, ConfigDraft& draft) {
  const nlohmann::json* value = top.Find(key);
  if (value == nullptr || *value != nlohmann::json("auto")) {
    return top.OptionalInteger(key, kBatches);
  }
  draft.derived_batch_sizes.emplace_back(key);
  return std::nullopt;
}

void ListDerived(JsonReader& reader, const ConfigDraft& draft) {
  const Config& config = draft.config;
  for (const std::string& key : draft.derived_batch_sizes) {
    const uint64_t value = key == kTrainBatchSize   ? config.train_batch_size
                           : key == kMicroBatchSize ? config.micro_batch_size
                                                    : config.gradient_accumulation_steps;
    const bool alone = key == kAccumulationSteps && !draft.train_batch_size;
    reader.AddAutomatic({.path = key,
                         .value = fmt::format("{}", value),
                         .source = alone ? "transformers' default" : "from the other batch sizes"});
  }
}

/// The number of ranks, and that of micro-batches, with which a batch would fit; empty if none.
std::string WhatFits(int64_t train, int64_t micro, int64_t accumulation, int64_t world) {
  std::string text;
  int64_t unit = 0;
  if (micro <= 0 || accumulation <= 0) return text;
  if (!__builtin_mul_overflow(micro, accumulation, &unit) && train % unit == 0) {
    const int64_t ranks = train / unit;
    text =
        fmt::format("fits {0} rank{1}: penstock launch --ranks {0}", ranks, ranks == 1 ? "" : "s");
  }
  if (!__builtin_mul_overflow(micro, world, &unit) && train % unit == 0) {
    text += fmt::format("{}{} {} here", text.empty() ? "fits " : ", or ", kAccumulationSteps,
                        train / unit);
  }
  return text;
}

}  // namespace

void ReadBatch(JsonSection& top, ConfigDraft& draft) {
  draft.train_batch_size = ReadBatchSize(top, kTrainBatchSize, draft);
  draft.micro_batch_size = ReadBatchSize(top, kMicroBatchSize, draft);
  draft.gradient_accumulation_steps = ReadBatchSize(top, kAccumulationSteps, draft);
  draft.config.gradient_clipping = top.Number("gradient_clipping", 1.0);
  draft.config.steps_per_print = top.OptionalInteger("steps_per_print").value_or(0);
}

void CheckBatch(JsonReader& reader, ConfigDraft& draft) {
  std::optional<int64_t> train = draft.train_batch_size;
  std::optional<int64_t> micro = draft.micro_batch_size;
  std::optional<int64_t> accumulation = draft.gradient_accumulation_steps;
  const auto world = static_cast<int64_t>(draft.world_size);
  if (!train && !micro) {
    reader.Fail(kMicroBatchSize, fmt::format("missing; give it or {}; a command line may have "
                                             "--per-device-train-batch-size instead",
                                             kTrainBatchSize));
    return;
  }
  // DeepSpeed's rules, with its integer divisions: what does not divide shows in the product.
  if (!micro) {
    micro = *train / world / accumulation.value_or(1);
  }
  if (!accumulation) accumulation = train ? *train / *micro / world : 1;
  int64_t product = *micro * *accumulation;  // below 2^62
  if (__builtin_mul_overflow(product, world, &product)) {
    reader.Fail(kTrainBatchSize,
                "the product of the batch sizes and the world size is beyond 2^63");
    return;
  }
  if (!train) train = product;
  if (*train != product || product == 0) {
    const std::string fits = WhatFits(*train, *micro, *accumulation, world);
    reader.Fail(
        kTrainBatchSize,
        fmt::format(
            "{} is not {} {} * {} {} * world size {} = {}; {}", *train, kMicroBatchSize, *micro,
            kAccumulationSteps, *accumulation, world, product,
            fits.empty() ? "change one of them, or remove one and it is derived" : "it " + fits));
    return;
  }
  draft.config.train_batch_size = static_cast<uint64_t>(*train);
  draft.config.micro_batch_size = static_cast<uint64_t>(*micro);
  draft.config.gradient_accumulation_steps = static_cast<uint64_t>(*accumulation);
  ListDerived(reader, draft);
}

std::optional<RampupConfig> ReadRampup(JsonSection& penstock) {
  const char* key = "rampup_batch_size";
  const nlohmann::json* value = penstock.Find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  const auto within = [](const nlohmann::json& number, IntegerRange range) {
    const std::optional<int64_t> integer = AsInteger(number);
    return integer && *integer >= range.low && *integer <= range.high;
  };
  if (!value->is_array() || value->size() != 3 || !within(value->at(0), kBatches) ||
      !within(value->at(1), kBatches) || !within(value->at(2), {})) {
    penstock.Fail(key, fmt::format("expected null or [start, increment, samples], three integers "
                                   "of at least 1, 1 and 0, got {}",
                                   Show(*value)));
    return std::nullopt;
  }
  const auto number = [&](size_t i) { return static_cast<uint64_t>(*AsInteger(value->at(i))); };
  return RampupConfig{.start = number(0), .increment = number(1), .samples = number(2)};
}

void CheckRampup(JsonReader& reader, const ConfigDraft& draft) {
  const Config& config = draft.config;
  if (!config.rampup || !reader.status().ok()) return;
  const auto [start, increment, samples] = *config.rampup;
  const uint64_t end = config.train_batch_size;
  if (start > end) {
    reader.Fail(kRampup, fmt::format("it starts with {} rows, and {} is {}: a batch can only grow; "
                                     "start with that many rows or fewer",
                                     start, kTrainBatchSize, end));
    return;
  }
  if ((end - start) % increment != 0) {
    reader.Fail(kRampup, fmt::format("from {} rows to {} {} are {} rows, which are no multiple of "
                                     "the increment {}; change one of the three",
                                     start, kTrainBatchSize, end, end - start, increment));
    return;
  }
  // If the first two are multiples, all are. The last is one, by the batch triangle.
  const uint64_t unit = config.micro_batch_size * draft.world_size;
  for (const uint64_t batch : {start, std::min(start + increment, end)}) {
    if (batch % unit == 0) continue;
    reader.Fail(kRampup, fmt::format("its batch of {} rows is no multiple of {} {} * world size {} "
                                     "= {}; change start or increment, or take fewer ranks or a "
                                     "smaller micro-batch",
                                     batch, kMicroBatchSize, config.micro_batch_size,
                                     draft.world_size, unit));
    return;
  }
}

}  // namespace penstock::config
