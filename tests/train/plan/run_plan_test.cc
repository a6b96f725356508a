#include "train/plan/run_plan.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tests/train/plan/planned_gpt2.h"
#include "train/plan/plan_report.h"

namespace penstock::train {
namespace {

/// A machine whose drive takes most of the time.
MachineSpeed SlowDrive() {
  return {.cores = 2,
          .layer_flops = 1e12,
          .head_flops = 1e12,
          .update_element = 1e-9,
          .norm_element = 1e-10,
          .drive = sim::DriveSpeed{.read_bytes_a_second = 1e8, .write_bytes_a_second = 1e8}};
}

MemoryLimits Plenty() { return {.device = 1_GiB, .host = 1_GiB, .drive = {}}; }

TEST(RunPlanTest, EveryShortageIsThereAtOnceWithItsSum) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan plan =
      PlanRun(gpt2.Training(), {.device = 1_MiB, .host = 1_MiB, .drive = 1_MiB}, {}).value();
  EXPECT_FALSE(plan.fits());
  ASSERT_EQ(plan.shortages.size(), 3U);
  EXPECT_EQ(plan.shortages[0].tier, "device");
  EXPECT_EQ(plan.shortages[0].needed, plan.device_peak()) << "the least that works is planned";
  EXPECT_EQ(plan.shortages[1].tier, "host");
  EXPECT_EQ(plan.shortages[1].needed, plan.host_peak());
  EXPECT_EQ(plan.shortages[2].tier, "drive");
  EXPECT_EQ(plan.shortages[2].needed, plan.state_files);
}

TEST(RunPlanTest, TheStepIsPlannedDespiteAnyShortage) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const auto planned = [&](const MemoryLimits& limits) {
    return PlanRun(gpt2.Training(), limits, SlowDrive()).value();
  };
  const RunPlan fits = planned(Plenty());
  const RunPlan least = planned({.device = 1_B, .host = 1_B, .drive = {}});
  const MemoryLimits exact = {
      .device = least.device_peak(), .host = least.host_peak(), .drive = {}};
  ASSERT_FALSE(least.fits());
  ASSERT_TRUE(least.step && least.step->step_s);
  EXPECT_EQ(*least.step->step_s, *planned(exact).step->step_s) << "that of what just fits";
  MemoryLimits no_drive = Plenty();
  no_drive.drive = 1_MiB;
  const RunPlan short_of_drive = planned(no_drive);
  ASSERT_FALSE(short_of_drive.fits());
  EXPECT_EQ(*short_of_drive.step->step_s, *fits.step->step_s) << "memory is as it was given";
  EXPECT_EQ(short_of_drive.host_peak(), fits.host_peak());
}

TEST(RunPlanTest, TheLeastThatWorksFitsExactly) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan least =
      PlanRun(gpt2.Training(), {.device = 1_B, .host = 1_B, .drive = {}}, {}).value();
  const MemoryLimits exact = {
      .device = least.device_peak(), .host = least.host_peak(), .drive = least.state_files};
  const RunPlan plan = PlanRun(gpt2.Training(), exact, {}).value();
  EXPECT_TRUE(plan.fits());
  EXPECT_EQ(plan.device_peak(), *exact.device);
  EXPECT_EQ(plan.host_peak(), *exact.host);
}

TEST(RunPlanTest, MoreMemoryIsSpentAndNeverMoreThanThereIs) {
  PlannedGpt2 gpt2(kAllOnNvme);
  Bytes before;
  for (const Bytes host : {8_MiB, 12_MiB, 16_MiB, 64_MiB}) {
    const RunPlan plan =
        PlanRun(gpt2.Training(), {.device = 1_GiB, .host = host, .drive = {}}, {}).value();
    ASSERT_TRUE(plan.fits()) << host.value;
    EXPECT_LE(plan.host_peak(), host);
    EXPECT_GE(plan.host_peak(), before);
    before = plan.host_peak();
  }
}

TEST(RunPlanTest, BytesOfAStepOnNvmeAreThoseOfTheFormat) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan plan =
      PlanRun(gpt2.Training(), {.device = 1_GiB, .host = 8_MiB, .drive = {}}, SlowDrive()).value();
  const auto parameters = static_cast<double>(plan.cost.parameters);
  // Weight and record are written, and read for the update; weights again for the device. Tiles
  // are padded to blocks.
  EXPECT_NEAR(static_cast<double>(plan.step->write_bytes) / parameters, 12, 0.4);
  EXPECT_GT(static_cast<double>(plan.step->read_bytes) / parameters, 10);
  EXPECT_LE(static_cast<double>(plan.step->read_bytes) / parameters, 14.5);
}

