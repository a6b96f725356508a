#include "base/mapping.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>
#include <vector>

#include "base/check.h"

namespace penstock {
namespace {

constexpr Bytes kPage = 4_KiB;

}  // namespace

Result<Mapping> Mapping::Map(Bytes size, int flags, int fd) {
  Mapping mapping;
  if (size.value == 0) return mapping;
  const Bytes rounded = AlignUp(size, kPage);
  void* data = ::mmap(nullptr, rounded.value, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) {
    return MakeError(ErrorCode::kOutOfMemory,
                     "mapping {} of memory: {}; lower --device-memory or --host-memory, or raise "
                     "the limit of the address space (ulimit -v)",
                     ToString(rounded), ErrnoText(errno));
  }
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = rounded;
  return mapping;
}

Result<Mapping> Mapping::Create(Bytes size) {
  if (size.value == 0) return Mapping();
  PENSTOCK_ASSIGN(Mapping mapping, Map(size, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1));
  // Advice only: without huge pages everything works, a little slower.
  static_cast<void>(::madvise(mapping.data_, mapping.size_.value, MADV_HUGEPAGE));
  return mapping;
}

Result<Mapping> Mapping::OfFile(int fd, Bytes size) { return Map(size, MAP_SHARED, fd); }

Status Mapping::PreferNodes(std::span<const int> nodes) {
  PENSTOCK_CHECK(!nodes.empty());
  constexpr size_t kBits = sizeof(unsigned long) * CHAR_BIT;  // NOLINT(google-runtime-int): mbind's
  const auto most = static_cast<size_t>(*std::max_element(nodes.begin(), nodes.end()));
  std::vector<unsigned long> mask(most / kBits + 1);  // NOLINT(google-runtime-int)
  for (int node : nodes) {
    mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  }
  const int policy = nodes.size() == 1 ? MPOL_PREFERRED : MPOL_INTERLEAVE;
  // The kernel reads one bit less than it is told.
  if (::syscall(SYS_mbind, data_, size_.value, policy, mask.data(), mask.size() * kBits + 1, 0) !=
      0) {
    return ErrnoError(errno,
                      fmt::format("placing {} of memory on NUMA nodes (mbind)", ToString(size_)));
  }
  return {};
}

Mapping::Mapping(Mapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, Bytes{})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  Mapping taken(std::move(other));  // what this one held is unmapped now, not with `other`
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) ::munmap(data_, size_.value);
}

}  // namespace penstock
