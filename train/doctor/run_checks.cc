#include "train/doctor/run_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "base/folder.h"
#include "base/strict_json.h"
#include "base/units.h"
#include "run/row_reader.h"
#include "run/rows/numerics_files.h"
#include "run/run_folder.h"
#include "train/plan/step_floors.h"

namespace penstock::train {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kRowsWithEnds = 5;  // from so many on, the first and the last are left out
constexpr uint64_t kSettled = 20;      // steps in which a loss scale finds its value
constexpr uint64_t kMaxSkippedTenth = 10;

double FiniteOr0(double value) { return std::isfinite(value) && value > 0 ? value : 0; }

StepFigures FiguresOf(const Json& row) {
  const auto number = [&row](const char* key) { return FiniteOr0(NumberOf(row, key)); };
  return {.rows = 1,
          .step_s = number("step_s"),
          .compute_s = number("compute_s"),
          .io_wait_s = number("io_wait_s"),
          .optimizer_s = number("optimizer_s"),
          .comm_wait_s = number("comm_wait_s"),
          .read_bytes = number("nvme_read_bytes"),
          .write_bytes = number("nvme_write_bytes")};
}

void Add(const StepFigures& row, StepFigures* sum) {
  sum->rows += row.rows;
  sum->step_s += row.step_s;
  sum->compute_s += row.compute_s;
  sum->io_wait_s += row.io_wait_s;
  sum->optimizer_s += row.optimizer_s;
  sum->comm_wait_s += row.comm_wait_s;
  sum->read_bytes += row.read_bytes;
  sum->write_bytes += row.write_bytes;
}

StepFigures SumOf(const std::vector<StepFigures>& rows) {
  const bool ends = rows.size() >= kRowsWithEnds;
  StepFigures sum;
  for (size_t i = ends ? 1 : 0; i < rows.size() - (ends ? 1 : 0); ++i) Add(rows[i], &sum);
  return sum;
}

/// An object that may be missing or damaged: then it is null.
Json ReadObject(const Folder& run, const std::string& name) {
  const Result<std::string> text = ReadTextFile(run, name, kMaxOwnText);
  if (!text.ok()) return nullptr;
  Result<Json> json = ParseJsonObject(*text, name, ErrorCode::kCorruption);
  return json.ok() ? *std::move(json) : Json(nullptr);
}

std::string TextAt(const Json& json, const char* key) {
  if (!json.is_object()) return "";
  const Json& value = FieldOf(json, key);
  return value.is_string() ? value.get<std::string>() : "";
}

std::optional<sim::DriveSpeed> SimulatedIn(const Json& summary) {
  const Json::json_pointer path("/config/penstock/aio/simulate");
  if (!summary.is_object() || !summary.contains(path) || !summary.at(path).is_object()) {
    return std::nullopt;
  }
  const Json& drive = summary.at(path);
  return DriveOf(FiniteOr0(NumberOf(drive, "read_gbps")), FiniteOr0(NumberOf(drive, "write_gbps")),
                 FieldOf(drive, "shared") == true);
}

/// What is told of a run as a whole alone.
void TakeShares(const Json& summary, StepFigures* figures) {
  const auto number = [&summary](const char* key) { return FiniteOr0(NumberOf(summary, key)); };
  const double limit = number("host_memory_bytes");
  if (limit > 0) figures->host_share = number("host_peak_bytes") / limit;
  const double optimizer = number("optimizer_s");
  if (optimizer > 0) figures->overlap = number("update_overlap_s") / optimizer;
}

void TakeSummary(const Json& summary, RunRecord* facts) {
  facts->has_summary = summary.is_object();
  if (!facts->has_summary) return;
  facts->interrupted = FieldOf(summary, "interrupted") == true;
  facts->engine = TextAt(summary, "aio_engine");
  const std::string device = TextAt(summary, "device_name");
  if (!device.empty()) facts->device = device;
  facts->simulated = SimulatedIn(summary);
  TakeShares(summary, &facts->figures);
}

Status TakeRows(const Folder& run, RunRecord* facts) {
  std::vector<StepFigures> rows;
  PENSTOCK_TRY(ForEachRow(run, [&](uint64_t step, const Json& row) {
    if (step <= facts->last_step) return;
    facts->last_step = step;
    ++facts->steps;
    if (FieldOf(row, "skipped") == true) ++facts->skipped;
    facts->tokens += FiniteOr0(NumberOf(row, "tokens"));
    rows.push_back(FiguresOf(row));
    facts->seconds += rows.back().step_s;
  }));
  Add(SumOf(rows), &facts->figures);
  return {};
}

/// For `part` in `whole` of the bytes, which are those of all ranks.
std::optional<double> DriveSeconds(const StepFigures& figures, uint64_t part, uint64_t whole,
                                   const std::optional<sim::DriveSpeed>& speed) {
  const double share = static_cast<double>(part) / static_cast<double>(whole);
  return DriveTime(share * figures.read_bytes, share * figures.write_bytes, speed);
}

/// Of a drive that is simulated. Each state file has one of its own, and as many of the bytes.
DriveNeed SimulatedNeed(const StepFigures& figures, const RunPlace& place,
                        const sim::DriveSpeed& drive) {
  DriveNeed need = {.seconds = DriveSeconds(figures, 1, place.files, drive)};
  if (place.files == 1) return need;
  need.note = fmt::format("for 1/{0} of the bytes: each of {0} state files has a simulated drive",
                          place.files);
  return need;
}

/// Of the drives of a host, which are `gbps` fast together. Its ranks have as many of the bytes as
/// any others.
DriveNeed MeasuredNeed(const StepFigures& figures, const RunPlace& place,
                       const std::optional<double>& gbps) {
  std::optional<sim::DriveSpeed> speed;
  if (gbps) speed = DriveOf(*gbps, *gbps, /*shared=*/true);
  DriveNeed need = {.seconds = DriveSeconds(figures, place.ranks_of_host, place.ranks, speed),
                    .how_to_know = "the lines of its folders say why they were not measured"};
  if (place.ranks > 1) {
    need.note = fmt::format("for the bytes of {} of {} ranks, those on {}", place.ranks_of_host,
                            place.ranks, place.host);
  }
  if (place.folders.empty()) {
    need.how_to_know = fmt::format(
        "its ranks ran on {}: penstock doctor measures the drive there, or --nvme-path one like it",
        place.host);
  }
  return need;
}

Check ProgressCheck(const RunRecord& facts) {
  if (facts.steps == 0) {
    return WarnCheck("run", facts.run + " has no row", "it ended before its first step did");
  }
  return OkCheck(
      "run",
      fmt::format("{}: {} steps up to {}, {:.0f} tokens a second, on {}{}", facts.run, facts.steps,
                  facts.last_step, facts.seconds > 0 ? facts.tokens / facts.seconds : 0,
                  facts.device, facts.engine.empty() ? "" : ", I/O by " + facts.engine));
}

Check EndCheck(const RunRecord& facts) {
  if (!facts.stop.empty()) {
    return WarnCheck("run end", facts.stop, "penstock numerics " + facts.run + " says why");
  }
  if (!facts.has_summary) {
    return WarnCheck("run end", "no summary.json: it runs, was killed, or failed",
                     "penstock train --resume starts from its last commit");
  }
  return OkCheck("run end", facts.interrupted ? "interrupted by a signal" : "finished");
}

Check SkippedCheck(const RunRecord& facts) {
  const std::string found = fmt::format("{} of {}", facts.skipped, facts.steps);
  const bool many = facts.steps > kSettled && facts.skipped * kMaxSkippedTenth > facts.steps;
  if (!many) return OkCheck("skipped steps", found);
  return WarnCheck("skipped steps", found, "penstock numerics " + facts.run + " says why");
}

/// Of a run of the package: its program computes, so what bounded the steps is not known.
Checks CallersRunChecks(const RunRecord& facts) {
  if (facts.steps == 0) {
    return {OkCheck("run", fmt::format("of {}, without rows: its steps report no loss; report "
                                       "it by optimizer.step(loss=loss)",
                                       ToString(facts.kind)))};
  }
  const double steps = static_cast<double>(facts.steps);
  Checks checks = {OkCheck(
      "run",
      fmt::format("{}: of {}, {} steps up to {}, {:.3g} s each; its program computes them, so "
                  "what bounded them is not known",
                  facts.run, ToString(facts.kind), facts.steps, facts.last_step,
                  facts.seconds / steps))};
  if (!facts.stop.empty()) checks.push_back(EndCheck(facts));
  checks.push_back(SkippedCheck(facts));
  return checks;
}

}  // namespace

Result<RunRecord> ReadRunRecord(const std::string& run) {
  PENSTOCK_ASSIGN(const Folder folder, OpenRun(run));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(folder));
  RunRecord facts{.run = run,
                  .kind = info.kind,
                  .device = info.training.device,
                  .place = PlaceOf(NewestFiles(info), OwnHost())};
  TakeSummary(ReadObject(folder, "summary.json"), &facts);
  facts.stop = TextAt(ReadObject(folder, kBlackBoxName), "stop");
  PENSTOCK_TRY(TakeRows(folder, &facts));
  return facts;
}

Checks RunChecks(const RunRecord& facts, const std::optional<double>& gbps) {
  if (facts.kind != RunKind::kTrain) return CallersRunChecks(facts);
  const DriveNeed need = facts.simulated
                             ? SimulatedNeed(facts.figures, facts.place, *facts.simulated)
                             : MeasuredNeed(facts.figures, facts.place, gbps);
  return {ProgressCheck(facts), EndCheck(facts), SkippedCheck(facts),
          BoundCheck(facts.figures, need)};
}

}  // namespace penstock::train