TEST(RunPlanTest, WhatBoundsAStepIsTheResourceThatNeedsLongest) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const auto bound = [&](const MachineSpeed& speed) {
    const RunPlan plan = PlanRun(gpt2.Training(), Plenty(), speed).value();
    EXPECT_GE(*plan.step->step_s, 0.99 * *plan.step->floor_s);
    return plan.step->bound_by;
  };
  EXPECT_EQ(bound(SlowDrive()), "drive");
  MachineSpeed slow_compute = SlowDrive();
  slow_compute.layer_flops = slow_compute.head_flops = 1e8;
  EXPECT_EQ(bound(slow_compute), "compute");
  MachineSpeed slow_updates = SlowDrive();
  slow_updates.update_element = 1e-5;
  EXPECT_EQ(bound(slow_updates), "optimizer");
}

TEST(RunPlanTest, TheStepOfATrainingThatDoesNotFitIsSaidToBeElsewhere) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan plan =
      PlanRun(gpt2.Training(), {.device = 1_MiB, .host = 1_MiB, .drive = {}}, SlowDrive()).value();
  const PlannedSetup setup{.model = "m", .device = "cpu", .speeds = "", .config = gpt2.config()};
  const nlohmann::ordered_json json = ToJson(setup, plan);
  for (const char* key : {"nvme_read_bytes_per_step", "nvme_write_bytes_per_step", "step_s"}) {
    EXPECT_GT(json.at(key), 0) << key;
  }
  EXPECT_GT(json.at("device_bytes"), 1 << 20) << "the least that works";
  EXPECT_NE(ToText(setup, plan).find("on a machine with what is missing here"), std::string::npos);
}

TEST(RunPlanTest, ExchangesTakeTimeOnceTheirLinkIsKnown) {
  PlannedGpt2 gpt2(kAllOnNvme);
  PlannedTraining training = gpt2.Training();
  const comm::World two = {.size = 2, .local_size = 2};
  const PlannedTraining of_two = {.spec = training.spec,
                                  .model = training.model,
                                  .shape = training.shape,
                                  .config = training.config,
                                  .kind = training.kind,
                                  .world = two};
  MachineSpeed speed = SlowDrive();
  const StepEstimate without = *PlanRun(of_two, Plenty(), speed).value().step;
  EXPECT_GT(without.link_bytes, 0U);
  EXPECT_FALSE(without.floors.link);
  speed.link = sim::LinkSpeed{.bytes_a_second = 1e6};
  const StepEstimate with = *PlanRun(of_two, Plenty(), speed).value().step;
  EXPECT_DOUBLE_EQ(*with.floors.link, static_cast<double>(with.link_bytes) / 1e6);
  EXPECT_EQ(with.bound_by, "link");
  EXPECT_GT(*with.step_s, *without.step_s);
  EXPECT_GE(*with.step_s, *with.floors.link);
}

TEST(RunPlanTest, RanksThatHaveEverythingOnTheDeviceExchangeToo) {
  PlannedGpt2 gpt2(R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3,
                       "bf16": {"enabled": true}})");
  MachineSpeed speed = SlowDrive();
  const auto step = [&](const config::Config& config, uint32_t ranks) {
    PlannedTraining training = gpt2.Training(config);
    training.world = {.size = ranks, .local_size = ranks};
    return *PlanRun(training, Plenty(), speed).value().step;
  };
  const config::Config config = gpt2.config();
  EXPECT_EQ(step(config, 1).link_bytes, 0U);
  EXPECT_FALSE(step(config, 2).floors.link);
  speed.link = sim::LinkSpeed{.bytes_a_second = 1e6};
  EXPECT_EQ(step(config, 1).floors.link, 0.0);
  const StepEstimate two = step(config, 2);
  // Each rank sends the other its half of the weights, and half of each micro-batch's gradient.
  const auto parameters =
      static_cast<double>(CostOf(gpt2.Training().model, gpt2.Training().spec, 1).parameters);
  EXPECT_NEAR(static_cast<double>(two.link_bytes) / parameters, 0.5 * (2 + 3 * 4), 0.4);
  EXPECT_DOUBLE_EQ(*two.floors.link, static_cast<double>(two.link_bytes) / 1e6);
  EXPECT_EQ(two.bound_by, "link");
  EXPECT_GE(*two.step_s, *two.floors.link);
  config::Config sent_once = config;
  sent_once.gradient_order = config::GradientOrder::kRank;
  sent_once.communication = DType::kBFloat16;
  EXPECT_NEAR(static_cast<double>(step(sent_once, 2).link_bytes) / parameters, 0.5 * (2 + 2), 0.15);
}

