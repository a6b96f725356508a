#include "aio/probe_file.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>

#include "base/check.h"
#include "base/random.h"

namespace penstock::aio {
namespace {

constexpr uint64_t kDataSeed = 2;
constexpr Bytes kFillBlock = 1_MiB;

Result<File> CreateUnnamed(const std::string& folder) {
  const std::filesystem::path path =
      std::filesystem::path(folder) / fmt::format("penstock-tune-{}.tmp", ::getpid());
  // A file of this name is what a process with our number left that was killed before it had
  // unlinked it.
  ::unlink(path.c_str());
  PENSTOCK_ASSIGN(File file, File::Open(path, {.create = true, .writable = true}));
  if (::unlink(path.c_str()) != 0) {
    return ErrnoError(errno, fmt::format("removing {}", path.string()));
  }
  return file;
}

}  // namespace

Result<ProbeFile> ProbeFile::Create(const std::string& folder, Bytes size, Bytes buffer_bytes) {
  ProbeFile probe;
  probe.size_ = size;
  PENSTOCK_ASSIGN(probe.file_, CreateUnnamed(folder));
  PENSTOCK_TRY(probe.file_.Allocate(size));
  PENSTOCK_ASSIGN(probe.buffers_, Mapping::Create(buffer_bytes));
  FillRandom(kDataSeed, probe.buffers());
  return probe;
}

Result<ProbeFile> ProbeFile::Open(const std::string& path, bool direct, Bytes buffer_bytes) {
  ProbeFile probe;
  PENSTOCK_ASSIGN(probe.file_, File::Open(path, {.writable = true, .direct = direct}));
  PENSTOCK_ASSIGN(probe.size_, probe.file_.Size());
  PENSTOCK_ASSIGN(probe.buffers_, Mapping::Create(buffer_bytes));
  FillRandom(kDataSeed, probe.buffers());
  return probe;
}

Status ProbeFile::Fill(const EngineOptions& options, Seconds time, const StopRequested& stop) {
  PENSTOCK_ASSIGN(const std::unique_ptr<Engine> engine, CreateEngine(options));
  const auto depth = static_cast<int>(std::min<uint64_t>(buffers_.size() / kFillBlock, 32));
  PENSTOCK_CHECK(depth > 0, "{} bytes of buffers", buffers_.size().value);
  const Pass pass = {.block_size = kFillBlock,
                     .queue_depth = depth,
                     .direction = Direction::kWrite,
                     .limit = {.bytes = size_, .time = time}};
  PENSTOCK_ASSIGN(const ClosedLoop::Outcome outcome, Run(*engine, pass, stop));
  if (stop()) return MakeError(ErrorCode::kCancelled, "interrupted");
  if (outcome.moved < size_) {
    return MakeError(ErrorCode::kUnavailable, "{}: the drive took {} of {} in {:.0f} s",
                     file_.path(), ToString(outcome.moved), ToString(size_),
                     outcome.elapsed.count());
  }
  return engine->Sync(file_);
}

Result<ClosedLoop::Outcome> ProbeFile::Run(Engine& engine, const Pass& pass,
                                           const StopRequested& stop) {
  ClosedLoop loop({.engine = &engine,
                   .file = &file_,
                   .size = size_,
                   .position = position_,
                   .buffers = buffers(),
                   .block_size = pass.block_size,
                   .queue_depth = pass.queue_depth,
                   .direction = pass.direction,
                   .limit = pass.limit,
                   .stop = stop});
  PENSTOCK_ASSIGN(ClosedLoop::Outcome outcome, loop.Run());
  position_ += outcome.moved;
  written_ += outcome.written;
  return outcome;
}

}  // namespace penstock::aio
