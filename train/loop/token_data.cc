#include "train/loop/token_data.h"

#include <xxhash.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBufferBytes = size_t{64} << 10;
constexpr uint64_t kMaxBytes = uint64_t{1} << 63;       // of a folder: no sum comes near 2^64
constexpr uint64_t kMaxVocabulary = uint64_t{1} << 31;  // tokens are int32

constexpr uint64_t kFingerprintPieces = 64;
constexpr uint64_t kFingerprintTokens = 16384;

/// `bytes` holds the tokens that start at `position`, little-endian and `width` bytes each.
Status Decode(std::span<const std::byte> bytes, size_t width, uint64_t position,
              uint64_t vocabulary, const std::string& path, std::span<int32_t> tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    uint32_t token = 0;
    for (size_t b = 0; b < width; ++b) {
      token |= std::to_integer<uint32_t>(bytes[i * width + b]) << (8 * b);
    }
    if (token >= vocabulary) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "token {} at position {} of {} is outside the model's vocabulary of {}; "
                       "tokenize the data for this model or take a model with a larger vocab_size",
                       token, position + i, path, vocabulary);
    }
    tokens[i] = static_cast<int32_t>(token);
  }
  return {};
}

/// Reads tokens [begin, begin + tokens.size()) of one file through a bounded buffer.
Status ReadTokens(const InputFile& file, size_t width, uint64_t begin, uint64_t vocabulary,
                  std::span<int32_t> tokens) {
  PENSTOCK_CHECK(vocabulary <= kMaxVocabulary);
  std::vector<std::byte> buffer(std::min(tokens.size() * width, kBufferBytes));
  while (!tokens.empty()) {
    const size_t count = std::min(tokens.size(), kBufferBytes / width);
    const auto bytes = std::span(buffer).first(count * width);
    PENSTOCK_TRY(file.Read(FileOffset{begin * width}, bytes));
    PENSTOCK_TRY(Decode(bytes, width, begin, vocabulary, file.path(), tokens.first(count)));
    begin += count;
    tokens = tokens.subspan(count);
  }
  return {};
}

/// One file: bytes, uint16 or uint32 by its name.
class FileTokens final : public TokenData {
 public:
  FileTokens(InputFile file, size_t width)
      : file_(std::move(file)), width_(width), size_(file_.size().value / width) {}

  const std::string& path() const override { return file_.path(); }
  uint64_t size() const override { return size_; }
  Status Read(uint64_t begin, uint64_t vocabulary, std::span<int32_t> tokens) override {
    PENSTOCK_CHECK(begin <= size_ && tokens.size() <= size_ - begin);
    return ReadTokens(file_, width_, begin, vocabulary, tokens);
  }

 private:
  InputFile file_;
  size_t width_;
  uint64_t size_;
};

/// The files of a folder, joined: each is followed by a zero byte.
class FolderTokens final : public TokenData {
 public:
  struct Part {
    std::string path;
    uint64_t begin;  ///< token index of its first byte
    uint64_t bytes;
  };

  /// `parts` is in order, without gaps but for the zero byte after each, and not empty.
  FolderTokens(std::string path, std::vector<Part> parts)
      : path_(std::move(path)),
        parts_(std::move(parts)),
        size_(parts_.back().begin + parts_.back().bytes + 1) {}

  const std::string& path() const override { return path_; }
  uint64_t size() const override { return size_; }
  Status Read(uint64_t begin, uint64_t vocabulary, std::span<int32_t> tokens) override;

 private:
  Result<const InputFile*> OpenPart(size_t index);

  std::string path_;
  std::vector<Part> parts_;
  uint64_t size_;
  std::optional<InputFile> open_;  ///< the part that was read last
  size_t open_index_ = 0;
};

Status FolderTokens::Read(uint64_t begin, uint64_t vocabulary, std::span<int32_t> tokens) {
  PENSTOCK_CHECK(begin <= size_ && tokens.size() <= size_ - begin && vocabulary > 0);
  const auto after =
      std::upper_bound(parts_.begin(), parts_.end(), begin,
                       [](uint64_t position, const Part& part) { return position < part.begin; });
  for (auto part = after - 1; !tokens.empty(); ++part) {
    const uint64_t within = begin - part->begin;
    const size_t count = std::min<uint64_t>(tokens.size(), part->bytes - within);
    if (count > 0) {
      PENSTOCK_ASSIGN(const InputFile* const file,
                      OpenPart(static_cast<size_t>(part - parts_.begin())));
      PENSTOCK_TRY(ReadTokens(*file, 1, within, vocabulary, tokens.first(count)));
    }
    if (count < tokens.size()) tokens[count] = 0;
    const size_t taken = std::min(tokens.size(), count + 1);
    begin += taken;
    tokens = tokens.subspan(taken);
  }
  return {};
}

