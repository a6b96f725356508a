#include "aio/forgetful_drive.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "aio/block_transfer.h"
#include "base/random.h"

namespace penstock::aio {
namespace {

// Apart from the sequences of FaultDrive, which has the same seed.
constexpr uint64_t kEndStream = 3;
constexpr uint64_t kLossStream = 4;

/// 0 or a negative errno.
int64_t WriteAll(int fd, uint64_t offset, std::span<std::byte> data) {
  while (!data.empty()) {
    const int64_t result = Transfer(
        {.operation = Operation::kWrite, .fd = fd, .offset = FileOffset{offset}, .data = data});
    if (result == -EINTR) continue;
    if (result <= 0) return result < 0 ? result : -EIO;
    data = data.subspan(static_cast<size_t>(result));
    offset += static_cast<uint64_t>(result);
  }
  return 0;
}

}  // namespace

ForgetfulDrive::ForgetfulDrive(std::unique_ptr<Drive> base, const FaultPlan& plan, int queue_depth)
    : LayeredDrive(std::move(base)),
      seed_(plan.seed),
      crash_at_block_(plan.crash_at_block),
      crash_at_sync_(plan.crash_at_sync),
      in_base_(static_cast<size_t>(queue_depth)) {}

ForgetfulDrive::~ForgetfulDrive() { Forget(); }

ForgetfulDrive::CachedFile* ForgetfulDrive::Find(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return nullptr;
  CachedFile& file = files_[{info.st_dev, info.st_ino}];
  if (!file.fd.valid()) {
    // Opened anew, without O_DIRECT: what is written at the end may begin and end anywhere.
    const std::string path = "/proc/self/fd/" + std::to_string(fd);
    file.fd = UniqueFd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  }
  return &file;
}

void ForgetfulDrive::Submit(const BlockOperation& block) {
  if (CrashesAt(block)) {
    Forget();
    crashed_ = true;
  }
  if (crashed_) {
    ready_.push_back({block.slot, -EIO});
    return;
  }
  if (block.operation == Operation::kWrite) {
    ready_.push_back({block.slot, Keep(block)});
    return;
  }
  if (block.operation == Operation::kSync) {
    const int64_t result = Flush(block.fd);
    if (result < 0) {
      LoseSome(block.fd);
      ready_.push_back({block.slot, result});
      return;
    }
  }
  if (block.operation == Operation::kRead) ++reads_in_base_;
  in_base_[block.slot] = block;
  base().Submit(block);
}

bool ForgetfulDrive::CrashesAt(const BlockOperation& block) {
  const bool at_block = crash_at_block_ == blocks_++;
  const bool at_sync = block.operation == Operation::kSync && crash_at_sync_ == syncs_++;
  return at_block || at_sync;
}

int64_t ForgetfulDrive::Keep(const BlockOperation& block) {
  CachedFile* file = Find(block.fd);
  const int flags = ::fcntl(block.fd, F_GETFL);
  if (file == nullptr || flags < 0 || (flags & O_ACCMODE) == O_RDONLY) return -EBADF;
  file->writes.push_back({.sequence = next_sequence_++,
                          .offset = block.offset.value,
                          .data = {block.data.begin(), block.data.end()},
                          .alignment = block.alignment});
  return static_cast<int64_t>(block.data.size());
}

int64_t ForgetfulDrive::Flush(int fd) {
  CachedFile* file = Find(fd);
  if (file == nullptr) return -EBADF;
  for (Write& write : file->writes) {
    if (!IsCovered(write)) continue;
    const int64_t result = WriteAll(file->fd.get(), write.offset, write.data);
    if (result < 0) return result;
    write.flushed = has_flushed_ = true;
  }
  DropFlushed();
  return 0;
}

void ForgetfulDrive::DropFlushed() {
  // A read that the base drive has may have seen the file as it was before.
  if (reads_in_base_ > 0 || !has_flushed_) return;
  for (auto& [id, file] : files_) std::erase_if(file.writes, &Write::flushed);
  has_flushed_ = false;
}

void ForgetfulDrive::LoseSome(int fd) {
  CachedFile* file = Find(fd);
  if (file == nullptr) return;
  std::erase_if(file->writes, [&](const Write& write) {
    return IsCovered(write) && Philox(seed_, kLossStream, loss_draws_++)[0] % 2 == 0;
  });
}

int64_t ForgetfulDrive::Overlay(const BlockOperation& read, int64_t result) {
  CachedFile* file = Find(read.fd);
  if (file == nullptr || result < 0) return result;
  const uint64_t begin = read.offset.value;
  const uint64_t end = begin + read.data.size();
  uint64_t found = begin + static_cast<uint64_t>(result);
  // A write beyond the end of the file makes it longer, with zeros in between.
  for (const Write& write : file->writes) {
    const uint64_t longer = std::min(end, write.offset + write.data.size());
    if (longer <= found) continue;
    std::memset(read.data.data() + (found - begin), 0, longer - found);
    found = longer;
  }
  for (const Write& write : file->writes) {
    const uint64_t from = std::max(begin, write.offset);
    const uint64_t to = std::min(end, write.offset + write.data.size());
    if (from >= to) continue;
    std::memcpy(read.data.data() + (from - begin), write.data.data() + (from - write.offset),
                to - from);
  }
  return static_cast<int64_t>(found - begin);
}

void ForgetfulDrive::Reap(bool wait, std::vector<BlockResult>& results) {
  std::vector<BlockResult> from_base;
  base().Reap(wait && ready_.empty(), from_base);
  for (BlockResult& result : from_base) {
    const BlockOperation& block = in_base_[result.slot];
    if (block.operation != Operation::kRead) continue;
    result.result = Overlay(block, result.result);
    --reads_in_base_;
  }
  DropFlushed();
  results.insert(results.end(), from_base.begin(), from_base.end());
  results.insert(results.end(), ready_.begin(), ready_.end());
  ready_.clear();
  reported_ = next_sequence_;
}

void ForgetfulDrive::Forget() {
  uint64_t draws = 0;
  const auto draw = [&](uint64_t below) { return Philox(seed_, kEndStream, draws++)[0] % below; };
  for (auto& [id, file] : files_) {
    std::erase_if(file.writes, &Write::flushed);
    for (std::vector<Write>& writes = file.writes; !writes.empty(); writes.pop_back()) {
      std::swap(writes[draw(writes.size())], writes.back());
      Write& write = writes.back();
      const Bytes size{write.data.size()};
      Bytes kept = size;
      const uint64_t fate = draw(3);  // lost, torn or whole
      if (fate == 0) continue;
      if (fate == 1) kept = write.alignment * draw(size / write.alignment + 1);
      // Errors at the end of a drive cannot be reported.
      (void)WriteAll(file.fd.get(), write.offset, std::span(write.data).first(kept.value));
    }
  }
}

}  // namespace penstock::aio
