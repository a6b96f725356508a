#include "train/tune_file.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <utility>

#include "base/random.h"
#include "train/tune_loop.h"

namespace penstock::train {
namespace {

constexpr uint64_t kDataSeed = 2;
constexpr Bytes kFillBlock = 1_MiB;

Result<aio::File> CreateUnnamed(const std::string& folder) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(folder, ignored)) {
    return MakeError(ErrorCode::kNotFound,
                     "--nvme-path {}: there is no such folder; create it, or name one on the drive "
                     "to measure",
                     folder);
  }
  const std::filesystem::path path =
      std::filesystem::path(folder) / fmt::format("penstock-tune-{}.tmp", ::getpid());
  PENSTOCK_ASSIGN(aio::File file, aio::File::Open(path, {.create = true, .writable = true}));
  if (::unlink(path.c_str()) != 0)
    return ErrnoError(errno, fmt::format("removing {}", path.string()));
  return file;
}

}  // namespace

Result<TuneFile> TuneFile::Create(const std::string& folder, Bytes size, Bytes buffer_bytes) {
  TuneFile tune;
  tune.size_ = size;
  PENSTOCK_ASSIGN(tune.file_, CreateUnnamed(folder));
  PENSTOCK_TRY(tune.file_.Allocate(size));
  PENSTOCK_ASSIGN(tune.buffers_, Mapping::Create(buffer_bytes));
  FillRandom(kDataSeed, tune.buffers());
  return tune;
}

Result<TuneFile> TuneFile::Open(const std::string& path, bool direct, Bytes buffer_bytes) {
  TuneFile tune;
  PENSTOCK_ASSIGN(tune.file_, aio::File::Open(path, {.writable = true, .direct = direct}));
  PENSTOCK_ASSIGN(tune.size_, tune.file_.Size());
  PENSTOCK_ASSIGN(tune.buffers_, Mapping::Create(buffer_bytes));
  FillRandom(kDataSeed, tune.buffers());
  return tune;
}

Status TuneFile::Fill(aio::Engine& engine, const StopRequested& stop) {
  const auto depth = static_cast<int>(std::min<uint64_t>(buffers_.size() / kFillBlock, 32));
  PENSTOCK_CHECK(depth > 0, "{} bytes of buffers", buffers_.size().value);
  ClosedLoop loop({.engine = &engine,
                   .file = this,
                   .block_size = kFillBlock,
                   .queue_depth = depth,
                   .direction = Direction::kWrite,
                   .limit = {.bytes = size_, .time = Seconds::max()},
                   .stop = stop});
  PENSTOCK_TRY(loop.Run().status());
  if (stop()) return MakeError(ErrorCode::kCancelled, "interrupted");
  return engine.Sync(file_);
}

}  // namespace penstock::train
