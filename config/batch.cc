// The batch triangle: train_batch_size = micro batch * gradient accumulation steps * world size.
#include "config/sections.h"

namespace penstock::config {
namespace {

constexpr char kTrain[] = "train_batch_size";
constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
constexpr char kAccumulation[] = "gradient_accumulation_steps";
constexpr int64_t kMaxBatch = (int64_t{1} << 31) - 1;

std::optional<int64_t> ReadBatchSize(JsonSection& top, const char* key, bool& is_auto) {
  const nlohmann::json* value = top.Find(key);
  is_auto = is_auto || (value != nullptr && *value == nlohmann::json("auto"));
  return top.OptionalInteger(key, {1, kMaxBatch});
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

}  // namespace penstock::config
