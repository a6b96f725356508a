// How far is a step of several ranks from what its slowest resource needs?
//
//   ranks_bench [--ranks 2,4] [options]
// Ranks are threads of this process. Their kernels wait instead of computing, so that cores do not
// bound them; their links and drives are simulated. A link of share s passes a step's bytes in 1/s
// of the time that the step computes, a drive likewise. Layers have two slots on the device, or a
// slot each, which saves the gathers of backward.
//
// Floors, in seconds of one rank:
//   floor    the slowest of compute, link and drive, each with nothing beside it
//   phases   the same for compute and link, forward and backward each by themselves: gradients
//            cannot be exchanged before they are computed
// Printed are medians of the steps of all rounds, and the least and the most of step / floor. All
// cases take turns in a round. Caches play no part: nothing is measured but time that passes.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "aio/probe.h"
#include "bench/rank_case.h"
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
};

struct MeasuredCase {
  RankCase rank_case;
  double link_share = 0;
  ResourceTimes times;
  std::vector<double> step_s;
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
  measured->step_s.insert(measured->step_s.end(), steps.step_s.begin(), steps.step_s.end());
  return {};
}

void Print(const MeasuredCase& measured) {
  const ResourceTimes& times = measured.times;
  const auto [least, most] = std::ranges::minmax(measured.step_s);
  const double step = Median(measured.step_s);
  const double floor = times.floor_s();
  fmt::print(
      "{:>5} {:>5} {:>5} {:7.3f} {:7.3f} {:>7} {:7.3f} {:7.3f} {:7.3f} {:7.3f} ({:.3f} to "
      "{:.3f})\n",
      measured.rank_case.ranks, measured.rank_case.slots, fmt::format("x{}", measured.link_share),
      times.link_s, times.drive_s, times.bound(), floor, times.phases_s, step, step / floor,
      least / floor, most / floor);
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
  fmt::print("{:>5} {:>5} {:>5} {:>7} {:>7} {:>7} {:>7} {:>7} {:>7} {:>24}\n", "ranks", "slots",
             "speed", "link", "drive", "bound", "floor", "phases", "step", "step / floor");
  for (const MeasuredCase& measured : cases) Print(measured);
  fmt::print("link, drive, floor, phases, step: seconds; speed: of the link\n");
  return {};
}

int Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Steps of several ranks against the floor of their slowest resource");
  app.add_option("--ranks", arguments.ranks, "numbers of ranks to measure")->delimiter(',');
  app.add_option("--links", arguments.links, "speeds of links, in what compute needs")
      ->delimiter(',');
  app.add_option("--drive", arguments.drive, "speed of drives, in what compute needs");
  app.add_option("--folder", arguments.folder, "folder in memory, for the simulated drives");
  app.add_option("--layers", arguments.model.layers);
  app.add_option("--layer-elements", arguments.model.layer_elements);
  app.add_option("--micro-batches", arguments.model.micro_batches, "of a rank");
  app.add_option("--compute", arguments.model.compute_s, "seconds that a step computes");
  app.add_option("--rounds", arguments.rounds);
  app.add_option("--steps", arguments.steps, "steps in a round, after one that is not counted");
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(arguments);
  if (status.ok()) return 0;
  fmt::print(stderr, "ranks: error: {}\n", status.error().message);
  return 1;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  try {
    return penstock::bench::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ranks: error: %s\n", error.what());
    return 1;
  }
}
