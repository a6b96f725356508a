#include "config/to_json.h"

#include "config/sections.h"
#include "nlohmann/json.hpp"

namespace penstock::config {
namespace {

using Json = nlohmann::ordered_json;

const char* DeviceName(Tier tier) {
  switch (tier) {
    case Tier::kDevice:
      return "none";
    case Tier::kHost:
      return "cpu";
    case Tier::kNvme:
      return "nvme";
  }
  return "none";
}

const char* EngineName(aio::EngineKind kind) {
  switch (kind) {
    case aio::EngineKind::kAuto:
      return "auto";
    case aio::EngineKind::kUring:
      return "io_uring";
    case aio::EngineKind::kLibaio:
      return "libaio";
    case aio::EngineKind::kThreads:
      return "threads";
  }
  return "auto";
}

Json HyperJson(const kernels::AdamHyperparameters& adam) {
  return {{"betas", {adam.beta1, adam.beta2}},
          {"eps", adam.eps},
          {"bias_correction", adam.bias_correction},
          {"adam_w_mode", adam.adam_w_mode}};
}

Json HyperJson(const kernels::LionHyperparameters& lion) {
  return {{"betas", {lion.beta1, lion.beta2}}};
}

Json HyperJson(const kernels::AdagradHyperparameters& adagrad) {
  return {{"lr_decay", adagrad.lr_decay}, {"eps", adagrad.eps}};
}

Json HyperJson(const kernels::LambHyperparameters& lamb) {
  return {{"betas", {lamb.beta1, lamb.beta2}},
          {"eps", lamb.eps},
          {"bias_correction", lamb.bias_correction},
          {"max_coeff", lamb.max_coeff},
          {"min_coeff", lamb.min_coeff}};
}

Json OptimizerJson(const OptimizerConfig& optimizer) {
  Json params = {{"lr", optimizer.lr}};
  params.update(std::visit([](const auto& hyper) { return HyperJson(hyper); }, optimizer.hyper));
  params["weight_decay"] = kernels::WeightDecay(optimizer.hyper);
  if (std::holds_alternative<kernels::AdagradHyperparameters>(optimizer.hyper)) {
    params["initial_accumulator_value"] = optimizer.initial_accumulator_value;
  }
  return {{"type", optimizer.type}, {"params", params}};
}

template <typename T>
Json OrNull(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

Json WarmupJson(const SchedulerConfig& scheduler) {
  Json params = Json::object();
  if (scheduler.type == SchedulerType::kWarmupCosineLr) {
    params["warmup_min_ratio"] = scheduler.warmup_min_ratio;
    params["cos_min_ratio"] = scheduler.cos_min_ratio;
  } else {
    params["warmup_min_lr"] = scheduler.warmup_min_lr;
    params["warmup_max_lr"] = OrNull(scheduler.warmup_max_lr);
  }
  params["warmup_num_steps"] = scheduler.warmup_num_steps;
  params["warmup_type"] = scheduler.warmup_type == WarmupType::kLinear ? "linear" : "log";
  if (scheduler.type != SchedulerType::kWarmupLr) {
    params["total_num_steps"] =
        scheduler.total_is_last_step ? Json("auto") : Json(scheduler.total_num_steps);
  }
  return params;
}

Json OneCycleJson(const OneCycle& cycle) {
  return {{"cycle_min_lr", cycle.min_lr},
          {"cycle_max_lr", cycle.max_lr},
          {"decay_lr_rate", cycle.decay_lr_rate},
          {"cycle_first_step_size", cycle.first_step_size},
          {"cycle_second_step_size", OrNull(cycle.second_step_size)},
          {"cycle_first_stair_count", cycle.first_stair_count},
          {"cycle_second_stair_count", OrNull(cycle.second_stair_count)},
          {"decay_step_size", cycle.decay_step_size},
          {"cycle_momentum", cycle.momentum},
          {"cycle_min_mom", cycle.min_mom},
          {"cycle_max_mom", cycle.max_mom},
          {"decay_mom_rate", cycle.decay_mom_rate}};
}

Json RangeTestJson(const LrRangeTest& test) {
  return {{"lr_range_test_min_lr", test.min_lr},
          {"lr_range_test_step_size", test.step_size},
          {"lr_range_test_step_rate", test.step_rate},
          {"lr_range_test_staircase", test.staircase}};
}

Json SchedulerParamsJson(const SchedulerConfig& scheduler) {
  if (scheduler.type == SchedulerType::kOneCycle) return OneCycleJson(scheduler.one_cycle);
  if (scheduler.type == SchedulerType::kLrRangeTest) return RangeTestJson(scheduler.range_test);
  return WarmupJson(scheduler);
}

Json SchedulerJson(const SchedulerConfig& scheduler) {
  if (scheduler.type == SchedulerType::kNone) return nullptr;
  return {{"type", SchedulerName(scheduler.type)}, {"params", SchedulerParamsJson(scheduler)}};
}

Json OffloadJson(Tier home, const std::vector<std::string>& nvme_paths) {
  Json offload = {{"device", DeviceName(home)}};
  if (home == Tier::kNvme) offload["nvme_path"] = PathsJson(nvme_paths);
  return offload;
}

Json ZeroJson(const Config& config) {
  return {{"stage", config.zero_stage},
          {"offload_param", OffloadJson(config.parameter_home, config.nvme_paths)},
          {"offload_optimizer", OffloadJson(config.optimizer_home, config.nvme_paths)},
          {"sub_group_size", config.tile_elements}};
}

Json AioJson(const aio::EngineOptions& options) {
  return {{"block_size", options.block_size.value},
          {"queue_depth", options.queue_depth},
          {"thread_count", options.thread_count},
          {"single_submit", options.single_submit},
          {"overlap_events", options.overlap_events}};
}

Json RegistrationJson(aio::Registration registration) {
  if (registration == aio::Registration::kAuto) return "auto";
  return registration == aio::Registration::kOn;
}

Json VerifyCommitsJson(VerifyCommits verify) {
  if (verify == VerifyCommits::kAuto) return "auto";
  return verify == VerifyCommits::kOn;
}

Json EngineJson(const aio::EngineOptions& options) {
  Json engine = {{"engine", EngineName(options.kind)},
                 {"sqpoll", options.sqpoll},
                 {"iopoll", options.iopoll},
                 {"registered_buffers", RegistrationJson(options.registered_buffers)}};
  engine["simulate"] = nullptr;
  if (options.simulate) {
    engine["simulate"] = {{"read_gbps", options.simulate->read_gbps},
                          {"write_gbps", options.simulate->write_gbps},
                          {"shared", options.simulate->shared},
                          {"latency_us", options.simulate->latency_us}};
  }
  return engine;
}

Json Fp16Json(const std::optional<LossScaling>& scaling) {
  const LossScaling values = scaling.value_or(LossScaling());
  return {{"enabled", scaling.has_value()},
          {"loss_scale", values.loss_scale},
          {"initial_scale_power", values.initial_scale_power},
          {"loss_scale_window", values.loss_scale_window},
          {"hysteresis", values.hysteresis},
          {"consecutive_hysteresis", values.consecutive_hysteresis},
          {"min_loss_scale", values.min_loss_scale}};
}

Json CsvMonitorJson(const std::optional<CsvMonitor>& monitor) {
  const CsvMonitor values = monitor.value_or(CsvMonitor());
  return {{"enabled", monitor.has_value()},
          {"output_path", values.output_path},
          {"job_name", values.job_name}};
}

const char* NameOf(AttentionChoice attention) {
  switch (attention) {
    case AttentionChoice::kOwn:
      return "own";
    case AttentionChoice::kCudnn:
      return "cudnn";
    case AttentionChoice::kAuto:
      break;
  }
  return "auto";
}

Json PenstockJson(const Config& config) {
  const auto size = [](const std::optional<Bytes>& bytes) {
    return bytes ? Json(bytes->value) : Json(nullptr);
  };
  Json rampup = nullptr;
  if (config.rampup) {
    rampup = {config.rampup->start, config.rampup->increment, config.rampup->samples};
  }
  Json drive = nullptr;
  if (config.drive) {
    drive = {{"read_gbps", config.drive->read_gbps},
             {"write_gbps", config.drive->write_gbps},
             {"shared", config.drive->shared}};
  }
  return {{"device_memory", size(config.device_memory)},
          {"host_memory", size(config.host_memory)},
          {"tile_elements", config.tile_elements},
          {"tier_split", config.tier_split},
          {"overlap", config.overlap},
          {"schedule", config.schedule == MicroBatchOrder::kVertical ? "vertical" : "horizontal"},
          {"activation_home", config.activation_home == Tier::kHost ? "host" : "device"},
          {"optimizer_threads", config.optimizer_threads},
          {"compute_threads", config.compute_threads},
          {"commit_every_steps", config.commit_every_steps},
          {"commit_every_seconds", config.commit_every_seconds},
          {"snapshot_every_steps", config.snapshot_every_steps},
          {"keep_snapshots", config.keep_snapshots},
          {"durable", config.durable},
          {"verify_checksums", config.verify_checksums},
          {"verify_commits", VerifyCommitsJson(config.verify_commits)},
          {"gradient_order", config.gradient_order == GradientOrder::kRank ? "rank" : "global"},
          {"attention", NameOf(config.attention)},
          {"rampup_batch_size", rampup},
          {"heartbeat_seconds", config.heartbeat_seconds},
          {"comm_timeout_seconds", config.comm_timeout_seconds},
          {"drive", drive},
          {"device_tflops", config.device_tflops ? Json(*config.device_tflops) : Json(nullptr)},
          {"aio", EngineJson(config.aio)}};
}

}  // namespace

std::string ConfigToJson(const Config& config) {
  const bool bf16 = config.dtype == kernels::DType::kBFloat16;
  Json root = {{"train_batch_size", config.train_batch_size},
               {"train_micro_batch_size_per_gpu", config.micro_batch_size},
               {"gradient_accumulation_steps", config.gradient_accumulation_steps},
               {"gradient_clipping", config.gradient_clipping},
               {"communication_data_type", ToString(config.communication)},
               {"steps_per_print", config.steps_per_print},
               {"wall_clock_breakdown", config.wall_clock_breakdown},
               {"csv_monitor", CsvMonitorJson(config.csv_monitor)},
               {"fp16", Fp16Json(config.loss_scaling)},
               {"bf16",
                {{"enabled", bf16},
                 {"check_grad_overflow", bf16 && config.check_grad_overflow},
                 {"bf16_optimizer_states", config.optimizer.moments == kernels::DType::kBFloat16}}},
               {"optimizer", OptimizerJson(config.optimizer)},
               {"scheduler", SchedulerJson(config.scheduler)},
               {"zero_optimization", ZeroJson(config)},
               {"aio", AioJson(config.aio)},
               {"penstock", PenstockJson(config)}};
  return root.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace penstock::config
