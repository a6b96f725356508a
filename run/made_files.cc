#include "run/made_files.h"

#include <algorithm>
#include <filesystem>

#include "run/rows/csv_monitor.h"
#include "run/rows/numerics_files.h"
#include "run/run_folder.h"

namespace penstock::train {

std::vector<std::string> NamesOfRows() {
  return {kMetricsName, kReportsName, kHeadroomName, kBlackBoxName};
}

bool CanBeMade(const std::string& file) {
  if (std::filesystem::path(file).is_absolute()) return CsvMonitor::IsCurve(file);
  const std::vector<std::string> names = NamesOfRows();
  return std::ranges::find(names, file) != names.end();
}

Status RemoveMadeFiles(const Folder& run, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    Status removed =
        std::filesystem::path(file).is_absolute() ? CsvMonitor::Remove(file) : run.RemoveFile(file);
    if (!removed.ok() && removed.error().code != ErrorCode::kNotFound) return removed;
  }
  return {};
}

}  // namespace penstock::train
