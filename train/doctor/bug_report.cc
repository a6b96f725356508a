#include "train/doctor/bug_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <span>
#include <utility>

#include "base/files.h"
#include "base/folder.h"
#include "base/units.h"
#include "run/rows/numerics_files.h"
#include "run/run_folder.h"
#include "train/doctor/gpu_checks.h"

namespace penstock::train {
namespace {

constexpr size_t kLastLines = 20;
constexpr size_t kMaxBytes = 64 << 10;  // of a file

constexpr std::array kVariables = {"CUDA_DEVICE_ORDER",
                                   "CUDA_LAUNCH_BLOCKING",
                                   "CUDA_VISIBLE_DEVICES",
                                   "LOCAL_RANK",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "NVIDIA_VISIBLE_DEVICES",
                                   "OMP_NUM_THREADS",
                                   "OMP_PROC_BIND",
                                   "OMP_WAIT_POLICY",
                                   "PMI_RANK",
                                   "PMI_SIZE",
                                   "RANK",
                                   "SLURM_NTASKS",
                                   "SLURM_PROCID",
                                   "WORLD_SIZE"};

/// The last lines of a text.
std::string LastLines(const std::string& text) {
  size_t begin = text.size();
  // The line break at the end ends the last line and begins none.
  for (size_t lines = 0; begin > 0; --begin) {
    if (text[begin - 1] == '\n' && begin < text.size() && ++lines == kLastLines) break;
  }
  return text.substr(begin);
}

std::string Section(const std::string& title, std::string text) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  return fmt::format("\n==== {} ====\n{}", title, text);
}

enum class Part { kBegin, kEnd };

/// The first or the last kMaxBytes of a file of a run.
Result<std::string> PartOf(const InputFile& file, Part part) {
  std::string text(std::min<uint64_t>(file.size().value, kMaxBytes), '\0');
  const uint64_t begin = part == Part::kBegin ? 0 : file.size().value - text.size();
  PENSTOCK_TRY(file.Read(FileOffset{begin}, std::as_writable_bytes(std::span(text))));
  return text;
}

/// What is said of a file of a run, whose size may be anything.
std::string FileSection(const Folder& run, const std::string& name, Part part) {
  const Result<InputFile> file = InputFile::Open(run, name);
  if (!file.ok()) return Section(name, "(" + file.error().message + ")");
  const Result<std::string> text = PartOf(*file, part);
  if (!text.ok()) return Section(name, "(" + text.error().message + ")");
  if (part == Part::kEnd) {
    return Section(fmt::format("{}, the last {} lines", name, kLastLines), LastLines(*text));
  }
  const bool whole = file->size().value <= kMaxBytes;
  return Section(name + (whole ? "" : ", its beginning"), *text);
}

std::string RunSections(const std::string& path) {
  const Result<Folder> run = Folder::Open(path);
  if (!run.ok()) return Section(path, "(" + run.error().message + ")");
  std::string text;
  for (const char* name : {kInfoName, "summary.json", kBlackBoxName}) {
    text += FileSection(*run, name, Part::kBegin);
  }
  for (const char* name : {kMetricsName, kReportsName, kHeadroomName}) {
    text += FileSection(*run, name, Part::kEnd);
  }
  return text;
}

}  // namespace

std::vector<std::string> KnownVariables() {
  std::vector<std::string> found;
  for (const char* name : kVariables) {
    const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe)
    if (value != nullptr) found.push_back(fmt::format("{}={}", name, value));
  }
  for (std::string& variable : NcclVariables()) found.push_back(std::move(variable));
  return found;
}

std::string ReportText(const BugReport& report) {
  std::string text = "penstock doctor: report of a problem\n";
  text += "Paths are as they were found: look through this file before you send it.\n";
  text += Section("checks", report.checks);
  std::string variables;
  for (const std::string& variable : KnownVariables()) variables += variable + "\n";
  text +=
      Section("environment", variables.empty() ? "none of the known variables is set" : variables);
  for (const config::ConfigSource& source : report.configs) {
    text += Section("config " + source.name, source.text);
  }
  if (!report.run.empty()) text += RunSections(report.run);
  return text;
}

}  // namespace penstock::train
