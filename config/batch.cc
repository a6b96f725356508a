// The batch triangle: train_batch_size = micro batch * gradient accumulation steps * world size;
// and how the batch grows to it.
#include <algorithm>

#include "config/sections.h"

namespace penstock::config {
namespace {

constexpr char kTrain[] = "train_batch_size";
constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
constexpr char kAccumulation[] = "gradient_accumulation_steps";
constexpr char kRampup[] = "penstock.rampup_batch_size";
constexpr int64_t kMaxBatch = (int64_t{1} << 31) - 1;
constexpr IntegerRange kBatches = {1, kMaxBatch};

std::optional<int64_t> ReadBatchSize(JsonSection& top, const char* key, bool& is_auto) {
  const nlohmann::json* value = top.Find(key);
  is_auto = is_auto || (value != nullptr && *value == nlohmann::json("auto"));
  return top.OptionalInteger(key, kBatches);
}

}  // namespace

void ReadBatch(JsonSection& top, ConfigDraft& draft) {
  bool accumulation_is_auto = false;
  draft.train_batch_size = ReadBatchSize(top, kTrain, draft.batch_size_is_auto);
  draft.micro_batch_size = ReadBatchSize(top, kMicro, draft.batch_size_is_auto);
  draft.gradient_accumulation_steps = ReadBatchSize(top, kAccumulation, accumulation_is_auto);
  draft.config.gradient_clipping = top.Number("gradient_clipping", 1.0);
  draft.config.steps_per_print = top.OptionalInteger("steps_per_print").value_or(0);
}

void CheckBatch(JsonReader& reader, ConfigDraft& draft) {
  std::optional<int64_t> train = draft.train_batch_size;
  std::optional<int64_t> micro = draft.micro_batch_size;
  std::optional<int64_t> accumulation = draft.gradient_accumulation_steps;
  const auto world = static_cast<int64_t>(draft.world_size);
  if (!train && !micro) {
    if (!draft.batch_size_is_auto) {
      reader.Fail(kMicro, fmt::format("missing; give it or {}", kTrain));
      return;
    }
    micro = 1;
  }
  // DeepSpeed's rules, with its integer divisions: what does not divide shows in the product.
  if (!micro) {
    micro = *train / world / accumulation.value_or(1);
  }
  if (!accumulation) accumulation = train ? *train / *micro / world : 1;
  int64_t product = *micro * *accumulation;  // below 2^62
  if (__builtin_mul_overflow(product, world, &product)) {
    reader.Fail(kTrain, "the product of the batch sizes and the world size is beyond 2^63");
    return;
  }
  if (!train) train = product;
  if (*train != product || product == 0) {
    reader.Fail(kTrain,
                fmt::format("{} is not {} {} * {} {} * world size {} = {}; change one of "
                            "them, or remove one and it is derived",
                            *train, kMicro, *micro, kAccumulation, *accumulation, world, product));
    return;
  }
  draft.config.train_batch_size = static_cast<uint64_t>(*train);
  draft.config.micro_batch_size = static_cast<uint64_t>(*micro);
  draft.config.gradient_accumulation_steps = static_cast<uint64_t>(*accumulation);
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
                                     start, kTrain, end));
    return;
  }
  if ((end - start) % increment != 0) {
    reader.Fail(kRampup, fmt::format("from {} rows to {} {} are {} rows, which are no multiple of "
                                     "the increment {}; change one of the three",
                                     start, kTrain, end, end - start, increment));
    return;
  }
  // If the first two are, all are. The last is, by the batch triangle.
  const uint64_t unit = config.micro_batch_size * draft.world_size;
  for (const uint64_t batch : {start, std::min(start + increment, end)}) {
    if (batch % unit == 0) continue;
    reader.Fail(kRampup,
                fmt::format("its batch of {} rows is no multiple of {} {} * world size {} "
                            "= {}; change start or increment, or take fewer ranks or a "
                            "smaller micro-batch",
                            batch, kMicro, config.micro_batch_size, draft.world_size, unit));
    return;
  }
}

}  // namespace penstock::config
