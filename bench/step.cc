// How far is a whole step from the time of its slowest resource?
//
//   step --real DIR --simulated DIR [options]
// One run measures, in turn in every round: computing alone and Adam alone (all states in device
// memory), the device's copies alone, and for each drive the bytes of a step alone and whole steps
// with all states at home there. The drives: the one under DIR, and three simulated ones whose
// speed, shared by reads and writes, makes the I/O of a step last twice, once and a quarter as long
// as computing it. Every drive is used with clipping and overflow check (the update waits for all
// gradients) and without both.
//
// Floors, of docs/performance.md; on the CPU device compute, Adam, copies and what I/O takes of the
// processor share the cores:
//   cores       compute + Adam + (copies + processor time of I/O alone) / number of cores
//   resources   max(cores, I/O)
//   norm        with clipping: max(cores − backward, (24 N − H) / B) + max(backward, (2 N + H) / B)
//               N parameters on nvme, H bytes of states that host memory holds ahead, B bytes a
//               second
// Printed are medians over the rounds, and of step / (larger floor), taken in each round, the
// median and the range; beside it what sim/ predicts from the round's parts, over the step. Caches:
// states and weights are larger than the processor's; the page cache is not used (O_DIRECT). A
// round's whole steps follow one that is not counted, so that updates and reads of the step before
// are under way as they are in a training.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <thread>
#include <utility>

#include "aio/closed_loop.h"
#include "aio/probe.h"
#include "bench/outcome.h"
#include "bench/step_machine.h"
#include "bench/step_prediction.h"
#include "train/models/gpt2.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/partitioner.h"

namespace penstock::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kQueueDepth = 32;

struct Arguments {
  std::string real;
  std::string simulated = "/dev/shm";
  StepModel model = {
      .config = {.vocab_size = 256, .n_positions = 512, .n_embd = 384, .n_layer = 10, .n_head = 6},
      .shape = {.micro_batch = 1, .micro_batches = 8, .sequence = 512}};
  uint64_t device_mib = 64;
  uint64_t host_mib = 160;
  uint64_t tile_elements = 1048576;
  bool tier_split = false;
  int rounds = 5;
  int steps = 3;
};

/// What one drive showed, in one round.
struct DriveSample {
  double io_s = 0;
  double io_cpu_s = 0;  ///< processor time of the same
  double step_s = 0;
  double io_wait_s = 0;
  double read_bytes = 0;  ///< bytes of a step
  double write_bytes = 0;
};

/// One drive with one way to update.
struct Case {
  std::string name;
  bool clipping = false;
  std::string folder;
  std::optional<aio::SimulatedDrive> simulate;
  aio::ProbeFile* file = nullptr;  ///< file in the same folder
  std::optional<StepMachine> machine;
  std::vector<DriveSample> samples;
  std::vector<double> floors;
  std::vector<double> predictions;  ///< predictions of sim/, from each round's own measurements
};

struct ComputeSample {
  double forward_s = 0;
  double backward_s = 0;
  double adam_s = 0;
  double copies_s = 0;  ///< seconds of one core
  double cores = 1;

  double compute_s() const { return forward_s + backward_s; }
  double busy_s() const { return compute_s() + adam_s + copies_s / cores; }
};

double Median(std::vector<double> values) { return aio::Percentile(std::move(values), 0.5); }

std::string ConfigJson(const Arguments& arguments, const Case* drive) {
  const std::string home =
      drive == nullptr ? R"({"device": "none"})"
                       : fmt::format(R"({{"device": "nvme", "nvme_path": "{}"}})", drive->folder);
  const bool clipping = drive == nullptr || drive->clipping;
  std::string simulate;
  if (drive != nullptr && drive->simulate) {
    simulate = fmt::format(R"(, "aio": {{"simulate": {{"read_gbps": {}, "shared": true}}}})",
                           drive->simulate->read_gbps);
  }
  return fmt::format(
      R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
          "bf16": {{"enabled": true, "check_grad_overflow": {}}}, "gradient_clipping": {},
          "optimizer": {{"type": "AdamW", "params": {{"lr": 3e-4, "weight_decay": 0.1}}}},
          "zero_optimization": {{"stage": 3, "offload_param": {}, "offload_optimizer": {}}},
          "aio": {{"queue_depth": {}}},
          "penstock": {{"tile_elements": {}, "tier_split": {}{}}}}})",
      arguments.model.shape.micro_batch, arguments.model.shape.micro_batches, clipping,
      clipping ? 1.0 : 0.0, home, home, kQueueDepth, arguments.tile_elements, arguments.tier_split,
      simulate);
}

