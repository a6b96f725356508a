#include "run/rows/metrics_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <ext/stdio_filebuf.h>
#include <istream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/files.h"
#include "run/rows/metrics_rows.h"
#include "run/rows/put_aside.h"

namespace penstock::train {
namespace {

constexpr mode_t kMode = 0644;

/// Calls `read` with the file and its path.
template <typename Read>
auto WithRows(const Folder& folder, const std::string& name, Read read)
    -> decltype(read(std::declval<std::istream&>(), name)) {
  PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_RDONLY));
  __gnu_cxx::stdio_filebuf<char> buffer(fd.Release(), std::ios::in | std::ios::binary);
  std::istream file(&buffer);
  return read(file, folder.PathOf(name));
}

Result<KeptRows> OpenRows(const Folder& folder, const std::string& name, uint64_t step) {
  return WithRows(folder, name, [step](std::istream& file, const std::string& path) {
    return RowsUpTo(file, path, step);
  });
}

/// The rows that lead to that of a committed step.
Result<KeptRows> RowsOfCommit(const Folder& folder, const std::string& name, uint64_t step,
                              const std::string& row) {
  PENSTOCK_ASSIGN(KeptRows kept, OpenRows(folder, name, step));
  if (row.empty() || kept.last_step == step) return kept;
  const uint64_t before = RowBefore(row, step);
  return kept.last_step > before ? OpenRows(folder, name, before) : std::move(kept);
}

/// A file whose row of the committed step is not the commit's has other steps.
Status PutOthersAside(const Folder& folder, const std::string& name, uint64_t step,
                      const std::string& row, const Notify& notify) {
  const Result<KeptRows> kept = OpenRows(folder, name, step);
  if (!kept.ok() || kept->last_step == 0 || kept->last_step != step) return {};
  if (AreOfOneStep(kept->last_row, row)) return {};
  return PutAside(folder, name,
                  fmt::format("{} has another row of step {} than the commit of that step, so it "
                              "is of other steps",
                              folder.PathOf(name), step),
                  notify);
}

nlohmann::ordered_json Outcome(const StepRow& row) {
  return {{"step", row.step},
          {"loss", row.loss},
          {"grad_norm", row.grad_norm},
          {"lr", row.lr},
          {"loss_scale", row.loss_scale},
          {"skipped", row.skipped}};
}

/// What is measured of a step that a caller computes.
nlohmann::ordered_json OfCaller(const StepRow& row) {
  return {{"samples", *row.samples},
          {"step_s", row.step_s},
          {"host_peak_bytes", row.host_peak_bytes},
          {"nvme_read_bytes", row.nvme_read_bytes},
          {"nvme_write_bytes", row.nvme_write_bytes}};
}

nlohmann::ordered_json Measured(const StepRow& row) {
  nlohmann::ordered_json json = {
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
      {"hardware_tflops", row.hardware_tflops},
  };
  if (row.forward_s) json["forward_s"] = *row.forward_s;
  if (row.backward_s) json["backward_s"] = *row.backward_s;
  if (row.world_size > 1) {
    json["comm_wait_s"] = row.comm_wait_s;
    json["world_size"] = row.world_size;
  }
  return json;
}

}  // namespace

std::string ToJson(const StepRow& row) {
  nlohmann::ordered_json json = Outcome(row);
  json.update(row.samples ? OfCaller(row) : Measured(row));
  if (!row.changed.empty()) json["changed"] = row.changed;
  if (row.previous_row) json[kPreviousRow] = *row.previous_row;
  return json.dump();
}

Result<MetricsWriter> MetricsWriter::Create(const Folder& folder, const std::string& name) {
  PENSTOCK_ASSIGN(UniqueFd fd,
                  folder.OpenFile(name, O_WRONLY | O_CREAT | O_EXCL | O_APPEND, kMode));
  PENSTOCK_TRY(folder.Sync());
  return MetricsWriter(folder.PathOf(name), std::move(fd));
}

Result<MetricsWriter> MetricsWriter::Resume(const Folder& folder, const std::string& name,
                                            uint64_t step, const std::string& row,
                                            const Notify& notify) {
  const std::string path = folder.PathOf(name);
  PENSTOCK_TRY(PutOthersAside(folder, name, step, row, notify));
  PENSTOCK_TRY(DropOtherNames(folder, name));
  PENSTOCK_ASSIGN(UniqueFd fd, folder.OpenFile(name, O_WRONLY | O_CREAT | O_APPEND, kMode));
  PENSTOCK_ASSIGN(const KeptRows kept, RowsOfCommit(folder, name, step, row));
  const bool adds = kept.last_step < step && !row.empty();
  const uint64_t before = adds ? RowBefore(row, step) : kept.last_step;
  if (kept.last_step == 0 && before > 0) {
    notify(fmt::format("{} has no rows of steps 1 to {}: it begins anew with that of step {}", path,
                       before, step));
  }
  const bool gap = kept.last_step > 0 && kept.last_step < before;
  if (gap) {
    notify(
        fmt::format("{} ends before the rows of steps {} to {}: they are missing, and the "
                    "next one is of step {}",
                    path, kept.last_step + 1, before, step));
  }
  if (::ftruncate(fd.get(), static_cast<off_t>(kept.end.value)) != 0) {
    return ErrnoError(errno, "cutting " + path);
  }
  MetricsWriter writer(path, std::move(fd));
  if (adds) PENSTOCK_TRY(writer.file_.Append(gap ? AfterGap(row, kept.last_step) : row));
  writer.last_step_ = adds ? step : kept.last_step;
  PENSTOCK_TRY(writer.Sync());
  PENSTOCK_TRY(folder.Sync());
  return writer;
}

Result<FileOffset> MetricsWriter::EndOf(const Folder& folder, const std::string& name,
                                        uint64_t step) {
  const Result<KeptRows> kept = OpenRows(folder, name, step);
  if (!kept.ok() && kept.error().code == ErrorCode::kNotFound) return FileOffset();
  PENSTOCK_TRY(kept.status());
  return kept->end;
}

Result<bool> MetricsWriter::HoldsRows(const Folder& folder, const std::string& name) {
  return WithRows(folder, name, [](std::istream& file, const std::string& path) {
    return BeginsWithRow(file, path);
  });
}

Status MetricsWriter::Append(const StepRow& row) {
  const bool gap = last_step_ + 1 < row.step;
  StepRow written = row;
  if (gap) written.previous_row = last_step_;
  PENSTOCK_TRY(file_.Append(ToJson(written)));
  last_step_ = row.step;
  return {};
}

}  // namespace penstock::train
