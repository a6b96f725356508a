#include "config/auto.h"

#include <fmt/format.h>

#include <utility>

#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr const char* kTrainer = "transformers' default";
constexpr const char* kResumed = "kept from the run";
constexpr const char* kRate = "optimizer.params.lr";
constexpr const char* kBetas = "optimizer.params.betas";
constexpr const char* kScheduler = "scheduler.type";
constexpr const char* kWarmupMaxRate = "scheduler.params.warmup_max_lr";
constexpr const char* kWarmupSteps = "scheduler.params.warmup_num_steps";
constexpr const char* kFp16 = "fp16.enabled";
/// The Trainer's default of per_device_train_batch_size.
constexpr int64_t kTrainerMicroBatch = 8;

bool IsAuto(const json* value) { return value != nullptr && *value == json("auto"); }
bool IsNumber(const json* value) { return value != nullptr && value->is_number(); }
/// Whether a flag may give the key its value.
bool IsOpen(const json* value) { return value == nullptr || value->is_null() || IsAuto(value); }

/// The value at a path of keys, or null.
const json* At(const json& root, const std::string& path) {
  const json* at = &root;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const auto found = at->is_object() ? at->find(path.substr(begin, end - begin)) : at->end();
    if (!at->is_object() || found == at->end()) return nullptr;
    at = &*found;
    begin = end + 1;
  }
  return at;
}

/// The paths of all keys at and below `value` that say "auto".
void FindAuto(const json& value, const std::string& path, std::vector<std::string>& found) {
  if (IsAuto(&value)) found.push_back(path);
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.items()) FindAuto(member, JoinJsonPath(path, key), found);
}

bool AreBetas(const json& value) {
  return value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number();
}

/// Gives keys of a document their values.
class Resolver {
 public:
  Resolver(JsonDocument& document, const AutoSources& sources)
      : document_(document), flags_(sources.flags), resumed_(json::object()) {
    json resumed = json::parse(sources.resumed, nullptr, /*allow_exceptions=*/false);
    if (resumed.is_object()) resumed_ = std::move(resumed);
    const json& root = document.root();
    if (root.contains("bfloat16") && !root.contains("bf16")) bf16_ = "bfloat16.enabled";
  }

  Result<AutoOutcome> Run() {
    PENSTOCK_TRY(TakeFlags());
    PENSTOCK_TRY(TakeRates());
    PENSTOCK_TRY(TakeBetas());
    PENSTOCK_TRY(TakeWarmup());
    KeepResumed();
    OpenBatch();
    TakeTrainers();
    return std::move(outcome_);
  }

 private:
  const json* Find(const std::string& path) const { return At(document_.root(), path); }

  const json* Resumed(const std::string& path) const {
    return At(resumed_, path == bf16_ ? "bf16.enabled" : path);
  }

  void Give(const std::string& path, const json& value, const std::string& source,
            const std::string& where) {
    const bool given = IsAuto(Find(path));
    if (!document_.Set(path, value, where)) return;
    outcome_.keys.push_back(
        {.path = path, .given = given, .value = value.dump(), .source = source});
  }

