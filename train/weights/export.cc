#include "train/weights/export.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "base/files.h"
#include "base/folder.h"
#include "base/strict_json.h"
#include "kernels/dtype.h"
#include "train/weights/safetensors_writer.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr size_t kChunkElements = size_t{1} << 20;

struct ExportTensor {
  zero::ModuleId module;
  size_t index;  ///< index in the module
  std::string name;
  std::vector<uint64_t> shape;
  uint64_t elements;
};

struct Shard {
  std::string file;  ///< name in the folder
  std::vector<ExportTensor> tensors;
};

/// "float32": the names of PyTorch's dtypes.
const char* TorchName(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "float32";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat16:
      return "float16";
  }
  return "?";
}

std::string StoredName(const std::string& name, const ModelFamily* family) {
  return family == nullptr ? name : family->names().Stored(name);
}

/// Tensors in the order of the flat index, each in the first file that has room when it is the last
/// one.
std::vector<Shard> PlanShards(const offload::ModelLayout& layout, const ExportOptions& options) {
  std::vector<Shard> shards(1);
  Bytes used;
  for (size_t m = 0; m < layout.modules.size(); ++m) {
    const std::vector<offload::TensorLayout>& tensors = layout.modules[m].tensors;
    for (const size_t t : layout.modules[m].TensorsByOffset()) {
      const Bytes size = SizeOf(options.dtype) * tensors[t].elements;
      if (used + size > options.shard_limit && !shards.back().tensors.empty()) {
        shards.emplace_back();
        used = Bytes{};
      }
      used += size;
      shards.back().tensors.push_back({static_cast<zero::ModuleId>(m), t,
                                       StoredName(tensors[t].name, options.family),
                                       tensors[t].shape, tensors[t].elements});
    }
  }
  for (size_t i = 0; i < shards.size(); ++i) {
    shards[i].file = shards.size() == 1
                         ? "model.safetensors"
                         : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
  }
  return shards;
}

/// Returns the model's config, adapted to the exported files; everything else stays as it was.
Result<std::string> MakeConfig(const ExportOptions& options) {
  PENSTOCK_ASSIGN(json config,
                  ParseJsonObject(options.config_json, "the config.json that the run keeps",
                                  ErrorCode::kInvalidArgument));
  config["torch_dtype"] = TorchName(options.dtype);
  if (config.contains("dtype")) config["dtype"] = TorchName(options.dtype);
  options.family->CompleteExport(config);
  return config.dump(2) + "\n";
}

std::string MakeIndex(const std::vector<Shard>& shards, Bytes total) {
  json index;
  index["metadata"]["total_size"] = total.value;
  for (const Shard& shard : shards) {
    for (const ExportTensor& tensor : shard.tensors) index["weight_map"][tensor.name] = shard.file;
  }
  return index.dump(2) + "\n";
}

/// The folder of one export, and the files it writes, none of which was there before: removed again
/// with the folders that it made, unless they are kept.
class ExportFolder {
 public:
  explicit ExportFolder(fs::path path) : path_(std::move(path)) {}
  ~ExportFolder() {
    if (kept_) return;
    std::error_code ignored;
    for (const std::string& file : files_) fs::remove(file, ignored);
    for (const std::string& folder : created_) fs::remove(folder, ignored);
  }
  ExportFolder(const ExportFolder&) = delete;
  ExportFolder& operator=(const ExportFolder&) = delete;

  Status Create();
  std::string Path(const std::string& name) const { return (path_ / name).string(); }
  void Add(std::string file) { files_.push_back(std::move(file)); }
  std::vector<std::string> Keep() {
    kept_ = true;
    return files_;
  }

 private:
  Status RefuseModel() const;

  fs::path path_;
  std::vector<std::string> created_;  ///< innermost first
  bool kept_ = false;
  std::vector<std::string> files_;
};

Status ExportFolder::Create() {
  std::error_code error;
  const fs::file_status status = fs::status(path_, error);
  if (fs::exists(status) && !fs::is_directory(status)) {
    return MakeError(ErrorCode::kInvalidArgument, "cannot export to {}: it is a file, not a folder",
                     path_.string());
  }
  if (fs::is_directory(status)) return RefuseModel();
  PENSTOCK_ASSIGN(created_, MakeFolders(path_.string()));
  return {};
}

Status ExportFolder::RefuseModel() const {
  PENSTOCK_ASSIGN(const std::vector<std::string> names, NamesIn(path_.string()));
  for (const std::string& name : names) {
    if (name == "config.json" || name.ends_with(".safetensors") ||
        name.ends_with(".safetensors.index.json")) {
      return MakeError(
          ErrorCode::kInvalidArgument,
          "cannot export to {}: {} is there already and is not overwritten; choose another "
          "folder or remove it",
          path_.string(), name);
    }
  }
  return {};
}

