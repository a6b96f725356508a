#include "train/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/folder.h"

namespace penstock::train {
namespace {

/// What of a file of rows stays: everything before `end`.
struct KeptRows {
  off_t end = 0;
  uint64_t last_step = 0;
};

/// The rows before the first one that is not whole or whose step is above `step`.
Result<KeptRows> RowsUpTo(const std::string& path, uint64_t step) {
  std::ifstream file(path, std::ios::binary);
  if (!file.is_open()) return ErrnoError(errno, "opening " + path);
  KeptRows kept;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object() || !json.contains("step") || !json["step"].is_number_unsigned()) break;
    const uint64_t row = json["step"].get<uint64_t>();
    if (row > step) break;
    kept.last_step = row;
    kept.end += static_cast<off_t>(line.size() + 1);
  }
  if (file.bad()) return MakeError(ErrorCode::kIo, "reading {} failed", path);
  return kept;
}

}  // namespace

double ModelCost::FlopsPerStep(uint64_t tokens) const {
  const double per_token = 6.0 * static_cast<double>(parameters) +
                           12.0 * static_cast<double>(layers) * static_cast<double>(width) *
                               static_cast<double>(sequence);
  return static_cast<double>(tokens) * per_token;
}

void Measure(const Snapshot& begin, const Snapshot& end, const ModelCost& cost, StepRow* row) {
  row->step_s = ToSeconds(end.time - begin.time);
  // A step takes time; the bound only keeps a clock that stood still from dividing by zero.
  const double seconds = std::max(row->step_s, 1e-9);
  row->tokens_per_s = static_cast<double>(row->tokens) / seconds;
  row->tflops = cost.FlopsPerStep(row->tokens) / seconds / 1e12;
  row->compute_s = ToSeconds(end.activity.compute - begin.activity.compute);
  row->io_wait_s = ToSeconds(end.activity.io_wait - begin.activity.io_wait);
  row->optimizer_s = ToSeconds(end.activity.optimizer - begin.activity.optimizer);
  row->device_peak_bytes = end.device_peak.value;
  row->host_peak_bytes = end.host_peak.value;
  row->nvme_read_bytes = end.counters.nvme_read_bytes - begin.counters.nvme_read_bytes;
  row->nvme_write_bytes = end.counters.nvme_write_bytes - begin.counters.nvme_write_bytes;
}

std::string ToJson(const StepRow& row) {
  const nlohmann::ordered_json json = {
      {"step", row.step},
      {"loss", row.loss},
      {"grad_norm", row.grad_norm},
      {"lr", row.lr},
      {"loss_scale", row.loss_scale},
      {"skipped", row.skipped},
      {"tokens", row.tokens},
      {"step_s", row.step_s},
      {"tokens_per_s", row.tokens_per_s},
      {"tflops", row.tflops},
      {"compute_s", row.compute_s},
      {"io_wait_s", row.io_wait_s},
      {"optimizer_s", row.optimizer_s},
      {"device_peak_bytes", row.device_peak_bytes},
      {"host_peak_bytes", row.host_peak_bytes},
      {"nvme_read_bytes", row.nvme_read_bytes},
      {"nvme_write_bytes", row.nvme_write_bytes},
  };
  return json.dump();
}

Result<MetricsWriter> MetricsWriter::Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoError(errno, "creating " + path);
  PENSTOCK_TRY(SyncFolder(std::filesystem::path(path).parent_path().string()));
  return MetricsWriter(path, std::move(fd));
}

Result<MetricsWriter> MetricsWriter::Resume(const std::string& path, uint64_t step,
                                            const std::string& row) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) return ErrnoError(errno, "opening " + path);
  PENSTOCK_ASSIGN(const KeptRows kept, RowsUpTo(path, step));
  if (::ftruncate(fd.get(), kept.end) != 0) return ErrnoError(errno, "cutting " + path);
  MetricsWriter writer(path, std::move(fd));
  if (kept.last_step < step) PENSTOCK_TRY(writer.AppendLine(row));
  PENSTOCK_TRY(writer.Sync());
  PENSTOCK_TRY(SyncFolder(std::filesystem::path(path).parent_path().string()));
  return writer;
}

Status MetricsWriter::Append(const StepRow& row) { return AppendLine(ToJson(row)); }

Status MetricsWriter::AppendLine(const std::string& json) {
  const std::string line = json + "\n";
  size_t done = 0;
  while (done < line.size()) {
    const ssize_t written = ::write(fd_.get(), line.data() + done, line.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoError(errno, "appending to " + path_);
    done += static_cast<size_t>(written);
  }
  return {};
}

Status MetricsWriter::Sync() {
  if (::fdatasync(fd_.get()) != 0) return ErrnoError(errno, "synchronising " + path_);
  return {};
}

}  // namespace penstock::train