Result<StepMachine> MakeMachine(const Arguments& arguments, const Case* drive) {
  const Bytes device = drive == nullptr ? 16_GiB : Bytes{arguments.device_mib << 20};
  return StepMachine::Create(
      {.model = arguments.model,
       .config = ConfigJson(arguments, drive),
       .device_memory = device,
       .host_memory = Bytes{arguments.host_mib << 20},
       .state_folder = drive == nullptr ? arguments.simulated : drive->folder});
}

/// Seconds that one thread takes to copy a step's weights to the device twice and gradients back.
double MeasureCopies(uint64_t parameters) {
  static std::vector<std::byte> from(16 << 20, std::byte{1});
  static std::vector<std::byte> to(64 << 20, std::byte{1});
  const auto begin = Clock::now();
  uint64_t left = 6 * parameters;
  for (size_t at = 0; left > 0; at = (at + from.size()) % to.size()) {
    const size_t part = std::min<uint64_t>(left, from.size());
    std::memcpy(to.data() + at, from.data(), part);
    left -= part;
  }
  return SecondsSince(begin);
}

Result<ComputeSample> MeasureCompute(StepMachine& resident) {
  ComputeSample sample{.cores = static_cast<double>(std::thread::hardware_concurrency())};
  std::atomic<double> forward_s = 0;
  const auto begin = Clock::now();
  PENSTOCK_TRY(resident.ComputePhases([&]() { forward_s = SecondsSince(begin); }));
  sample.forward_s = forward_s;
  sample.backward_s = SecondsSince(begin) - sample.forward_s;
  const auto update = Clock::now();
  PENSTOCK_TRY(resident.Update());
  PENSTOCK_TRY(resident.Drain());
  sample.adam_s = SecondsSince(update);
  sample.copies_s = MeasureCopies(resident.parameters());
  return sample;
}

/// A file for MeasureIo, all of it written.
Result<aio::ProbeFile> MakeProbeFile(const std::string& folder, Bytes size) {
  const aio::EngineOptions options = {.queue_depth = kQueueDepth};
  PENSTOCK_ASSIGN(aio::ProbeFile file,
                  aio::ProbeFile::Create(folder, AlignUp(size, 64_MiB),
                                         options.block_size * uint64_t{kQueueDepth}));
  PENSTOCK_TRY(file.Fill(options, aio::Seconds(600), [] { return false; }));
  return file;
}

/// The bytes of a step, half of them written, through the same engine and nothing beside it.
Status MeasureIo(const Case& drive, DriveSample* sample) {
  const auto moved = static_cast<uint64_t>(sample->read_bytes + sample->write_bytes);
  const Bytes bytes = AlignUp(Bytes{moved}, 4_KiB);
  PENSTOCK_ASSIGN(aio::ProbeRig rig,
                  aio::ProbeRig::Create(drive.machine->config().aio, drive.file));
  PENSTOCK_ASSIGN(const aio::Probe probe,
                  rig.Measure(aio::Direction::kBoth, {.bytes = bytes, .time = aio::Seconds(60)},
                              [] { return false; }));
  const double gigabytes = static_cast<double>(bytes.value) / 1e9;
  sample->io_s = gigabytes / probe.gbps;
  sample->io_cpu_s = gigabytes * probe.cpu_s_per_gb;
  return {};
}

Result<DriveSample> MeasureSteps(Case& drive, int steps) {
  StepMachine& machine = *drive.machine;
  const auto step = [&]() -> Status {
    PENSTOCK_TRY(machine.Compute());
    return machine.Update();
  };
  PENSTOCK_TRY(step());
  const auto begin = Clock::now();
  const zero::EngineCounters bytes = machine.counters();
  const ActivityTotals activity = machine.activity();
  for (int i = 0; i < steps; ++i) PENSTOCK_TRY(step());
  const zero::EngineCounters after = machine.counters();
  const std::chrono::duration<double> waited = machine.activity().io_wait - activity.io_wait;
  DriveSample sample{
      .step_s = SecondsSince(begin) / steps,
      .io_wait_s = waited.count() / steps,
      .read_bytes = static_cast<double>(after.nvme_read_bytes - bytes.nvme_read_bytes) / steps,
      .write_bytes = static_cast<double>(after.nvme_write_bytes - bytes.nvme_write_bytes) / steps};
  PENSTOCK_TRY(machine.Drain());
  PENSTOCK_TRY(MeasureIo(drive, &sample));
  return sample;
}

