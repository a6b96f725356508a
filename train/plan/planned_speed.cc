#include "train/plan/planned_speed.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>

#include "base/cpu_quota.h"
#include "base/topology.h"
#include "train/plan/measure_host.h"
#include "train/plan/measure_operators.h"
#include "train/plan/step_floors.h"

namespace penstock::train {
namespace {

/// Cores that a rank has, if `sharing` ranks have those of this process.
double CoresOf(uint32_t sharing) {
  const Result<penstock::Topology> machine = ReadTopology();
  if (!machine.ok()) return std::max(1.0, 1.0 * std::thread::hardware_concurrency()) / sharing;
  const auto cores = static_cast<double>(machine->cores.size());
  return std::min(cores, machine->cpu_quota.value_or(cores)) / sharing;
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
  return fmt::format("compute {:.3g} TFLOP/s in layers and {:.3g} in the head, measured here{}",
                     rates->layers / 1e12, rates->head / 1e12,
                     rates->interrupted
                         ? ", while other programs kept the machine busy: a training "
                           "beside them is slower"
                         : "");
}

/// Speeds of a drive, and what says so.
struct FoundDrive {
  sim::DriveSpeed speed;
  const char* origin;
};

std::optional<FoundDrive> FindDrive(const GivenSpeed& given, const config::Config& config) {
  if (given.drive) {
    return FoundDrive{DriveOf(given.drive->read_gbps, given.drive->write_gbps, false), "as given"};
  }
  if (config.aio.simulate) {
    // Each path of each rank has one, and the paths share the tiles.
    const aio::SimulatedDrive& drive = *config.aio.simulate;
    const auto paths = static_cast<double>(std::max<size_t>(1, config.nvme_paths.size()));
    FoundDrive found = {DriveOf(paths * drive.read_gbps, paths * drive.write_gbps, drive.shared),
                        "simulated, of each rank"};
    found.speed.latency = drive.latency_us * 1e-6;
    return found;
  }
  if (!config.drive) return {};
  const auto& drive = *config.drive;
  return FoundDrive{DriveOf(drive.read_gbps, drive.write_gbps, drive.shared), "by penstock.drive"};
}

Status CheckTune(const GivenSpeed& given, const config::Config& config) {
  if (given.tune.empty() || !config::UsesNvme(config) || FindDrive(given, config)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--tune {}: there is no penstock.drive in it, which penstock tune writes; "
                   "tune again, or give --drive READ,WRITE",
                   given.tune);
}

std::string SetDrive(const GivenSpeed& given, const PlannedTraining& training,
                     MachineSpeed& speed) {
  const config::Config& config = training.config;
  const std::optional<FoundDrive> drive = FindDrive(given, config);
  if (!drive && !config::UsesNvme(config)) return "no drive in the steps";
  if (!drive) return "drive not known: give --tune or --drive";
  speed.drive = drive->speed;
  std::string text = fmt::format("drive {:.3g} GB/s read and {:.3g} written, {}",
                                 drive->speed.read_bytes_a_second / 1e9,
                                 drive->speed.write_bytes_a_second / 1e9, drive->origin);
  const uint32_t sharing = training.world.local_size;
  if (sharing == 1 || (config.aio.simulate && !given.drive)) return text;
  speed.drive->read_bytes_a_second /= sharing;
  speed.drive->write_bytes_a_second /= sharing;
  return text + fmt::format(", for {} ranks together", sharing);
}

/// Returns nothing where ranks have nothing to tell each other.
std::string SetLink(const GivenSpeed& given, const PlannedTraining& training, MachineSpeed& speed) {
  if (training.world.size == 1) return "";
  if (!given.link_gbps) return "; link not known, so that exchanges take no time: give --link";
  speed.link = sim::LinkSpeed{.bytes_a_second = *given.link_gbps * 1e9};
  return fmt::format("; link {:.3g} GB/s each way, as given", *given.link_gbps);
}

/// Measures in at most so much memory. `sharing`: ranks that have the cores of this process.
Result<MachineSpeed> MeasuredHost(const PlannedTraining& training, Bytes most, uint32_t sharing) {
  PENSTOCK_ASSIGN(const HostSpeed host, MeasureHost(training.config, most));
  MachineSpeed speed{.cores = CoresOf(sharing),
                     .update_element = host.update_element,
                     .norm_element = host.norm_element};
  if (training.kind == device::Kind::kCpu) speed.copy_byte = host.copy_byte;
  // A simulated drive is memory, and its bytes are copied.
  if (training.config.aio.simulate) speed.io_byte = host.copy_byte;
  return speed;
}

}  // namespace

Result<PlannedSpeed> FindSpeed(const GivenSpeed& given, const PlannedTraining& training) {
  PENSTOCK_TRY(CheckTune(given, training.config));
  PlannedSpeed speed;
  PENSTOCK_ASSIGN(speed.machine,
                  MeasuredHost(training, kMeasuringMemory, training.world.local_size));
  speed.origin = SetCompute(given, training, speed.machine);
  return speed;
}

PlannedSpeed WithDriveAndLink(PlannedSpeed speed, const GivenSpeed& given,
                              const PlannedTraining& training) {
  speed.origin += "; " + SetDrive(given, training, speed.machine);
  speed.origin += SetLink(given, training, speed.machine);
  if (training.kind == device::Kind::kCuda) {
    speed.origin +=
        "; the GPU's bus and memory not known, so that copies, and updates on the GPU, take no "
        "time";
  }
  return speed;
}

std::optional<MachineSpeed> SpeedOf(const PlannedTraining& training) {
  const config::Config& config = training.config;
  const bool knows_drive = !config::UsesNvme(config) || FindDrive({}, config);
  if (!config.device_tflops || !knows_drive || training.world.size > 1) return {};
  Result<MachineSpeed> speed =
      MeasuredHost(training, config.host_memory.value_or(kMeasuringMemory), 1);
  if (!speed.ok()) return {};
  SetCompute({}, training, *speed);
  SetDrive({}, training, *speed);
  return *speed;
}

}  // namespace penstock::train