Result<const InputFile*> FolderTokens::OpenPart(size_t index) {
  if (!open_ || open_index_ != index) {
    open_.reset();
    PENSTOCK_ASSIGN(InputFile file, InputFile::Open(parts_[index].path));
    if (file.size().value != parts_[index].bytes) {
      return MakeError(ErrorCode::kIo,
                       "{} has {} bytes and had {} when training began; data must not change",
                       file.path(), file.size().value, parts_[index].bytes);
    }
    open_.emplace(std::move(file));
    open_index_ = index;
  }
  return &*open_;
}

/// Every regular file below `folder` that is neither hidden nor below a hidden folder nor a link.
Result<std::vector<std::string>> ListFiles(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, error);
  std::string at = folder;
  for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
    at = it->path().string();
    const bool hidden = it->path().filename().string().starts_with('.');
    const fs::file_status status = it->symlink_status(error);
    if (error) break;
    if (hidden) {
      it.disable_recursion_pending();
    } else if (fs::is_regular_file(status)) {
      paths.push_back(at);
    }
  }
  if (error) return ErrnoError(error.value(), fmt::format("cannot list data folder {}", at));
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<std::unique_ptr<TokenData>> OpenFolder(const std::string& folder) {
  PENSTOCK_ASSIGN(std::vector<std::string> paths, ListFiles(folder));
  std::vector<FolderTokens::Part> parts;
  uint64_t begin = 0;
  for (std::string& path : paths) {
    std::error_code error;
    const uint64_t bytes = fs::file_size(path, error);
    if (error) return ErrnoError(error.value(), fmt::format("cannot examine data file {}", path));
    if (bytes >= kMaxBytes - begin) {
      return MakeError(ErrorCode::kInvalidArgument,
                       "data folder {} is too large: with {} its files have more than 2^63 bytes; "
                       "name a part of it",
                       folder, path);
    }
    parts.push_back({std::move(path), begin, bytes});
    begin += bytes + 1;
  }
  if (begin == parts.size()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "data folder {} is empty: {} (hidden files and links are left out)", folder,
                     parts.empty() ? "there is no file below it" : "all its files are empty");
  }
  return std::unique_ptr<TokenData>(new FolderTokens(folder, std::move(parts)));
}

size_t TokenWidth(const std::string& path) {
  if (path.ends_with(".bin")) return 2;
  return path.ends_with(".u32") ? 4 : 1;
}

}  // namespace

Result<std::unique_ptr<TokenData>> TokenData::Open(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return OpenFolder(path);
  PENSTOCK_ASSIGN(InputFile file, InputFile::Open(path));
  if (file.size().value == 0) {
    return MakeError(ErrorCode::kInvalidArgument, "data file {} is empty", path);
  }
  const size_t width = TokenWidth(path);
  if (file.size().value % width != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "data file {} has {} bytes, which is no multiple of {} (little-endian uint{} "
                     "tokens, as its name says); it is cut off or not what its name says",
                     path, file.size().value, width, 8 * width);
  }
  return std::unique_ptr<TokenData>(new FileTokens(std::move(file), width));
}

Result<uint64_t> Fingerprint(TokenData& data, uint64_t vocabulary) {
  uint64_t hash = XXH3_64bits_withSeed(nullptr, 0, data.size());
  const uint64_t stride = std::max(kFingerprintTokens, data.size() / kFingerprintPieces);
  std::vector<int32_t> tokens;
  for (uint64_t begin = 0; begin < data.size(); begin += stride) {
    tokens.resize(std::min(kFingerprintTokens, data.size() - begin));
    PENSTOCK_TRY(data.Read(begin, vocabulary, tokens));
    hash = XXH3_64bits_withSeed(tokens.data(), tokens.size() * sizeof(int32_t), hash);
  }
  return hash;
}

}  // namespace penstock::train