double Floor(const Case& drive, const ComputeSample& compute, const DriveSample& sample,
             double ahead) {
  const double busy_s = compute.busy_s() + sample.io_cpu_s / compute.cores;
  const double resources = std::max(busy_s, sample.io_s);
  if (!drive.clipping) return resources;
  const double on_nvme = sample.write_bytes / 12;
  ahead = std::min(ahead, 12 * on_nvme);
  const double bandwidth = (sample.read_bytes + sample.write_bytes) / sample.io_s;
  const double forward = std::max(busy_s - compute.backward_s, (24 * on_nvme - ahead) / bandwidth);
  const double backward = std::max(compute.backward_s, (2 * on_nvme + ahead) / bandwidth);
  return std::max(resources, forward + backward);
}

MeasuredParts PartsOf(const Case& drive, const ComputeSample& compute, const DriveSample& sample) {
  return {.forward_s = compute.forward_s,
          .backward_s = compute.backward_s,
          .adam_s = compute.adam_s,
          .copies_s = compute.copies_s,
          .cores = compute.cores,
          .io_s = sample.io_s,
          .io_cpu_s = sample.io_cpu_s,
          .io_bytes = sample.read_bytes + sample.write_bytes,
          .simulate = drive.simulate};
}

/// Bytes of states that host memory holds ahead of the update.
Result<double> StatesAhead(const Arguments& arguments, const StepMachine& machine) {
  const zero::ModelSpec spec = train::Gpt2Spec(arguments.model.config);
  const offload::ShardLayout layout = zero::MakeLayout(spec, machine.config());
  PENSTOCK_ASSIGN(
      const zero::MemoryPlan plan,
      zero::PlanMemory(spec, layout, machine.config(), 16_GiB, Bytes{arguments.host_mib << 20}));
  const Bytes largest = layout.largest_weight() + layout.largest_record();
  return static_cast<double>((largest * plan.store.record_blocks).value);
}

template <typename T, typename Field>
double MedianOf(const std::vector<T>& samples, Field field) {
  std::vector<double> values;
  for (const T& sample : samples) values.push_back(field(sample));
  return Median(std::move(values));
}

void Print(const Case& drive, double parameters) {
  std::vector<double> ratios;
  std::vector<double> predicted;
  for (size_t i = 0; i < drive.samples.size(); ++i) {
    ratios.push_back(drive.samples[i].step_s / drive.floors[i]);
    predicted.push_back(drive.predictions[i] / drive.samples[i].step_s);
  }
  const auto median = [&](auto field) { return MedianOf(drive.samples, field); };
  const double step = median([](const DriveSample& s) { return s.step_s; });
  fmt::print(
      "{:<22} {:>8} {:7.3f} {:7.3f} {:7.3f} {:7.3f} {:7.3f} ({:.3f} to {:.3f}) {:9.3f} {:7.1f} % "
      "{:6.2f} {:6.2f}\n",
      drive.name, drive.clipping ? "on" : "off",
      median([](const DriveSample& s) { return s.io_s; }),
      median([](const DriveSample& s) { return s.io_cpu_s; }), Median(drive.floors), step,
      Median(ratios), *std::min_element(ratios.begin(), ratios.end()),
      *std::max_element(ratios.begin(), ratios.end()), Median(predicted),
      100 * median([](const DriveSample& s) { return s.io_wait_s; }) / step,
      median([](const DriveSample& s) { return s.read_bytes; }) / parameters,
      median([](const DriveSample& s) { return s.write_bytes; }) / parameters);
}

std::vector<Case> MakeCases(const Arguments& arguments, double compute_s, double parameters) {
  std::vector<Case> cases;
  for (const bool clipping : {true, false}) {
    if (!arguments.real.empty()) {
      cases.push_back({.name = arguments.real, .clipping = clipping, .folder = arguments.real});
    }
    for (const double share : {0.5, 1.0, 4.0}) {
      const double gbps = share * 26 * parameters / compute_s / 1e9;
      cases.push_back({.name = fmt::format("simulated x{}", share),
                       .clipping = clipping,
                       .folder = arguments.simulated,
                       .simulate = aio::SimulatedDrive{.read_gbps = gbps, .shared = true}});
    }
  }
  return cases;
}

