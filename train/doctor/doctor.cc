#include "train/doctor/doctor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/aio.h"
#include "config/config.h"
#include "train/doctor/bug_report.h"
#include "train/doctor/config_checks.h"
#include "train/doctor/drive_checks.h"
#include "train/doctor/drive_facts.h"
#include "train/doctor/engine_checks.h"
#include "train/doctor/gpu_checks.h"
#include "train/doctor/limit_checks.h"
#include "train/doctor/machine_checks.h"
#include "train/doctor/machine_files.h"
#include "train/doctor/program_checks.h"
#include "train/doctor/run_checks.h"
#include "train/doctor/speed_check.h"
#include "train/process/files.h"
#include "train/process/interrupt.h"

namespace penstock::train {
namespace {

/// The drives of a command: what is told of them, and how fast they are together.
class Drives {
 public:
  Drives(const MachineFiles* files, aio::StopRequested stop, bool simulated)
      : files_(files), stop_(std::move(stop)), simulated_(simulated) {}

  /// Tells of a folder's drive, unless that was done. Errors: kCancelled.
  Status Look(const std::string& folder, Checks* checks);
  /// The speed of all of them; nothing if one was not measured.
  std::optional<aio::SimulatedDrive> speed() const;

 private:
  Result<Check> Measure(const DriveFacts& facts);

  const MachineFiles* files_;
  const aio::StopRequested stop_;
  const bool simulated_;
  std::vector<DriveFacts> seen_;
  double gbps_ = 0;  ///< with both directions in turn
  bool all_measured_ = true;
};

Status Drives::Look(const std::string& folder, Checks* checks) {
  const auto same_folder = [&folder](const DriveFacts& seen) { return seen.folder == folder; };
  if (std::ranges::any_of(seen_, same_folder)) return {};
  DriveFacts facts = ReadDriveFacts(folder, *files_);
  checks->push_back(FolderCheck(facts));
  const auto same_drive = [&facts](const DriveFacts& seen) {
    return seen.trouble.empty() && seen.file_system == facts.file_system;
  };
  const bool told = std::ranges::any_of(seen_, same_drive);
  seen_.push_back(facts);
  if (!facts.trouble.empty()) all_measured_ = false;
  if (told || !facts.trouble.empty()) return {};
  Append(DriveChecks(facts, *files_), checks);
  PENSTOCK_ASSIGN(Check speed, Measure(facts));
  checks->push_back(std::move(speed));
  return {};
}

Result<Check> Drives::Measure(const DriveFacts& facts) {
  std::string why_not;
  if (simulated_) why_not = "the run's drive is simulated";
  if (facts.kind == DriveKind::kMemory) why_not = "it is memory";
  if (facts.space && facts.space->free < kSpaceToMeasure) {
    why_not = "less than " + ToString(kSpaceToMeasure) + " are free";
  }
  if (!why_not.empty()) {
    all_measured_ = false;
    return NoSpeedCheck(why_not);
  }
  const Result<DriveSpeed> speed = MeasureDrive(facts.folder, stop_);
  if (!speed.ok() && speed.error().code == ErrorCode::kCancelled) return speed.error();
  if (speed.ok()) {
    gbps_ += speed->both_gbps;
  } else {
    all_measured_ = false;
  }
  return SpeedCheck(speed);
}

std::optional<aio::SimulatedDrive> Drives::speed() const {
  if (seen_.empty() || !all_measured_) return std::nullopt;
  return aio::SimulatedDrive{.read_gbps = gbps_, .write_gbps = gbps_, .shared = true};
}

/// What the options name, read before anything is measured.
struct Subjects {
  std::vector<config::ConfigSource> sources;
  std::optional<Result<config::Config>> config;
  std::optional<RunRecord> run;
};

Result<Subjects> ReadSubjects(const DoctorCommand& command) {
  Subjects subjects;
  if (!command.bug_report.empty()) PENSTOCK_TRY(CheckReportPath(command.bug_report));
  if (!command.configs.empty()) {
    PENSTOCK_ASSIGN(subjects.sources, ReadConfigSources(command.configs));
    subjects.config = config::ParseConfig(subjects.sources, command.ranks);
  }
  if (!command.run.empty()) {
    PENSTOCK_ASSIGN(subjects.run, ReadRunRecord(command.run));
  }
  return subjects;
}

Checks LookAtMachine(const MachineFiles& files, const EngineFacts& engines, const GpuFacts& gpu) {
  Checks checks = ProgramChecks();
  Append(MachineChecks(files), &checks);
  Append(LimitChecks(files), &checks);
  Append(EngineChecks(engines, files), &checks);
  Append(GpuChecks(gpu), &checks);
  return checks;
}

std::vector<std::string> FoldersOf(const DoctorCommand& command, const Subjects& subjects) {
  std::vector<std::string> folders;
  if (!command.nvme_path.empty()) folders.push_back(command.nvme_path);
  if (subjects.config && subjects.config->ok()) {
    const std::vector<std::string>& paths = (*subjects.config)->nvme_paths;
    folders.insert(folders.end(), paths.begin(), paths.end());
  }
  if (subjects.run) {
    folders.insert(folders.end(), subjects.run->folders.begin(), subjects.run->folders.end());
  }
  return folders;
}

/// Whether nothing that was asked about is a drive that exists.
bool IsSimulated(const DoctorCommand& command, const Subjects& subjects) {
  return command.nvme_path.empty() && command.configs.empty() && subjects.run &&
         subjects.run->simulated.has_value();
}

Result<Checks> LookAtAll(const DoctorCommand& command, const Subjects& subjects,
                         const aio::StopRequested& stop) {
  const MachineFiles files;
  const EngineFacts engines = ReadEngineFacts();
  const GpuFacts gpu = ReadGpuFacts(files);
  Checks checks = LookAtMachine(files, engines, gpu);
  Drives drives(&files, stop, IsSimulated(command, subjects));
  for (const std::string& folder : FoldersOf(command, subjects)) {
    PENSTOCK_TRY(drives.Look(folder, &checks));
  }
  if (subjects.config) {
    const Result<config::Config>& config = *subjects.config;
    checks.push_back(ConfigCheck(config));
    const ConfigMachine machine = {.ranks = command.ranks / command.nodes,
                                   .device = gpu.device(),
                                   .engines = engines,
                                   .files = files};
    if (config.ok()) Append(ConfigChecks(*config, machine), &checks);
  }
  if (subjects.run) {
    const RunRecord& run = *subjects.run;
    Append(RunChecks(run, run.simulated ? run.simulated : drives.speed()), &checks);
  }
  return checks;
}

}  // namespace

Result<DoctorOutcome> RunDoctor(const DoctorCommand& command) {
  PENSTOCK_ASSIGN(const Subjects subjects, ReadSubjects(command));
  const Interrupt interrupt("penstock: stopping; interrupt again to quit at once");
  PENSTOCK_ASSIGN(const Checks checks,
                  LookAtAll(command, subjects, [&interrupt] { return interrupt.requested(); }));
  DoctorOutcome outcome = {.text = ToText(checks), .failed = HasFailed(checks)};
  if (command.bug_report.empty()) return outcome;
  PENSTOCK_TRY(WriteTextFile(
      command.bug_report,
      ReportText({.checks = outcome.text, .configs = subjects.sources, .run = command.run}),
      IfExists::kFail));
  return outcome;
}

}  // namespace penstock::train