/// Streams tensors of a state into files of one dtype.
class Exporter {
 public:
  /// `elements`: all that will be written.
  Exporter(zero::CommittedState& state, const ExportOptions& options, uint64_t elements)
      : state_(state), options_(options), dtype_(options.dtype), elements_(elements) {}

  Status Write(const Shard& shard, const std::string& path);
  std::vector<zero::ValueFault> TakeFaults() { return std::move(faults_); }

 private:
  Status WriteTensor(const ExportTensor& tensor, SafetensorsWriter& writer);
  Status CheckRange(const ExportTensor& tensor, uint64_t begin, std::span<const float> values);

  zero::CommittedState& state_;
  const ExportOptions& options_;
  const DType dtype_;
  const uint64_t elements_;
  uint64_t written_ = 0;
  std::vector<float> buffer_;
  std::vector<zero::ValueFault> faults_;
};

Status Exporter::Write(const Shard& shard, const std::string& path) {
  std::vector<SafetensorsWriter::Tensor> tensors;
  for (const ExportTensor& tensor : shard.tensors) tensors.push_back({tensor.name, tensor.shape});
  PENSTOCK_ASSIGN(SafetensorsWriter writer,
                  SafetensorsWriter::Create(path, dtype_, tensors, IfExists::kFail));
  for (const ExportTensor& tensor : shard.tensors) PENSTOCK_TRY(WriteTensor(tensor, writer));
  return writer.Finish();
}

Status Exporter::WriteTensor(const ExportTensor& tensor, SafetensorsWriter& writer) {
  const offload::ModelLayout& model = state_.model();
  const offload::GroupId group = model.module(tensor.module).tensors[tensor.index].group;
  const bool take_hi = dtype_ == DType::kBFloat16 &&
                       model.group(group).planes.Find(offload::PlaneRole::kLo) != nullptr;
  zero::ValueCounts counts;
  for (uint64_t begin = 0; begin < tensor.elements; begin += buffer_.size()) {
    if (options_.stop_requested()) {
      return MakeError(ErrorCode::kCancelled, "interrupted: what was exported so far is removed");
    }
    if (options_.progress) options_.progress(written_, elements_);
    buffer_.resize(std::min<uint64_t>(kChunkElements, tensor.elements - begin));
    PENSTOCK_TRY(
        state_.ReadState(zero::StateKind::kMaster, tensor.module, tensor.index, begin, buffer_));
    counts.Add(buffer_);
    if (dtype_ == DType::kFloat16) PENSTOCK_TRY(CheckRange(tensor, begin, buffer_));
    if (take_hi) {
      for (float& value : buffer_) value = kernels::ToFloat(kernels::Split(value).hi);
    }
    PENSTOCK_TRY(writer.Append(buffer_));
    written_ += buffer_.size();
  }
  if (counts.not_finite + counts.large > 0) {
    faults_.push_back({.tensor = tensor.name,
                       .kind = zero::StateKind::kMaster,
                       .elements = tensor.elements,
                       .counts = counts});
  }
  return {};
}

Status Exporter::CheckRange(const ExportTensor& tensor, uint64_t begin,
                            std::span<const float> values) {
  const auto lost = std::ranges::find_if_not(values, kernels::FitsFloat16);
  if (lost == values.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "cannot export as fp16: element {} of tensor {} is {}, beyond fp16's largest "
                   "value of 65504; export as bf16 or fp32",
                   begin + static_cast<uint64_t>(lost - values.begin()), tensor.name, *lost);
}

}  // namespace

Result<ExportReport> ExportModel(zero::CommittedState& state, const ExportOptions& options) {
  std::optional<std::string> config;
  if (options.family != nullptr) {
    PENSTOCK_ASSIGN(config, MakeConfig(options));
  }
  const std::vector<Shard> shards = PlanShards(state.model(), options);
  ExportReport report;
  for (const Shard& shard : shards) {
    for (const ExportTensor& tensor : shard.tensors) report.elements += tensor.elements;
  }
  report.tensor_bytes = SizeOf(options.dtype) * report.elements;

  ExportFolder folder(options.folder);
  PENSTOCK_TRY(folder.Create());
  Exporter exporter(state, options, report.elements);
  for (const Shard& shard : shards) {
    PENSTOCK_TRY(exporter.Write(shard, folder.Path(shard.file)));
    folder.Add(folder.Path(shard.file));
  }
  const auto write_text = [&folder](const std::string& name, const std::string& text) -> Status {
    PENSTOCK_TRY(WriteTextFile(folder.Path(name), text, IfExists::kFail));
    folder.Add(folder.Path(name));
    return {};
  };
  if (shards.size() > 1) {
    PENSTOCK_TRY(
        write_text("model.safetensors.index.json", MakeIndex(shards, report.tensor_bytes)));
  }
  if (config) PENSTOCK_TRY(write_text("config.json", *config));
  report.files = folder.Keep();
  report.faults = exporter.TakeFaults();
  return report;
}

}  // namespace penstock::train
