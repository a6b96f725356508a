#include "train/loop/planned_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/cpu_quota.h"
#include "base/topology.h"
#include "train/plan/measure_host.h"
#include "train/plan/measure_operators.h"

namespace penstock::train {
namespace {

double Cores() {
  const Result<penstock::Topology> machine = ReadTopology();
  if (!machine.ok()) return std::max(1U, std::thread::hardware_concurrency());
  const auto cores = static_cast<double>(machine->cores.size());
  return std::min(cores, machine->cpu_quota.value_or(cores));
}

std::string SetCompute(const GivenSpeed& given, const PlannedTraining& training,
                       MachineSpeed& speed) {
  const std::optional<double> tflops =
      given.device_tflops ? given.device_tflops : training.config.device_tflops;
  if (tflops) {
    speed.layer_flops = speed.head_flops = *tflops * 1e12;
    return fmt::format("compute {:.4g} TFLOP/s, as given", *tflops);
  }
  const Result<OperatorRates> rates = MeasureOperators(training);
  if (!rates.ok()) {
    return fmt::format("compute not known, as {}: give --device-tflops", rates.error().message);
  }
  speed.layer_flops = rates->layers;
  speed.head_flops = rates->head;
  return fmt::format("compute {:.3g} TFLOP/s in layers and {:.3g} in the head, measured here",
                     rates->layers / 1e12, rates->head / 1e12);
}

sim::DriveSpeed DriveOf(double read_gbps, double write_gbps, bool shared) {
  return {.read_bytes_a_second = read_gbps * 1e9,
          .write_bytes_a_second = write_gbps * 1e9,
          .shared = shared};
}

Result<std::string> SetDrive(const GivenSpeed& given, const config::Config& config,
                             MachineSpeed& speed) {
  if (config.parameter_home != Tier::kNvme && config.optimizer_home != Tier::kNvme) {
    return std::string("no drive in the steps");
  }
  if (given.drive) {
    speed.drive = DriveOf(given.drive->read_gbps, given.drive->write_gbps, false);
    return fmt::format("drive {:.3g} GB/s read and {:.3g} written, as given",
                       given.drive->read_gbps, given.drive->write_gbps);
  }
  if (config.aio.simulate) {
    const aio::SimulatedDrive& drive = *config.aio.simulate;
    speed.drive = DriveOf(drive.read_gbps, drive.write_gbps, drive.shared);
    speed.drive->latency = drive.latency_us * 1e-6;
    return fmt::format("drive {:.3g} GB/s read and {:.3g} written, simulated", drive.read_gbps,
                       drive.shared ? drive.read_gbps : drive.write_gbps);
  }
  if (config.drive) {
    speed.drive = DriveOf(config.drive->read_gbps, config.drive->write_gbps, config.drive->shared);
    return fmt::format("drive {:.3g} GB/s read and {:.3g} written, by penstock.drive",
                       config.drive->read_gbps, config.drive->write_gbps);
  }
  if (!given.tune.empty()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "--tune {}: there is no penstock.drive in it, which penstock tune writes; "
                     "tune again, or give --drive READ,WRITE",
                     given.tune);
  }
  return std::string("drive not known: give --tune or --drive");
}

Result<MachineSpeed> MeasuredHost(const PlannedTraining& training) {
  PENSTOCK_ASSIGN(const HostSpeed host, MeasureHost(training.config));
  MachineSpeed speed{
      .cores = Cores(), .update_element = host.update_element, .norm_element = host.norm_element};
  // A GPU's copies go over a bus whose speed is not known here.
  if (training.kind == device::Kind::kCpu) speed.copy_byte = host.copy_byte;
  // A simulated drive is memory, and its bytes are copied.
  if (training.config.aio.simulate) speed.io_byte = host.copy_byte;
  return speed;
}

}  // namespace

Result<PlannedSpeed> FindSpeed(const GivenSpeed& given, const PlannedTraining& training) {
  PlannedSpeed speed;
  PENSTOCK_ASSIGN(speed.machine, MeasuredHost(training));
  speed.origin = SetCompute(given, training, speed.machine);
  PENSTOCK_ASSIGN(const std::string drive, SetDrive(given, training.config, speed.machine));
  speed.origin += "; " + drive;
  return speed;
}

std::optional<MachineSpeed> SpeedOf(const PlannedTraining& training) {
  const config::Config& config = training.config;
  const bool needs_drive =
      config.parameter_home == Tier::kNvme || config.optimizer_home == Tier::kNvme;
  const bool knows_drive = config.aio.simulate || config.drive;
  if (!config.device_tflops || (needs_drive && !knows_drive)) return {};
  const Result<PlannedSpeed> speed = FindSpeed({}, training);
  if (!speed.ok()) return {};
  return speed->machine;
}

}  // namespace penstock::train
