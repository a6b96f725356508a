#include "train/tune/tune.h"

#include <fmt/chrono.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <utility>

#include "aio/probe_file.h"
#include "base/files.h"
#include "train/process/interrupt.h"
#include "train/process/log.h"
#include "train/process/status_line.h"
#include "train/tune/config.h"
#include "train/tune/measure.h"
#include "train/tune/plot.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Before either exists, however they are spelled.
Status CheckOutputs(const TuneCommand& command) {
  if (!command.out.empty()) PENSTOCK_TRY(CheckNewFile("--out", command.out));
  if (!command.plot.empty()) PENSTOCK_TRY(CheckNewFile("--plot", command.plot));
  if (command.out.empty() || command.plot.empty()) return {};
  const auto spelled_out = [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::weakly_canonical(std::filesystem::absolute(path, ignored), ignored);
  };
  if (spelled_out(command.out) != spelled_out(command.plot)) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "--out {} and --plot {} are the same file; name two", command.out, command.plot);
}

Status CheckDrive(const std::string& folder) {
  std::error_code ignored;
  if (std::filesystem::is_directory(folder, ignored)) return {};
  return MakeError(
      ErrorCode::kNotFound,
      "--nvme-path {}: there is no such folder; create it, or name one on the drive to "
      "measure",
      folder);
}

/// Every engine, and why it is not to be had.
struct EngineChoice {
  std::vector<aio::EngineKind> available;  ///< the preferred one first
  std::vector<PointProbes> unavailable;
};

Result<EngineChoice> FindEngines() {
  EngineChoice engines;
  for (const aio::EngineKind kind :
       {aio::EngineKind::kUring, aio::EngineKind::kLibaio, aio::EngineKind::kThreads}) {
    const Result<std::unique_ptr<aio::Engine>> engine = aio::CreateEngine({.kind = kind});
    if (engine.ok()) {
      engines.available.push_back(kind);
    } else if (engine.error().code == ErrorCode::kUnavailable) {
      engines.unavailable.push_back(
          {.point = {.engine = kind}, .unavailable = engine.error().message});
    } else {
      return engine.error();
    }
  }
  if (engines.available.empty()) return MakeError(ErrorCode::kUnavailable, "no aio engine works");
  return engines;
}

std::string Now() { return fmt::format("{:%Y-%m-%d %H:%M} UTC", fmt::gmtime(std::time(nullptr))); }

/// The tuning between its checks and its report.
class Tuning {
 public:
  Tuning(TunePlan plan, EngineChoice engines, aio::ProbeFile file, const Interrupt* interrupt)
      : plan_(std::move(plan)),
        engines_(std::move(engines)),
        file_(std::move(file)),
        stop_([interrupt] { return interrupt->requested(); }) {}

  Result<TuneReport> Run(const std::string& folder);

 private:
  Result<std::vector<PointSummary>> Measure(const char* what, const std::vector<TunePoint>& points,
                                            Seconds end);
  Status Fill();
  Result<std::vector<PointSummary>> MeasureEngines(const TunePoint& point);

  const Clock::time_point start_ = Clock::now();
  const bool terminal_ = ::isatty(STDERR_FILENO) != 0;
  TunePlan plan_;
  EngineChoice engines_;
  aio::ProbeFile file_;
  const aio::StopRequested stop_;
  StatusLine progress_{stderr, terminal_};
};

Status Tuning::Fill() {
  progress_.Show(fmt::format("writing the file once: {}", ToString(file_.size())));
  Status filled = file_.Fill({.kind = engines_.available.front()}, plan_.scale.grid_end, stop_);
  // What it says of the drive, and what to do here.
  if (filled.ok() || filled.error().code != ErrorCode::kUnavailable) return filled;
  return Error{filled.error().code, filled.error().message + "; use a smaller --size"};
}

Result<std::vector<PointSummary>> Tuning::Measure(const char* what,
                                                  const std::vector<TunePoint>& points,
                                                  Seconds end) {
  const MeasureOptions options = {
      .rounds = plan_.scale.rounds,
      .limit = plan_.scale.probe,
      .deadline = start_ + std::chrono::duration_cast<Clock::duration>(end),
      .stop = stop_,
      .what = what,
      .terminal = terminal_};
  PENSTOCK_ASSIGN(const std::vector<PointProbes> probes,
                  MeasurePoints(points, &file_, options, &progress_));
  return Summarize(probes);
}

