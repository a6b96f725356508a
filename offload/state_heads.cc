#include "offload/state_heads.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace penstock::offload {
namespace {

Error InFile(const OpenStateFile& file, const Error& error) {
  return MakeError(error.code, "state file {}: {}", file.path, error.message);
}

Result<Bytes> SizeOf(const OpenStateFile& file) {
  struct stat info {};
  if (::fstat(file.fd, &info) != 0) return ErrnoError(errno, "looking at " + file.path);
  return Bytes{static_cast<uint64_t>(info.st_size)};
}

Status CheckSize(const OpenStateFile& file, Bytes size, const StateGeometry& geometry) {
  if (size >= geometry.file_bytes) return {};
  return MakeError(ErrorCode::kCorruption,
                   "state file {} has {} bytes of the {} that it began with", file.path, size.value,
                   geometry.file_bytes.value);
}

Result<StateHeader> ReadFirst(const OpenStateFile& file) {
  std::vector<std::byte> head(kHeaderBytes.value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{}, head));
  const Result<Bytes> bytes = HeadBytes(head);
  if (!bytes.ok()) return InFile(file, bytes.error());
  PENSTOCK_ASSIGN(const Bytes size, SizeOf(file));
  if (*bytes > size) {
    return MakeError(ErrorCode::kCorruption, "state file {} is shorter than its head", file.path);
  }
  head.resize(bytes->value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{}, head));
  Result<StateHeader> header = DecodeHead(head);
  if (!header.ok()) return InFile(file, header.error());
  return header;
}

/// Found from the end of the file.
Result<StateHeader> ReadSecond(const OpenStateFile& file, Bytes size) {
  const Error none = MakeError(ErrorCode::kCorruption, "it has no second head at its end");
  if (size.value % kStateAlignment.value != 0 || size < kHeaderBytes) return none;
  std::vector<std::byte> head(kHeaderBytes.value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{(size - kHeaderBytes).value}, head));
  const Result<Bytes> bytes = HeadBytes(head);
  if (!bytes.ok() || *bytes > size) return none;
  head.resize(bytes->value);
  PENSTOCK_TRY(ReadAt(file, FileOffset{(size - *bytes).value}, head));
  PENSTOCK_ASSIGN(StateHeader header, DecodeHead(FirstHead(std::move(head))));
  if (header.geometry.whole_bytes() != size) return none;
  return header;
}

/// What a head that should be `expected` is instead; empty: nothing else.
std::string Damage(const OpenStateFile& file, const char* which, FileOffset begin,
                   const std::vector<std::byte>& expected) {
  std::vector<std::byte> found(expected.size());
  const Status read = ReadAt(file, begin, found);
  if (!read.ok()) return fmt::format("the {} head: {}", which, read.error().message);
  const auto at = std::ranges::mismatch(found, expected).in1;
  if (at == found.end()) return {};
  return fmt::format("the {} head, {} at offset {}: it is not what was written there", which,
                     file.path, begin.value + static_cast<uint64_t>(at - found.begin()));
}

}  // namespace

Status ReadAt(const OpenStateFile& file, FileOffset offset, std::span<std::byte> bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::pread(file.fd, bytes.data() + done, bytes.size() - done,
                              static_cast<off_t>(offset.value + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return ErrnoError(errno,
                        fmt::format("reading {} at offset {}", file.path, offset.value + done));
    }
    if (n == 0) {
      return MakeError(ErrorCode::kCorruption,
                       "state file {} ends at offset {}, inside what its header names", file.path,
                       offset.value + done);
    }
    done += static_cast<size_t>(n);
  }
  return {};
}

Result<FoundHead> FindHead(const OpenStateFile& file, Finished finished) {
  PENSTOCK_ASSIGN(const Bytes size, SizeOf(file));
  if (size == 0_B) {
    return MakeError(ErrorCode::kCorruption,
                     "state file {} is empty: nothing was ever written to it, or something has "
                     "truncated it; restore it from a copy, if there is one",
                     file.path);
  }
  const Result<StateHeader> first = ReadFirst(file);
  if (first.ok()) {
    PENSTOCK_TRY(CheckSize(file, size, first->geometry));
    return FoundHead{*first, {}};
  }
  Error why = first.error();
  if (finished == Finished::kYes && why.code == ErrorCode::kNotFound) {
    why = MakeError(ErrorCode::kCorruption,
                    "state file {} has lost its header: it begins like one that was never finished",
                    file.path);
  }
  if (!IsReadDamage(why)) return why;
  Result<StateHeader> second = ReadSecond(file, size);
  if (!second.ok()) {
    return MakeError(why.code, "{}; nor can its second head be used: {}", why.message,
                     second.error().message);
  }
  std::string notice = fmt::format(
      "{}; its second head at offset {} holds and is used, and --resume writes the "
      "first one again",
      why.message, second->geometry.second_head().value);
  return FoundHead{*std::move(second), std::move(notice)};
}

Result<FoundHead> HeadFromSibling(const OpenStateFile& file, const StateHeader& sibling,
                                  uint32_t path, const Error& why) {
  PENSTOCK_ASSIGN(const Bytes size, SizeOf(file));
  StateHeader header = HeaderOfPath(sibling, path);
  if (size < header.geometry.file_bytes) return why;
  return FoundHead{std::move(header),
                   fmt::format("{}; its head is made from that of another path of the state, and "
                               "--resume writes it again",
                               why.message)};
}

std::vector<std::string> HeadDamages(const OpenStateFile& file, const StateHeader& header) {
  const Result<Bytes> size = SizeOf(file);
  if (!size.ok()) return {size.error().message};
  std::vector<std::string> damages;
  const auto add = [&](std::string damage) {
    if (!damage.empty()) damages.push_back(std::move(damage));
  };
  std::vector<std::byte> head = EncodeHead(header);
  add(Damage(file, "first", FileOffset{}, head));
  if (*size == header.geometry.file_bytes) return damages;
  add(Damage(file, "second", header.geometry.second_head(), SecondHead(std::move(head))));
  return damages;
}

}  // namespace penstock::offload