Status Run(const Arguments& arguments) {
  PENSTOCK_ASSIGN(StepMachine resident, MakeMachine(arguments, nullptr));
  const auto parameters = static_cast<double>(resident.parameters());
  std::vector<ComputeSample> computes;
  for (int i = 0; i < 3; ++i) {
    PENSTOCK_ASSIGN(const ComputeSample sample, MeasureCompute(resident));
    computes.push_back(sample);
  }
  const double compute_s = MedianOf(computes, [](const ComputeSample& s) { return s.compute_s(); });
  computes.clear();
  std::vector<Case> cases = MakeCases(arguments, compute_s, parameters);
  std::map<std::string, aio::ProbeFile> files;
  for (Case& drive : cases) {
    if (!files.contains(drive.folder)) {
      PENSTOCK_ASSIGN(aio::ProbeFile file,
                      MakeProbeFile(drive.folder, Bytes{28 * resident.parameters()}));
      files.emplace(drive.folder, std::move(file));
    }
    drive.file = &files.at(drive.folder);
    PENSTOCK_ASSIGN(drive.machine, MakeMachine(arguments, &drive));
  }
  PENSTOCK_ASSIGN(const double ahead, StatesAhead(arguments, *cases.front().machine));
  for (int round = 0; round < arguments.rounds; ++round) {
    for (Case& drive : cases) {
      PENSTOCK_ASSIGN(const ComputeSample compute, MeasureCompute(resident));
      PENSTOCK_ASSIGN(const DriveSample sample, MeasureSteps(drive, arguments.steps));
      computes.push_back(compute);
      drive.samples.push_back(sample);
      drive.floors.push_back(Floor(drive, compute, sample, ahead));
      PENSTOCK_ASSIGN(const double predicted, PredictStep(arguments.model, *drive.machine,
                                                          PartsOf(drive, compute, sample)));
      drive.predictions.push_back(predicted);
    }
  }
  const auto median = [&](auto field) { return MedianOf(computes, field); };
  fmt::print(
      "{:.1f} M parameters, {} tokens a step, {} rounds of {} steps, host memory {} MiB: "
      "states of {:.1f} M parameters ahead\n",
      parameters / 1e6,
      arguments.model.shape.micro_batches * arguments.model.shape.micro_batch *
          arguments.model.shape.sequence,
      arguments.rounds, arguments.steps, arguments.host_mib, ahead / 12 / 1e6);
  fmt::print(
      "compute {:.3f} s (forward {:.3f}, backward {:.3f}), Adam {:.3f} s, copies {:.3f} s of a "
      "core\n",
      median([](const ComputeSample& s) { return s.compute_s(); }),
      median([](const ComputeSample& s) { return s.forward_s; }),
      median([](const ComputeSample& s) { return s.backward_s; }),
      median([](const ComputeSample& s) { return s.adam_s; }),
      median([](const ComputeSample& s) { return s.copies_s; }));
  fmt::print("{:<22} {:>8} {:>7} {:>7} {:>7} {:>7} {:>24} {:>9} {:>9} {:>6} {:>6}\n", "drive",
             "clipping", "I/O", "its CPU", "floor", "step", "step / floor", "sim / step", "io_wait",
             "read", "write");
  for (const Case& drive : cases) Print(drive, parameters);
  for (const std::string& notice : cases.front().machine->notices()) {
    if (notice.starts_with("tier split")) fmt::print("{}\n", notice);
  }
  fmt::print(
      "I/O, floor, step: seconds; sim / step: what sim/ predicts; read, write: bytes a parameter "
      "and step\n");
  return {};
}

Result<int> Main(int argc, char** argv) {
  Arguments arguments;
  CLI::App app("Whole steps against the floor of their slowest resource");
  app.add_option("--real", arguments.real, "folder on the drive to measure; none: simulated only");
  app.add_option("--simulated", arguments.simulated, "folder in memory, for the simulated drives");
  app.add_option("--layers", arguments.model.config.n_layer);
  app.add_option("--width", arguments.model.config.n_embd);
  app.add_option("--heads", arguments.model.config.n_head);
  app.add_option("--sequence", arguments.model.shape.sequence);
  app.add_option("--micro-batches", arguments.model.shape.micro_batches);
  app.add_option("--device-mib", arguments.device_mib);
  app.add_option("--host-mib", arguments.host_mib);
  app.add_option("--tile-elements", arguments.tile_elements);
  app.add_flag("--tier-split", arguments.tier_split,
               "as many tiles as fit live in host memory; else all of them on the drive");
  app.add_option("--rounds", arguments.rounds);
  app.add_option("--steps", arguments.steps,
                 "whole steps in a round, after one that is not counted");
  CLI11_PARSE(app, argc, argv);
  arguments.model.config.n_positions = arguments.model.shape.sequence;
  PENSTOCK_TRY(Run(arguments));
  return 0;
}

}  // namespace
}  // namespace penstock::bench

int main(int argc, char** argv) {
  return penstock::bench::OutcomeOf("step", [&] { return penstock::bench::Main(argc, argv); });
}