Result<std::vector<PointSummary>> Tuning::MeasureEngines(const TunePoint& point) {
  const std::vector<TunePoint> points =
      EnginePoints(engines_.available, point.block_size, point.queue_depth);
  PENSTOCK_ASSIGN(std::vector<PointSummary> rows,
                  Measure("engines", points, plan_.scale.engines_end));
  for (PointProbes& missing : engines_.unavailable) {
    missing.point.block_size = point.block_size;
    missing.point.queue_depth = point.queue_depth;
    rows.push_back(Summarize(missing));
  }
  return rows;
}

Error TooSlow(const aio::ProbeFile& file) {
  return MakeError(ErrorCode::kUnavailable,
                   "{}: the time was over before anything was measured; use a smaller --size",
                   file.file().path());
}

Result<TuneReport> Tuning::Run(const std::string& folder) {
  TuneReport report{.folder = folder, .date = Now(), .plan = plan_};
  PENSTOCK_TRY(Fill());
  PENSTOCK_ASSIGN(report.grid, Measure("grid", plan_.grid, plan_.scale.grid_end));
  const std::optional<GridChoice> choice = ChoosePoint(report.grid);
  if (!choice) return TooSlow(file_);
  report.choice = *choice;
  PENSTOCK_ASSIGN(report.engines, MeasureEngines(report.grid[choice->recommended].point));
  const std::optional<size_t> engine = ChooseEngine(report.engines);
  if (!engine) return TooSlow(file_);
  report.engine = *engine;
  report.written = file_.written();
  report.elapsed = Clock::now() - start_;
  return report;
}

}  // namespace

Result<TuneReport> RunTune(const TuneCommand& command) {
  PENSTOCK_TRY(CheckDrive(command.nvme_path));
  PENSTOCK_TRY(CheckOutputs(command));
  LogFileSystem("--nvme-path", command.nvme_path);
  PENSTOCK_ASSIGN(EngineChoice engines, FindEngines());
  PENSTOCK_ASSIGN(TunePlan plan, MakePlan(command.quick ? QuickScale() : FullScale(), command.size,
                                          engines.available.front()));
  // Before the file exists: from here on a signal is noticed between two blocks.
  const Interrupt interrupt("penstock: stopping the measurement; interrupt again to quit at once");
  PENSTOCK_ASSIGN(aio::ProbeFile file,
                  aio::ProbeFile::Create(command.nvme_path, plan.scale.file_size,
                                         std::max(plan.in_flight_limit, 1_MiB)));
  for (const PointProbes& missing : engines.unavailable) LogNotice(*missing.unavailable);
  const TunePoint& largest = plan.grid.back();
  const size_t most_engines =
      EnginePoints(engines.available, largest.block_size, plan.scale.queue_depths.back()).size();
  LogNotice(fmt::format("measuring {} with {}: {} configurations, {} rounds; writes {} at most",
                        command.nvme_path, ToString(engines.available.front()), plan.grid.size(),
                        plan.scale.rounds, ToString(MostWritten(plan, most_engines))));
  return Tuning(std::move(plan), std::move(engines), std::move(file), &interrupt)
      .Run(command.nvme_path);
}

std::string OutputText(const TuneCommand& command, const TuneReport& report) {
  std::string text = ToText(report);
  if (command.out.empty()) text += fmt::format("\n{}", ConfigFragment(RecommendedSummary(report)));
  return text;
}

Status WriteTuneFiles(const TuneCommand& command, const TuneReport& report) {
  if (!command.out.empty()) {
    PENSTOCK_TRY(
        WriteTextFile(command.out, ConfigFragment(RecommendedSummary(report)), IfExists::kFail));
  }
  if (command.plot.empty()) return {};
  return WriteTextFile(command.plot, PlotSvg(report), IfExists::kFail);
}

}  // namespace penstock::train
