#include "aio/uring_registrations.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <functional>

#include "base/check.h"

namespace penstock::aio {
namespace {

constexpr size_t kFileSlots = 64;
constexpr int kNoFile = -1;

const std::byte* Begin(const iovec& piece) { return static_cast<const std::byte*>(piece.iov_base); }

std::vector<iovec> CutIntoPieces(std::span<const std::span<std::byte>> memory) {
  std::vector<iovec> pieces;
  for (std::span<std::byte> rest : memory) {
    while (!rest.empty()) {
      const size_t size = std::min<size_t>(rest.size(), kMaxPiece.value);
      pieces.push_back({rest.data(), size});
      rest = rest.subspan(size);
    }
  }
  std::ranges::sort(pieces, std::less<>(), Begin);
  return pieces;
}

Bytes SizeOf(std::span<const std::span<std::byte>> memory) {
  Bytes size;
  for (const std::span<std::byte>& part : memory) size += Bytes{part.size()};
  return size;
}

Error CannotPin(Bytes size, int error_number) {
  rlimit limit{};
  const bool limited = error_number == ENOMEM && ::getrlimit(RLIMIT_MEMLOCK, &limit) == 0 &&
                       limit.rlim_cur != RLIM_INFINITY;
  if (!limited) {
    return MakeError(ErrorCode::kUnavailable, "registering {} with io_uring: {}", ToString(size),
                     ErrnoText(error_number));
  }
  return MakeError(ErrorCode::kUnavailable,
                   "registering {} with io_uring: the memlock limit of {} does not allow it; raise "
                   "it (ulimit -l, in KiB; LimitMEMLOCK= of a service, --ulimit memlock=-1 of a "
                   "container)",
                   ToString(size), ToString(Bytes{limit.rlim_cur}));
}

}  // namespace

UringRegistrations::UringRegistrations(io_uring* ring) : ring_(ring), files_(kFileSlots, kNoFile) {
  const bool made = io_uring_register_files(ring_, files_.data(), kFileSlots) == 0;
  if (!made) files_.clear();
}

Result<std::string> UringRegistrations::RegisterBuffers(
    std::span<const std::span<std::byte>> memory) {
  std::vector<iovec> pieces = CutIntoPieces(memory);
  const int result =
      io_uring_register_buffers(ring_, pieces.data(), static_cast<unsigned>(pieces.size()));
  if (result < 0) return CannotPin(SizeOf(memory), -result);
  pieces_ = std::move(pieces);
  return fmt::format("aio buffers are registered: {}, pieces: {}", ToString(SizeOf(memory)),
                     pieces_.size());
}

void UringRegistrations::AddFile(int fd) {
  if (fd < 0) return;
  // A number that is there already may stand for another file by now.
  const auto slot = std::ranges::find(files_, FileIndex(fd) ? fd : kNoFile);
  if (slot == files_.end()) return;
  const auto index = static_cast<size_t>(slot - files_.begin());
  if (io_uring_register_files_update(ring_, static_cast<unsigned>(index), &fd, 1) != 1) return;
  *slot = fd;
  files_end_ = std::max(files_end_, index + 1);
}

void UringRegistrations::RemoveFile(int fd) {
  const std::optional<int> index = FileIndex(fd);
  if (!index) return;
  int none = kNoFile;
  const int result = io_uring_register_files_update(ring_, static_cast<unsigned>(*index), &none, 1);
  PENSTOCK_CHECK(result == 1, "a registered file cannot be taken back: {}", ErrnoText(-result));
  files_[static_cast<size_t>(*index)] = kNoFile;
  while (files_end_ > 0 && files_[files_end_ - 1] == kNoFile) --files_end_;
}

std::optional<int> UringRegistrations::FileIndex(int fd) const {
  const auto used = std::span(files_).first(files_end_);
  const auto slot = std::ranges::find(used, fd);
  if (fd < 0 || slot == used.end()) return std::nullopt;
  return static_cast<int>(slot - used.begin());
}

std::optional<int> UringRegistrations::BufferIndex(std::span<const std::byte> data) const {
  const auto after = std::ranges::upper_bound(pieces_, data.data(), std::less<>(), Begin);
  if (after == pieces_.begin()) return std::nullopt;
  const iovec& piece = *std::prev(after);
  if (data.data() + data.size() > Begin(piece) + piece.iov_len) return std::nullopt;
  return static_cast<int>(std::prev(after) - pieces_.begin());
}

}  // namespace penstock::aio
