#include "train/tensor_catalog.h"

#include <algorithm>
#include <set>
#include <utility>

namespace penstock::train {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr char kEmbedding[] = "wte.weight";

/// "h.N.attn.bias" and "h.N.attn.masked_bias".
bool IsMask(std::string_view name) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view rest = name.substr(digits);
  return digits > 0 && (rest == ".attn.bias" || rest == ".attn.masked_bias");
}

}  // namespace

std::string_view WithoutPrefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

Result<TensorCatalog> TensorCatalog::Open(const SafetensorsSet& set) {
  PENSTOCK_CHECK(!set.files.empty());
  TensorCatalog catalog;
  catalog.files_.reserve(set.files.size());
  for (const std::string& path : set.files) {
    PENSTOCK_ASSIGN(SafetensorsReader reader, SafetensorsReader::Open(path));
    catalog.files_.push_back(std::move(reader));
  }
  for (const SafetensorsIndex& index : set.indices) PENSTOCK_TRY(catalog.CheckIndex(index));
  for (const SafetensorsReader& file : catalog.files_) PENSTOCK_TRY(catalog.Add(file));
  if (!catalog.places_.contains(kEmbedding) && catalog.places_.contains(kTiedHead)) {
    auto head = catalog.places_.extract(kTiedHead);
    head.key() = kEmbedding;
    catalog.places_.insert(std::move(head));
  }
  return catalog;
}

Status TensorCatalog::Add(const SafetensorsReader& file) {
  for (const auto& [name, entry] : file.entries()) {
    const std::string plain(WithoutPrefix(name));
    if (IsMask(plain)) continue;
    const auto [at, inserted] = places_.emplace(plain, Place{&file, &name, &entry});
    if (inserted) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} is in {} as {} and in {} as {}; keep one of them", plain,
                     at->second.file->path(), *at->second.name, file.path(), name);
  }
  return {};
}

Status TensorCatalog::CheckIndex(const SafetensorsIndex& index) const {
  std::set<std::string, std::less<>> named;
  for (const auto& [tensor, path] : index.file_of) named.insert(path);
  for (const auto& [tensor, path] : index.file_of) {
    const auto file = std::find_if(files_.begin(), files_.end(), [&name = path](const auto& each) {
      return each.path() == name;
    });
    PENSTOCK_CHECK(file != files_.end(), "{}", path);
    if (file->entries().contains(tensor)) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} says that tensor {} is in {}, which does not hold it; the files do not "
                     "belong together",
                     index.path, tensor, path);
  }
  for (const SafetensorsReader& file : files_) {
    if (!named.contains(file.path())) continue;
    for (const auto& [tensor, entry] : file.entries()) {
      if (index.file_of.contains(tensor)) continue;
      return MakeError(ErrorCode::kInvalidArgument,
                       "{} holds tensor {}, which {} does not name; the files do not belong "
                       "together",
                       file.path(), tensor, index.path);
    }
  }
  return {};
}

std::string TensorCatalog::FileNames() const {
  if (files_.size() == 1) return files_.front().path();
  return fmt::format("{} and {} more files", files_.front().path(), files_.size() - 1);
}

}  // namespace penstock::train
