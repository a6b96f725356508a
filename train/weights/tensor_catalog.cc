#include "train/weights/tensor_catalog.h"

#include <algorithm>
#include <set>
#include <utility>

#include "train/models/registry.h"

namespace penstock::train {

Result<TensorCatalog> TensorCatalog::Open(const SafetensorsSet& set, const TensorNames& names) {
  TensorCatalog catalog;
  PENSTOCK_TRY(catalog.OpenFiles(set));
  PENSTOCK_TRY(catalog.AddAll(names));
  return catalog;
}

Result<TensorCatalog> TensorCatalog::Open(const SafetensorsSet& set) {
  TensorCatalog catalog;
  PENSTOCK_TRY(catalog.OpenFiles(set));
  std::vector<std::string_view> stored;
  for (const SafetensorsReader& file : catalog.files_) {
    for (const auto& [name, entry] : file.entries()) stored.emplace_back(name);
  }
  PENSTOCK_TRY(catalog.AddAll(GuessFamily(stored).names()));
  return catalog;
}

Status TensorCatalog::OpenFiles(const SafetensorsSet& set) {
  PENSTOCK_CHECK(!set.files.empty());
  files_.reserve(set.files.size());
  for (const std::string& path : set.files) {
    PENSTOCK_ASSIGN(SafetensorsReader reader, SafetensorsReader::Open(path));
    files_.push_back(std::move(reader));
  }
  for (const SafetensorsIndex& index : set.indices) PENSTOCK_TRY(CheckIndex(index));
  return {};
}

Status TensorCatalog::AddAll(const TensorNames& names) {
  names_ = &names;
  for (const SafetensorsReader& file : files_) PENSTOCK_TRY(Add(file));
  if (places_.find(names.embedding) != places_.end()) return {};
  const auto tied = places_.find(names.head);
  if (tied == places_.end()) return {};
  auto head = places_.extract(tied);
  head.key() = names.embedding;
  places_.insert(std::move(head));
  return {};
}

Status TensorCatalog::Add(const SafetensorsReader& file) {
  for (const auto& [name, entry] : file.entries()) {
    const std::string plain(names_->Plain(name));
    if (names_->is_constant != nullptr && names_->is_constant(plain)) continue;
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
