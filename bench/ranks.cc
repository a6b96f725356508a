// How far is a step of several ranks from the time of its slowest resource?
//
//   ranks_bench [--ranks 2,4] [options]
//   ranks_bench --world 8,64,256,1024 [options]
// Ranks are threads of this process. Their kernels sleep instead of computing, so that cores do not
// bound them; their links and drives are simulated. A link of share s passes a step's bytes in 1/s
// of the time that the step computes, a drive likewise. Layers have two slots on the device, or a
// slot each, which saves the gathers of backward.
//
// Floors, in seconds of one rank:
//   floor    the slowest of compute, link and drive, each with nothing beside it
//   phases   the same for compute and link, forward and backward each by themselves: gradients
//            cannot be exchanged before they are computed
// Prints medians of the steps of all rounds, min and max of step / floor, and the prediction of
// sim/ over the median. All cases take turns in a round. Caches do not matter: only elapsed time is
// measured.
//
// With --world nothing is measured: sim/ predicts steps of this many ranks, each with the device,
// drive and link of the options. Ranks of one node have a faster link than those of several.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "aio/probe.h"
#include "bench/outcome.h"
#include "bench/rank_case.h"
#include "bench/rank_prediction.h"
#include "bench/rank_steps.h"

namespace penstock::bench {
namespace {

struct Arguments {
  RankModel model;
  std::vector<uint32_t> ranks = {2, 4};
  std::vector<double> links = {0.5, 1, 4};
  double drive = 4;
  std::string folder = "/dev/shm";
  uint64_t rounds = 1;
  uint64_t steps = 3;
  std::vector<uint32_t> world;  ///< numbers of ranks to predict
};

/// A model and a machine for predictions only: 70 B parameters and 8192 tokens a micro-batch at 593
/// TFLOP/s, with activations computed again.
struct FarMachine {
  RankModel model = {.layers = 80, .layer_elements = 875'000'000, .compute_s = 7.74};
  uint32_t slots = 2;
  uint32_t node_ranks = 8;
  double node_link_gbps = 360;
  double link_gbps = 45;
  double latency_us = 20;  ///< latency of an operation
  double read_gbps = 14;
  double write_gbps = 10;
  uint64_t host_gib = 200;
  int optimizer_threads = 16;
};

struct MeasuredCase {
  RankCase rank_case;
  double link_share = 0;
  ResourceTimes times;
  std::vector<double> step_s;
  double predicted_s = 0;
};

double Median(std::vector<double> values) { return aio::Percentile(std::move(values), 0.5); }

/// A case whose link and drive are as fast as the shares say.
Result<MeasuredCase> MakeCase(const Arguments& arguments, uint32_t ranks, uint32_t slots,
                              double link) {
  MeasuredCase made{.rank_case = {.model = arguments.model, .ranks = ranks, .slots = slots},
                    .link_share = link};
  PENSTOCK_ASSIGN(const RankPlan plan, PlanOf(made.rank_case));
  const DriveBytes drive = MostDriveBytes(plan);
  made.rank_case.drive = {.read_bytes_a_second = arguments.drive * (drive.read + drive.written) /
                                                 arguments.model.compute_s,
                          .shared = true,
                          .block = 64_KiB};
  made.rank_case.link.bytes_a_second =
      link * LinkBytes(plan, arguments.model.micro_batches) / arguments.model.compute_s;
  return made;
}

Result<std::vector<MeasuredCase>> MakeCases(const Arguments& arguments) {
  std::vector<MeasuredCase> cases;
  const auto layers = static_cast<uint32_t>(arguments.model.layers);
  for (const uint32_t ranks : arguments.ranks) {
    for (const uint32_t slots : {2U, layers}) {
      for (const double link : arguments.links) {
        PENSTOCK_ASSIGN(MeasuredCase made, MakeCase(arguments, ranks, slots, link));
        cases.push_back(std::move(made));
      }
    }
  }
  return cases;
}

Status Measure(const Arguments& arguments, MeasuredCase* measured) {
  PENSTOCK_ASSIGN(const RankSteps steps,
                  MeasureRankSteps(measured->rank_case, arguments.folder, arguments.steps));
  PENSTOCK_ASSIGN(const RankPlan plan, PlanOf(measured->rank_case));
  measured->times = TimesOf(measured->rank_case, plan, steps.drive);
  measured->predicted_s = PredictRankStep(measured->rank_case, plan).step_s;
  measured->step_s.insert(measured->step_s.end(), steps.step_s.begin(), steps.step_s.end());
  return {};
}

void Print(const MeasuredCase& measured) {
  const ResourceTimes& times = measured.times;
  const auto [least, most] = std::ranges::minmax(measured.step_s);
  const double step = Median(measured.step_s);
  const double floor = times.floor_s();
  fmt::print(
      "{:>5} {:>5} {:>5} {:7.3f} {:7.3f} {:>7} {:7.3f} {:7.3f} {:7.3f} {:7.3f} ({:.3f} to {:.3f}) "
      "{:10.3f}\n",
      measured.rank_case.ranks, measured.rank_case.slots, fmt::format("x{}", measured.link_share),
      times.link_s, times.drive_s, times.bound(), floor, times.phases_s, step, step / floor,
      least / floor, most / floor, measured.predicted_s / step);
}

Status Run(const Arguments& arguments) {
  PENSTOCK_ASSIGN(std::vector<MeasuredCase> cases, MakeCases(arguments));
  for (uint64_t round = 0; round < arguments.rounds; ++round) {
    for (MeasuredCase& measured : cases) PENSTOCK_TRY(Measure(arguments, &measured));
  }
  const RankModel& model = arguments.model;
  fmt::print(
      "{} layers of {} elements, compute {:.3f} s in {} micro-batches; {} rounds of {} steps\n",
      model.layers, model.layer_elements, model.compute_s, model.micro_batches, arguments.rounds,
      arguments.steps);
  fmt::print("{:>5} {:>5} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>24} {:>10}\n", "ranks",
             "slots", "speed", "link", "drive", "bound", "floor", "phases", "step", "step / floor",
             "sim / step");
  for (const MeasuredCase& measured : cases) Print(measured);
  fmt::print("link, drive, floor, phases, step: seconds; speed: of the link\n");
  return {};
}

Status Predict(const FarMachine& machine, const std::vector<uint32_t>& world) {
  fmt::print("{} layers of {} elements, compute {:.3f} s in {} micro-batches\n",
             machine.model.layers, machine.model.layer_elements, machine.model.compute_s,
             machine.model.micro_batches);
  fmt::print("{:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>12}\n", "ranks", "link", "drive",
             "compute", "bound", "floor", "phases", "sim", "sim / floor");
  for (const uint32_t ranks : world) {
    const double link = ranks > machine.node_ranks ? machine.link_gbps : machine.node_link_gbps;
    const RankCase rank_case{
        .model = machine.model,
        .ranks = ranks,
        .slots = machine.slots,
        .tile_elements = uint64_t{1} << 24,
        .host_memory = Bytes{machine.host_gib << 30},
        .optimizer_threads = machine.optimizer_threads,
        .drive = {.read_bytes_a_second = machine.read_gbps * 1e9,
                  .write_bytes_a_second = machine.write_gbps * 1e9,
                  .block = 8_MiB,
                  .queue_depth = 32},
        .link = {.bytes_a_second = link * 1e9, .latency = machine.latency_us * 1e-6}};
    PENSTOCK_ASSIGN(const RankPlan plan, PlanOf(rank_case));
    const PredictedStep predicted = PredictRankStep(rank_case, plan);
    const ResourceTimes times = TimesOf(rank_case, plan, predicted.drive);
    fmt::print("{:>5} {:8.3f} {:8.3f} {:8.3f} {:>8} {:8.3f} {:8.3f} {:8.3f} {:12.3f}\n", ranks,
               times.link_s, times.drive_s, times.compute_s, times.bound(), times.floor_s(),
               times.phases_s, predicted.step_s, predicted.step_s / times.floor_s());
  }
  fmt::print("seconds of a rank and step; sim: what sim/ predicts of the step\n");
  return {};
}

Result<int> Main(int argc, char** argv) {
  Arguments arguments;
  FarMachine far;
  CLI::App app("Steps of several ranks against the floor of their slowest resource");
  app.add_option("--ranks", arguments.ranks, "numbers of ranks to measure")->delimiter(',');
  app.add_option("--links", arguments.links, "speeds of links, in what compute needs")
      ->delimiter(',');
  app.add_option("--drive", arguments.drive, "speed of drives, in what compute needs")
      ->check(CLI::PositiveNumber);
  app.add_option("--folder", arguments.folder, "folder in memory, for the simulated drives");
  app.add_option("--rounds", arguments.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", arguments.steps, "steps in a round, after one that is not counted")
      ->check(CLI::PositiveNumber);
  app.add_option("--world", arguments.world, "numbers of ranks to predict; nothing is measured")
      ->delimiter(',');
  app.add_option("--slots", far.slots, "for layers on the device, with --world");
  app.add_option("--node-ranks", far.node_ranks, "ranks of a node");
  app.add_option("--node-link", far.node_link_gbps, "GB/s of a rank within a node");
  app.add_option("--link", far.link_gbps, "GB/s of a rank between nodes");
  app.add_option("--latency", far.latency_us, "microseconds of an operation");
  app.add_option("--drive-read", far.read_gbps, "GB/s of a rank");
  app.add_option("--drive-write", far.write_gbps, "GB/s of a rank");
  app.add_option("--host-gib", far.host_gib, "of a rank");
  app.add_option("--optimizer-threads", far.optimizer_threads, "of a rank");
  for (RankModel* model : {&arguments.model, &far.model}) {
    const std::string prefix = model == &far.model ? "--far-" : "--";
    app.add_option(prefix + "layers", model->layers);
    app.add_option(prefix + "layer-elements", model->layer_elements);
    app.add_option(prefix + "micro-batches", model->micro_batches, "of a rank");
    app.add_option(prefix + "compute", model->compute_s, "seconds that a step computes")
        ->check(CLI::PositiveNumber);
  }
  CLI11_PARSE(app, argc, argv);
  PENSTOCK_TRY(arguments.world.empty() ? Run(arguments) : Predict(far, arguments.world));
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::bench::OutcomeOf("ranks", [&] { return penstock::bench::Main(argc, argv); });
}