TEST(RunPlanTest, HowLongAGpuUpdatesItsStatesIsNotKnown) {
  PlannedGpt2 gpt2(R"({"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}})");
  MachineSpeed speed = SlowDrive();
  const auto step = [&](device::Kind kind) {
    PlannedTraining training = gpt2.Training();
    training.kind = kind;
    return *PlanRun(training, Plenty(), speed).value().step;
  };
  speed.update_element = 1;
  EXPECT_FALSE(step(device::Kind::kCuda).floors.update);
  EXPECT_EQ(step(device::Kind::kCuda).bound_by, "compute");
  EXPECT_GT(step(device::Kind::kCpu).floors.update, 1.0);
  EXPECT_EQ(step(device::Kind::kCpu).bound_by, "optimizer");
}

TEST(RunPlanTest, CommitsLengthenStepsByWhatNothingHides) {
  PlannedGpt2 gpt2(R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true},
                       "penstock": {"commit_every_seconds": 0}})");
  const auto plan = [&](int64_t steps_apart, double write_speed) {
    config::Config config = gpt2.config();
    config.commit_every_steps = steps_apart;
    MachineSpeed speed = SlowDrive();
    speed.drive->write_bytes_a_second = write_speed;
    return PlanRun(gpt2.Training(config), Plenty(), speed).value();
  };
  const RunPlan none = plan(0, 1e8);
  EXPECT_EQ(none.commit.wait_s, 0) << "but for the last one";
  const auto bytes = static_cast<double>(none.commit.bytes.value);
  EXPECT_GT(bytes, 12.0 * static_cast<double>(none.cost.parameters)) << "all states are elsewhere";
  const RunPlan each = plan(1, 1e8);
  EXPECT_DOUBLE_EQ(*each.commit.seconds, bytes / 1e8);
  const double waited = bytes / 1e8 - *none.step->floors.compute;
  ASSERT_GT(waited, 0);
  EXPECT_DOUBLE_EQ(*each.step->step_s, *none.step->step_s + waited) << "what compute does not hide";
  const RunPlan tenth = plan(10, 1e8);
  EXPECT_DOUBLE_EQ(*tenth.step->step_s, *none.step->step_s + waited / 10);
}

TEST(RunPlanTest, VerificationReadsEveryStateOnceACommitWhereverItLives) {
  for (const bool on_nvme : {true, false}) {
    PlannedGpt2 gpt2(on_nvme
                         ? kAllOnNvme
                         : R"({"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": true}})");
    const auto plan = [&](config::VerifyCommits verify, int64_t steps_apart) {
      config::Config config = gpt2.config();
      config.commit_every_seconds = 0;
      config.commit_every_steps = steps_apart;
      config.verify_commits = verify;
      config.tier_split = false;
      const PlannedTraining training = gpt2.Training(config);
      MemoryLimits limits = Plenty();
      // No more than a few tiles stay in memory from step to step.
      if (on_nvme) limits.host = SumMemoryNeeds(training)->host_minimum;
      return PlanRun(training, limits, SlowDrive()).value();
    };
    const RunPlan off = plan(config::VerifyCommits::kOff, 1);
    EXPECT_EQ(off.commit.verified, 0_B);
    EXPECT_EQ(off.commit.verify_s, 0);
    const RunPlan each = plan(config::VerifyCommits::kOn, 1);
    const double read = static_cast<double>(each.commit.verified.value);
    EXPECT_GE(read, 12.0 * static_cast<double>(each.cost.parameters));
    EXPECT_EQ(each.commit.verified_a_step(), read);
    const double seconds = read / SlowDrive().drive->read_bytes_a_second;
    EXPECT_DOUBLE_EQ(*each.commit.verify_s, seconds);
    EXPECT_GT(*each.step->step_s, *off.step->step_s) << "this drive is slow";
    EXPECT_LE(*each.step->step_s, *off.step->step_s + seconds * 1.0001);
    // Of a step's bytes, where commits are 100 steps apart.
    const RunPlan seldom = plan(config::VerifyCommits::kAuto, 100);
    EXPECT_EQ(seldom.commit.verification.on, on_nvme);
    if (!on_nvme) continue;
    const auto bytes = static_cast<double>(seldom.step->read_bytes + seldom.step->write_bytes);
    EXPECT_GT(*seldom.commit.verified_a_step(), 0);
    EXPECT_EQ(seldom.commit.verified.value, seldom.step->write_bytes) << "a step writes all of it";
    EXPECT_LE(*seldom.commit.verified_a_step(), 0.0051 * bytes) << "and reads nearly all";
  }
}