  /// Reports that the configuration has another value; a value of a wrong type is left to the
  /// reader.
  Status Compare(const std::string& flag, const std::string& path, const json& now,
                 const json& value) const {
    if (now == value || (!now.is_number() && !now.is_boolean())) return {};
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}{}: {} differs from {}{}; make them equal, leave the flag out, or write "
                     "\"auto\" there",
                     document_.Where(path), path, Show(now), flag,
                     value.is_boolean() ? "" : " " + Show(value));
  }

  Status TakeFlag(const std::string& flag, const std::string& path, const json& value) {
    const json* now = Find(path);
    if (!IsOpen(now)) return Compare(flag, path, *now, value);
    Give(path, value, flag, flag);
    return {};
  }

  template <typename T>
  Status TakeFlag(const std::string& flag, const std::string& path, const std::optional<T>& value) {
    return value ? TakeFlag(flag, path, json(*value)) : Status();
  }

  Status TakeFlags() {
    PENSTOCK_TRY(TakeFlag("--adam-epsilon", "optimizer.params.eps", flags_.adam_epsilon));
    PENSTOCK_TRY(TakeFlag("--weight-decay", "optimizer.params.weight_decay", flags_.weight_decay));
    PENSTOCK_TRY(TakeFlag("--max-grad-norm", "gradient_clipping", flags_.max_grad_norm));
    PENSTOCK_TRY(TakeFlag("--per-device-train-batch-size", kMicroBatchSize,
                          flags_.per_device_train_batch_size));
    PENSTOCK_TRY(TakeFlag("--gradient-accumulation-steps", kAccumulationSteps,
                          flags_.gradient_accumulation_steps));
    if (flags_.fp16) PENSTOCK_TRY(TakeFlag("--fp16", kFp16, json(true)));
    if (flags_.bf16) PENSTOCK_TRY(TakeFlag("--bf16", bf16_, json(true)));
    return {};
  }

  /// WarmupLR's rate after the warm-up is the optimizer's unless it says another one; that of
  /// WarmupDecayLR has a value of its own.
  Status TakeRates() {
    const char* flag = "--learning-rate";
    PENSTOCK_TRY(TakeFlag(flag, kRate, flags_.learning_rate));
    const json* type = Find(kScheduler);
    const bool own = type != nullptr && *type == json("WarmupDecayLR");
    if (!own && IsOpen(Find(kWarmupMaxRate))) return {};
    return TakeFlag(flag, kWarmupMaxRate, flags_.learning_rate);
  }

  Status TakeBetas() {
    const std::optional<double> betas[] = {flags_.adam_beta1, flags_.adam_beta2};
    if (!betas[0] && !betas[1]) return {};
    const json* now = Find(kBetas);
    const json* before = IsAuto(now) ? Resumed(kBetas) : nullptr;
    const bool open = IsOpen(now);
    if (!open && !AreBetas(*now)) return {};
    const bool kept = before != nullptr && AreBetas(*before);
    json values = !open ? *now : kept ? *before : json{0.9, 0.999};
    std::string source;
    for (size_t i : {0, 1}) {
      if (!betas[i]) continue;
      const std::string flag = fmt::format("--adam-beta{}", i + 1);
      if (!open) PENSTOCK_TRY(Compare(flag, kBetas, values[i], *betas[i]));
      values[i] = *betas[i];
      source += source.empty() ? flag : ", " + flag;
    }
    if (!open) return {};
    const std::string where = source;
    if (!betas[0] || !betas[1]) source += fmt::format(", else {}", kept ? kResumed : kTrainer);
    Give(kBetas, values, source, where);
    return {};
  }

  Status TakeWarmup() {
    if (!flags_.warmup_steps && !flags_.warmup_ratio) return {};
    const char* flag = flags_.warmup_steps ? "--warmup-steps" : "--warmup-ratio";
    const json* type = Find(kScheduler);
    if (type == nullptr || !type->is_string() ||
        !type->get_ref<const std::string&>().starts_with("Warmup")) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}: {} is {}, and that has no such warm-up; set it to \"WarmupLR\", "
                       "\"WarmupDecayLR\" or \"WarmupCosineLR\", or leave the flag out",
                       flag, kScheduler, type == nullptr ? "not given" : Show(*type));
    }
    if (flags_.warmup_steps) return TakeFlag(flag, kWarmupSteps, json(*flags_.warmup_steps));
    return TakeRatio(flag, json(*flags_.warmup_ratio));
  }

  Status TakeRatio(const char* flag, const json& ratio) {
    const json* now = Find(kWarmupSteps);
    if (!IsOpen(now)) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "{}{}: {} is given, and {} {} as well; leave the flag out, or write "
                       "\"auto\" there",
                       document_.Where(kWarmupSteps), kWarmupSteps, Show(*now), flag, Show(ratio));
    }
    if (const json* before = Resumed(kWarmupSteps)) {
      Give(kWarmupSteps, *before, fmt::format("{}; {} is for its beginning", kResumed, flag),
           kResumed);
      return {};
    }
    outcome_.ratio_for_auto = IsAuto(now);
    if (document_.Set(kWarmupSteps, 0, flag)) outcome_.warmup_ratio = flags_.warmup_ratio;
    return {};
  }

  void KeepResumed() {
    if (resumed_.empty()) return;
    std::vector<std::string> open;
    FindAuto(document_.root(), "", open);
    for (const std::string& path : open) {
      if (path == kTrainBatchSize || path == kMicroBatchSize || path == kAccumulationSteps)
        continue;
      const json* before = Resumed(path);
      // A run without it says nothing about fp16.
      const json off = false;
      if (before == nullptr && path == kFp16) before = &off;
      if (before != nullptr && !before->is_null()) Give(path, *before, kResumed, kResumed);
    }
  }

  /// Gives the batch sizes what the reader cannot derive. A resumed run keeps its global batch: the
  /// number of ranks may have changed, and with it gradient_accumulation_steps.
  void OpenBatch() {
    if (!IsAuto(Find(kTrainBatchSize)) && !IsAuto(Find(kMicroBatchSize)) &&
        !IsAuto(Find(kAccumulationSteps)))
      return;
    const bool has_train = IsNumber(Find(kTrainBatchSize));
    const json* train = Resumed(kTrainBatchSize);
    const json* micro = Resumed(kMicroBatchSize);
    if (train != nullptr && micro != nullptr) {
      if (IsAuto(Find(kMicroBatchSize)) || (!IsNumber(Find(kMicroBatchSize)) && !has_train)) {
        Give(kMicroBatchSize, *micro, kResumed, kResumed);
      }
      if (!has_train && !IsNumber(Find(kAccumulationSteps)))
        Give(kTrainBatchSize, *train, kResumed, kResumed);
    } else if (!has_train && !IsNumber(Find(kMicroBatchSize))) {
      Give(kMicroBatchSize, kTrainerMicroBatch, kTrainer, "");
    }
  }

  void TakeTrainers() {
    const std::pair<std::string, json> defaults[] = {{kRate, 5e-5},
                                                     {kBetas, {0.9, 0.999}},
                                                     {"optimizer.params.eps", 1e-8},
                                                     {"optimizer.params.weight_decay", 0.0},
                                                     {"scheduler.params.warmup_min_lr", 0},
                                                     {kWarmupSteps, 0},
                                                     {"gradient_clipping", 1.0},
                                                     {kFp16, false},
                                                     {bf16_, false}};
    for (const auto& [path, value] : defaults) {
      if (!IsAuto(Find(path))) continue;
      Give(path, value, kTrainer, "");
      if (path == kFp16 || path == bf16_) outcome_.precision_is_trainers = true;
    }
  }

  JsonDocument& document_;
  const AutoFlags& flags_;
  json resumed_;
  std::string bf16_ = "bf16.enabled";
  AutoOutcome outcome_;
};

}  // namespace

std::string ToText(const AutomaticKey& key) {
  return fmt::format("{}: {} -> {} ({})", key.path, key.given ? "auto" : "not given", key.value,
                     key.source);
}

Result<AutoOutcome> ResolveAuto(JsonDocument& document, const AutoSources& sources) {
  return Resolver(document, sources).Run();
}

}  // namespace penstock::config
