#include "train/doctor/doctor.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "aio/aio.h"
#include "aio/drive_speed.h"
#include "base/files.h"
#include "config/config.h"
#include "run/identity/config_files.h"
#include "train/doctor/bug_report.h"
#include "train/doctor/config_checks.h"
#include "train/doctor/drive_checks.h"
#include "train/doctor/drive_facts.h"
#include "train/doctor/drive_speeds.h"
#include "train/doctor/engine_checks.h"
#include "train/doctor/gpu_checks.h"
#include "train/doctor/limit_checks.h"
#include "train/doctor/machine_checks.h"
#include "train/doctor/machine_files.h"
#include "train/doctor/program_checks.h"
#include "train/doctor/run_checks.h"
#include "train/doctor/speed_check.h"
#include "train/process/interrupt.h"

namespace penstock::train {
namespace {

/// A folder to look at.
struct Place {
  std::string folder;
  bool simulated = false;  ///< nothing but a run with a simulated drive names it
};

/// The drives of a command: what is told of them, and how fast they are.
class Drives {
 public:
  Drives(const MachineFiles* files, aio::StopRequested stop)
      : files_(files), stop_(std::move(stop)) {}

  /// Tells of a folder's drive, unless that was done. Errors: kCancelled.
  Status Look(const Place& place, Checks* checks);
  const SeenFolders& seen() const { return seen_; }

 private:
  Status Measure(const Place& place, SeenFolder* folder, Checks* checks) const;

  const MachineFiles* files_;
  const aio::StopRequested stop_;
  SeenFolders seen_;
};

Status Drives::Look(const Place& place, Checks* checks) {
  if (FindFolder(seen_, place.folder) != nullptr) return {};
  SeenFolder folder{.facts = ReadDriveFacts(place.folder, *files_)};
  const DriveFacts& facts = folder.facts;
  checks->push_back(FolderCheck(facts));
  const bool told = std::ranges::any_of(seen_, [&facts](const SeenFolder& seen) {
    return seen.facts.trouble.empty() && seen.facts.file_system == facts.file_system;
  });
  if (!told && facts.trouble.empty()) {
    Append(DriveChecks(facts, *files_), checks);
    PENSTOCK_TRY(Measure(place, &folder, checks));
  }
  seen_.push_back(std::move(folder));
  return {};
}

Status Drives::Measure(const Place& place, SeenFolder* folder, Checks* checks) const {
  const std::string why_not =
      place.simulated ? "the run's drive is simulated" : WhyNotMeasured(folder->facts, seen_);
  if (!why_not.empty()) {
    checks->push_back(NoSpeedCheck(why_not));
    return {};
  }
  const Result<aio::DriveSpeed> speed = aio::MeasureDrive(folder->facts.folder, stop_);
  if (!speed.ok() && speed.error().code == ErrorCode::kCancelled) return speed.error();
  if (speed.ok()) folder->gbps = speed->both_gbps;
  checks->push_back(SpeedCheck(speed));
  return {};
}

/// What the options name, read before anything is measured.
struct Subjects {
  std::vector<config::ConfigSource> sources;
  std::optional<Result<config::Config>> config;
  std::optional<RunRecord> run;
};

Result<Subjects> ReadSubjects(const DoctorCommand& command) {
  Subjects subjects;
  if (!command.bug_report.empty()) PENSTOCK_TRY(CheckNewFile("--bug-report", command.bug_report));
  if (!command.configs.empty()) {
    PENSTOCK_ASSIGN(subjects.sources, ReadConfigFiles(command.configs));
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

std::vector<Place> PlacesOf(const DoctorCommand& command, const Subjects& subjects) {
  std::vector<Place> places;
  if (!command.nvme_path.empty()) places.push_back({.folder = command.nvme_path});
  if (subjects.config && subjects.config->ok()) {
    for (const std::string& path : (*subjects.config)->nvme_paths) {
      places.push_back({.folder = path});
    }
  }
  if (subjects.run) {
    for (const std::string& folder : subjects.run->place.folders) {
      places.push_back({.folder = folder, .simulated = subjects.run->simulated.has_value()});
    }
  }
  return places;
}

/// The speed of the drives of a run, in GB/s; nothing if it is not known. A run that has no folder
/// on this host is held against the drive that the user names.
std::optional<double> SpeedOf(const RunRecord& run, const std::string& named,
                              const Drives& drives) {
  if (!run.place.folders.empty()) return SpeedTogether(drives.seen(), run.place.folders);
  return SpeedTogether(drives.seen(), {named});
}

Result<Checks> LookAtAll(const DoctorCommand& command, const Subjects& subjects,
                         const aio::StopRequested& stop) {
  const MachineFiles files;
  const EngineFacts engines = ReadEngineFacts();
  const GpuFacts gpu = ReadGpuFacts(files);
  Checks checks = LookAtMachine(files, engines, gpu);
  Drives drives(&files, stop);
  for (const Place& place : PlacesOf(command, subjects)) {
    PENSTOCK_TRY(drives.Look(place, &checks));
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
    Append(RunChecks(run, SpeedOf(run, command.nvme_path, drives)), &checks);
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