TEST(RunPlanTest, ACommitWritesTilesThatHostMemoryKeeps) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const auto plan = [&](bool split, Bytes host) {
    config::Config config = gpt2.config();
    config.tier_split = split;
    const MemoryLimits limits = {.device = 1_GiB, .host = host, .drive = {}};
    return PlanRun(gpt2.Training(config), limits, SlowDrive()).value();
  };
  const RunPlan none = plan(false, 1_GiB);
  EXPECT_EQ(none.commit.bytes, 0_B);
  for (const Bytes host : {8_MiB, 16_MiB, 20_MiB, 1_GiB}) {
    const RunPlan some = plan(true, host);
    EXPECT_EQ(some.step->write_bytes + some.commit.bytes.value, none.step->write_bytes)
        << "each state is written by the step or by the commit; host " << ToString(host);
  }
  EXPECT_EQ(plan(true, 1_GiB).step->write_bytes, 0U);
}

TEST(RunPlanTest, WhatIsNotKnownIsNotSaid) {
  PlannedGpt2 gpt2(kAllOnNvme);
  MachineSpeed no_drive = SlowDrive();
  no_drive.drive.reset();
  MachineSpeed no_compute = SlowDrive();
  no_compute.layer_flops.reset();
  for (const MachineSpeed& speed : {no_drive, no_compute, MachineSpeed()}) {
    const RunPlan plan = PlanRun(gpt2.Training(), Plenty(), speed).value();
    ASSERT_TRUE(plan.step);
    EXPECT_FALSE(plan.step->step_s);
    EXPECT_GT(plan.step->write_bytes, 0U) << "bytes need no speed";
    const PlannedSetup setup{.model = "m", .device = "cpu", .speeds = "", .config = gpt2.config()};
    const nlohmann::ordered_json json = ToJson(setup, plan);
    for (const char* key : {"step_s", "floor_s", "bound_by", "tokens_per_s", "tflops"}) {
      EXPECT_TRUE(json.at(key).is_null()) << key;
    }
  }
}

TEST(RunPlanTest, JsonHasEveryFieldOfItsContract) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan plan = PlanRun(gpt2.Training(), Plenty(), SlowDrive()).value();
  const PlannedSetup setup{.model = "m", .device = "cpu", .speeds = "", .config = gpt2.config()};
  const nlohmann::ordered_json json = ToJson(setup, plan);
  for (const char* key :
       {"parameters", "model_state_bytes", "fits", "shortages", "device_bytes", "host_bytes",
        "nvme_file_bytes", "nvme_read_bytes_per_step", "nvme_write_bytes_per_step", "floor_s",
        "step_s", "bound_by", "tokens_per_s", "tflops"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  Bytes classes;
  for (const auto& of_class : json.at("device_classes")) {
    classes += Bytes{of_class.get<uint64_t>()};
  }
  EXPECT_EQ(classes, plan.device_peak()) << "the classes are all there is";
}

TEST(RunPlanTest, RecomputationIsCountedInLayersAlone) {
  PlannedGpt2 gpt2(kAllOnNvme);
  const RunPlan plan = PlanRun(gpt2.Training(), Plenty(), SlowDrive()).value();
  // 8 N + 16 l h T for layers, 6 V h for the head; biases and norms of layers count with them.
  const double layers = 4 * (12.0 * 128 * 128 + 13 * 128);
  const double tokens = 4 * 32;
  const double operations = tokens * (8 * layers + 16.0 * 4 * 128 * 32 + 6.0 * 256 * 128);
  EXPECT_NEAR(*plan.step->floors.compute, operations / 1e12, 1e-3 * operations / 1e12);
}

}  // namespace
}  // namespace penstock::train
