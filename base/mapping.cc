#include "base/mapping.h"

#include <sys/mman.h>

#include <cerrno>
#include <utility>

namespace penstock {
namespace {

constexpr Bytes kPage = 4_KiB;

}  // namespace

Result<Mapping> Mapping::Create(Bytes size) {
  Mapping mapping;
  if (size.value == 0) return mapping;
  const Bytes rounded = AlignUp(size, kPage);
  void* data = ::mmap(nullptr, rounded.value, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("mapping {} of memory", ToString(rounded)));
  }
  // Advice only: without huge pages everything works, a little slower.
  (void)::madvise(data, rounded.value, MADV_HUGEPAGE);
  mapping.data_ = static_cast<std::byte*>(data);
  mapping.size_ = rounded;
  return mapping;
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
