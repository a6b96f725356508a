#include "offload/state_file.h"

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/check.h"
#include "base/folder.h"
#include "base/mapping.h"

namespace penstock::offload {
namespace {

constexpr Bytes kFormatAlignment = 4_KiB;
constexpr auto kLockPatience = std::chrono::seconds(5);
constexpr auto kLockInterval = std::chrono::milliseconds(50);

Result<Uuid> RandomUuid() {
  Uuid uuid{};
  if (::getrandom(uuid.data(), uuid.size(), 0) != static_cast<ssize_t>(uuid.size())) {
    return ErrnoError(errno, "reading random bytes for a UUID");
  }
  return uuid;
}

Result<aio::File> OpenFile(const StateFileOptions& options, const std::string& path) {
  if (options.simulated) {
    UniqueFd fd(::memfd_create("penstock-state", MFD_CLOEXEC));
    if (!fd.valid()) return ErrnoError(errno, "creating a simulated drive in memory");
    return aio::File::Adopt(std::move(fd), "simulated drive", kFormatAlignment);
  }
  aio::File::OpenOptions open{.create = true, .writable = true, .direct = true};
  auto file = aio::File::Open(path, open);
  if (file.ok() || options.require_direct || file.error().code != ErrorCode::kUnavailable) {
    return file;
  }
  open.direct = false;
  return aio::File::Open(path, open);
}

}  // namespace

std::string ToString(const Uuid& uuid) {
  std::string text;
  for (uint8_t byte : uuid) text += fmt::format("{:02x}", byte);
  return text;
}

Status LockFile(int fd, bool exclusive, const std::string& path) {
  const auto deadline = std::chrono::steady_clock::now() + kLockPatience;
  while (::flock(fd, (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ErrnoError(errno, "locking " + path);
    if (std::chrono::steady_clock::now() >= deadline) {
      return MakeError(ErrorCode::kUnavailable,
                       "state file {} is in use by another process; wait for it or stop it", path);
    }
    std::this_thread::sleep_for(kLockInterval);
  }
  return {};
}

StateFile::StateFile(aio::File file, StateHeader header, bool simulated, aio::Engine& engine)
    : file_(std::move(file)),
      header_(std::move(header)),
      engine_(engine),
      simulated_(simulated),
      committed_slot_(header_.layout.tiles.size(), -1) {}

Result<std::unique_ptr<StateFile>> StateFile::Create(const Layout& layout,
                                                     const StateFileOptions& options,
                                                     aio::Engine& engine) {
  PENSTOCK_ASSIGN(const Uuid uuid, RandomUuid());
  const std::string path = fmt::format("{}/penstock-{}.state", options.folder, ToString(uuid));
  PENSTOCK_ASSIGN(aio::File file, OpenFile(options, path));
  const Bytes drive_alignment = file.alignment();
  std::unique_ptr<StateFile> state(new StateFile(
      std::move(file), PlanState(uuid, layout, kFormatAlignment, options.durable ? 2 : 1),
      options.simulated, engine));
  engine.RegisterFile(state->file_);
  if (drive_alignment > kFormatAlignment) {
    return MakeError(
        ErrorCode::kUnavailable,
        "{} asks for I/O in units of {} bytes, and this version writes in units of {}; "
        "use another drive",
        options.folder, drive_alignment.value, kFormatAlignment.value);
  }
  PENSTOCK_TRY(LockFile(state->file_.fd(), true, path));
  PENSTOCK_TRY(state->file_.Allocate(state->header_.geometry.file_bytes));
  PENSTOCK_TRY(state->WriteHead());
  if (!options.simulated) PENSTOCK_TRY(SyncFolder(options.folder));
  return state;
}

StateFile::~StateFile() {
  engine_.UnregisterFile(file_);
  if (sequence_ == 0 && !simulated_) ::unlink(file_.path().c_str());
}

FileOffset StateFile::WeightOffset(TileId tile, int slot) const {
  return header_.geometry.weights_offset[slot] + header_.tiles[Index(tile)].weight;
}

FileOffset StateFile::RecordOffset(TileId tile, int slot) const {
  return header_.geometry.records_offset[slot] + header_.tiles[Index(tile)].record;
}

int StateFile::WriteSlot(TileId tile) const {
  const int committed = committed_slot_[Index(tile)];
  if (slots() == 1 || committed < 0) return 0;
  return 1 - committed;
}

Status StateFile::WriteAligned(FileOffset offset, const std::vector<std::byte>& bytes) {
  const Bytes size = AlignUp(Bytes{bytes.size()}, header_.geometry.alignment);
  PENSTOCK_ASSIGN(const Mapping buffer, Mapping::Create(size));
  std::memcpy(buffer.data(), bytes.data(), bytes.size());
  return engine_
      .Submit({.operation = aio::Operation::kWrite,
               .file = &file_,
               .offset = offset,
               .buffer = {buffer.data(), size.value},
               .priority = aio::Priority::kWriteBack})
      .Wait();
}

Status StateFile::WriteHead() {
  const StateGeometry& plan = header_.geometry;
  std::vector<std::byte> head = EncodeHead(header_);
  const std::vector<std::byte> header(head.begin(),
                                      head.begin() + static_cast<ptrdiff_t>(plan.alignment.value));
  head.erase(head.begin(), head.begin() + static_cast<ptrdiff_t>(plan.alignment.value));
  PENSTOCK_TRY(WriteAligned(plan.layout_offset, head));
  for (FileOffset offset : plan.commit_offset) {
    PENSTOCK_TRY(WriteAligned(offset, std::vector<std::byte>(plan.commit_bytes.value)));
  }
  PENSTOCK_TRY(engine_.Sync(file_));
  PENSTOCK_TRY(WriteAligned(FileOffset{}, header));
  return engine_.Sync(file_);
}

Status StateFile::PrepareWrites() {
  if (!failure_.ok() || slots() == 2 || !commit_stands_) return failure_;
  for (FileOffset offset : header_.geometry.commit_offset) {
    PENSTOCK_TRY(WriteAligned(offset, std::vector<std::byte>(header_.geometry.commit_bytes.value)));
  }
  PENSTOCK_TRY(engine_.Sync(file_));
  commit_stands_ = false;
  return {};
}

Status StateFile::Commit(CommitRecord record) {
  if (failure_.ok()) failure_ = WriteCommit(std::move(record));
  return failure_;
}

Status StateFile::WriteCommit(CommitRecord record) {
  PENSTOCK_CHECK(record.tiles.size() == header_.layout.tiles.size());
  if (record.json.size() > kCommitJsonLimit.value) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the run's description has {} bytes, a commit holds {}; shorten the model's "
                     "config.json",
                     record.json.size(), kCommitJsonLimit.value);
  }
  PENSTOCK_TRY(engine_.Sync(file_));
  record.sequence = sequence_ + 1;
  PENSTOCK_TRY(WriteAligned(header_.geometry.commit_offset[record.sequence % 2],
                            EncodeCommit(header_.uuid, record)));
  PENSTOCK_TRY(engine_.Sync(file_));
  sequence_ = record.sequence;
  commit_stands_ = true;
  for (size_t i = 0; i < record.tiles.size(); ++i) {
    committed_slot_[i] = static_cast<int>(record.tiles[i].slot);
  }
  return {};
}

}  // namespace penstock::offload
