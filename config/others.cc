// DeepSpeed's sections that configure nothing here: what only tunes or logs is superseded, what
// would change numbers or behaviour must be off.
#include "config/sections.h"

namespace penstock::config {
namespace {

void ReadTopLevel(JsonSection& top) {
  top.Superseded(Instead::kMetrics, {{"memory_breakdown", kBool}});
  top.Superseded(Instead::kSummary, {{"dump_state", kBool}});
  top.Superseded(Instead::kExchange, {{"disable_allgather", kBool}});
  top.Superseded(Instead::kBudgets, {{"allgather_size", kInteger}});
  top.Superseded(Instead::kUpdate,
                 {{"graph_harvesting", kBool}, {"zero_force_ds_cpu_optimizer", kBool}});
  top.Superseded(Instead::kAnyOptimizer, {{"zero_allow_untested_optimizer", kBool}});
  top.Superseded(Instead::kModelConfig, {{"vocabulary_size", kInteger | kNull}});
  top.Superseded(Instead::kNotices, {{"log_level", kText | kNull}});
  top.Superseded(Instead::kEpoch, {{"dataloader_drop_last", kBool, "[false]"}});
  top.Off({{"managed_gradient_accumulation", kBool, "[true]"},
           {"sparse_gradients", kBool, "[false]"},
           {"prescale_gradients", kBool, "[false]"},
           {"gradient_predivide_factor", kNumber, "[1.0]"},
           {"gradient_allreduce_op", kText, "[\"mean\"]"},
           {"seq_parallel_communication_data_type", kText | kNull, "[\"fp32\", null]"},
           {"seq_parallel_comm_data_type", kText | kNull, "[\"fp32\", null]"},
           {"sequence_parallel_size", kInteger, "[1]"},
           {"use_data_before_expert_parallelism", kBool, "[false]"},
           {"sparse_attention", kObject | kNull, "[null]", "remove it"},
           {"weight_quantization", kObject | kNull, "[null]", "remove it"},
           {"tensor_parallel", kObject | kNull, "[null, {}]", "remove it"},
           {"expert_parallel", kObject | kNull, "[null, {}]", "remove it"}});
  top.DisabledTree("compression_training");
  top.DisabledTree("quantize_training");
}

void ReadPrecisionFeatures(JsonSection& top) {
  // DeepSpeed hands everything but "enabled" on to apex; these are the arguments apex knows.
  ReadFeature(top, "amp",
              {{"opt_level", kText | kNull},
               {"cast_model_type"},
               {"patch_torch_functions"},
               {"keep_batchnorm_fp32"},
               {"master_weights"},
               {"loss_scale"},
               {"cast_model_outputs"},
               {"num_losses"},
               {"verbosity"},
               {"min_loss_scale"},
               {"max_loss_scale"}},
              "set it to false; bf16.enabled is implemented");
  ReadFeature(top, "torch_autocast",
              {{"dtype", kText | kNull}, {"lower_precision_safe_modules", kList | kNull}},
              "set it to false; bf16.enabled is implemented");
}

void ReadTrainingFeatures(JsonSection& top) {
  ReadFeature(top, "elasticity",
              {{"max_train_batch_size", kInteger},
               {"micro_batch_sizes", kList},
               {"min_gpus", kInteger},
               {"max_gpus", kInteger},
               {"min_time", kNumber},
               {"prefer_larger_batch", kBool},
               {"ignore_non_elastic_batch_info", kBool},
               {"num_gpus_per_node", kInteger},
               {"model_parallel_size", kInteger},
               {"version", kNumber}});
  ReadFeature(top, "curriculum_learning",
              {{"curriculum_type", kText},
               {"min_difficulty", kNumber},
               {"max_difficulty", kNumber},
               {"schedule_type", kText},
               {"schedule_config", kObject}});
  ReadFeature(top, "data_efficiency",
              {{"seed", kInteger}, {"data_sampling", kObject}, {"data_routing", kObject}});
  ReadFeature(top, "progressive_layer_drop", {{"theta", kNumber}, {"gamma", kNumber}});
  ReadFeature(top, "eigenvalue",
              {{"verbose", kBool},
               {"max_iter", kInteger},
               {"tol", kNumber},
               {"stability", kNumber},
               {"gas_boundary_resolution", kInteger},
               {"layer_name", kText},
               {"layer_num", kInteger}});
  ReadFeature(top, "hybrid_engine",
              {{"max_out_tokens", kInteger},
               {"inference_tp_size", kInteger},
               {"release_inference_cache", kBool},
               {"pin_parameters", kBool},
               {"tp_gather_partition_size", kInteger},
               {"enable_cuda_graph", kBool}});
}

void ReadAutotuning(JsonSection& top) {
  ReadFeature(top, "autotuning",
              {{"fast", kBool},
               {"results_dir", kText | kNull},
               {"exps_dir", kText | kNull},
               {"overwrite", kBool},
               {"start_profile_step", kInteger},
               {"end_profile_step", kInteger},
               {"metric", kText},
               {"metric_path", kText | kNull},
               {"tuner_type", kText},
               {"tuner_early_stopping", kInteger},
               {"tuner_num_trials", kInteger},
               {"arg_mappings", kObject | kNull},
               {"max_train_batch_size", kInteger | kNull},
               {"min_train_batch_size", kInteger},
               {"max_train_micro_batch_size_per_gpu", kInteger},
               {"min_train_micro_batch_size_per_gpu", kInteger},
               {"num_tuning_micro_batch_sizes", kInteger},
               {"mp_size", kInteger},
               {"model_info", kObject | kNull},
               {"model_info_path", kText | kNull}},
              "set it to false; `penstock tune` measures the drive");
}

void ReadPipeline(JsonSection& top) {
  top.Object("pipeline", [](JsonSection& pipeline) {
    pipeline.Off({{"stages", kInteger | kText | kNull, "[\"auto\", 1, null]"}});
    pipeline.Inert({{"partition", kText},
                    {"seed_layers", kBool},
                    {"activation_checkpoint_interval", kInteger},
                    {"pipe_partitioned", kBool},
                    {"grad_partitioned", kBool}});
  });
}

void ReadCompile(JsonSection& top) {
  top.Object("compile", [](JsonSection& compile) {
    compile.Off({{"deepcompile", kBool, "[false]"},
                 {"offload_activation", kBool, "[false]"},
                 {"offload_opt_states", kBool, "[false]",
                  "set it to false; zero_optimization.offload_optimizer does this"},
                 {"offload_parameters", kBool, "[false]",
                  "set it to false; zero_optimization.offload_param does this"}});
    compile.Inert({{"free_activation", kBool},
                   {"free_activation_threshold", kInteger},
                   {"offload_activation_pin_memory", kBool},
                   {"double_buffer", kBool},
                   {"symmetric_memory", kBool},
                   {"debug_log", kBool},
                   {"sync_before_reduce", kBool},
                   {"sync_after_reduce", kBool},
                   {"sync_before_allgather", kBool},
                   {"sync_after_allgather", kBool},
                   {"keep_int_input_tensors", kBool},
                   {"keep_all_input_tensors", kBool},
                   {"passes", kList | kNull}});
  });
}

/// The home of checkpoints is the host if this or penstock.activation_home says so.
void ReadActivationCheckpointing(JsonSection& top, Config& config) {
  top.Object("activation_checkpointing", [&](JsonSection& section) {
    if (section.Bool("cpu_checkpointing", false)) config.activation_home = Tier::kHost;
    section.Superseded(Instead::kNoTensorParallel, {{"partition_activations", kBool, "[false]"}});
    section.Superseded(Instead::kRecomputation, {{"contiguous_memory_optimization", kBool},
                                                 {"number_checkpoints", kInteger | kNull},
                                                 {"synchronize_checkpoint_boundary", kBool}});
    section.Superseded(Instead::kMetrics, {{"profile", kBool}});
  });
}

void ReadCheckpoint(JsonSection& top) {
  top.Object("checkpoint", [](JsonSection& section) {
    section.Superseded(Instead::kCommits, {{"tag_validation", kText},
                                           {"checkpoint_serialization", kBool},
                                           {"writer", kObject | kNull}});
    section.Superseded(Instead::kPlacement, {{"load_universal", kBool, "[false]"}});
    section.Superseded(Instead::kStatePaths, {{"use_node_local_storage", kBool, "[false]"}});
    section.Object("parallel_write", [](JsonSection& parallel) {
      parallel.Superseded(Instead::kCommits, {{"pipeline_stage", kBool}});
    });
  });
  top.Off({{"datastates_ckpt", kObject | kNull, "[null, {}]",
            "remove it; commits are set with penstock.commit_every_seconds"}});
  ReadFeature(top, "nebula",
              {{"persistent_storage_path", kText | kNull},
               {"persistent_time_interval", kNumber},
               {"num_of_version_in_retention", kInteger},
               {"enable_nebula_load", kBool},
               {"load_path", kText | kNull},
               {"nebula_load_path", kText | kNull}},
              "set it to false; commits are set with penstock.commit_every_seconds");
}

void ReadProfilers(JsonSection& top) {
  top.Object("flops_profiler", [](JsonSection& section) {
    section.Superseded(Instead::kMetrics, {{"enabled", kBool},
                                           {"recompute_fwd_factor", kNumber},
                                           {"profile_step", kInteger},
                                           {"module_depth", kInteger},
                                           {"top_modules", kInteger},
                                           {"detailed", kBool},
                                           {"output_file", kText | kNull}});
  });
  top.Object("comms_logger", [](JsonSection& section) {
    section.Superseded(Instead::kMetrics, {{"enabled", kBool},
                                           {"verbose", kBool},
                                           {"prof_all", kBool},
                                           {"debug", kBool},
                                           {"prof_ops", kList}});
  });
  top.Object("timers", [](JsonSection& timers) {
    timers.Object("throughput", [](JsonSection& section) {
      section.Superseded(Instead::kMetrics, {{"enabled", kBool}, {"synchronized", kBool}});
    });
  });
}

}  // namespace

void ReadFeature(JsonSection& top, std::string_view name, JsonRules others, std::string_view hint) {
  top.Object(name, [&](JsonSection& section) {
    section.Off({{"enabled", kBool, "[false]", hint}});
    section.Inert(others);
  });
}

void ReadOthers(JsonSection& top, ConfigDraft& draft) {
  ReadTopLevel(top);
  ReadPrecisionFeatures(top);
  ReadTrainingFeatures(top);
  ReadAutotuning(top);
  ReadPipeline(top);
  ReadCompile(top);
  ReadActivationCheckpointing(top, draft.config);
  ReadCheckpoint(top);
  ReadProfilers(top);
}

}  // namespace penstock::config
