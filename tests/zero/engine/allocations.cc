#include "tests/zero/engine/allocations.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <malloc.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kLarge = 64 << 10;

/// Bytes that are taken, and the most since Begin.
class Count {
 public:
  void Take(size_t size) {
    const size_t now = taken_.fetch_add(size) + size;
    size_t peak = peak_.load();
    while (now > peak && !peak_.compare_exchange_weak(peak, now)) continue;
  }
  void Give(size_t size) { taken_.fetch_sub(size); }
  void Begin() {
    before_ = taken_.load();
    peak_ = taken_.load();
  }
  Bytes peak() const { return Bytes{peak_.load() - before_.load()}; }

 private:
  std::atomic<size_t> taken_ = 0;
  std::atomic<size_t> before_ = 0;
  std::atomic<size_t> peak_ = 0;
};

struct Noted {
  size_t size = 0;
  int depth = 0;
  std::array<void*, 24> callers{};
};

// Without initialisation at run time, and never destroyed: malloc comes before and after main.
constinit Count heap;
constinit Count mappings;
constinit std::atomic<size_t> noted_count = 0;
constinit std::array<Noted, 4096> noted{};
constinit std::atomic<bool> counting = false;
thread_local bool inside = false;

[[maybe_unused]] void Note(size_t size) {
  if (size <= kLarge || !counting || inside) return;
  inside = true;  // backtrace may allocate
  const size_t i = noted_count.fetch_add(1);
  if (i < noted.size()) {
    Noted& one = noted[i];
    one.size = size;
    one.depth = ::backtrace(one.callers.data(), static_cast<int>(one.callers.size()));
  }
  inside = false;
}

std::string NameOf(void* caller) {
  Dl_info info{};
  if (::dladdr(caller, &info) == 0 || info.dli_sname == nullptr) return "?";
  return info.dli_sname;
}

}  // namespace

void Allocations::Begin() {
  std::array<void*, 1> first{};
  ::backtrace(first.data(), 1);  // loads a library
  heap.Begin();
  mappings.Begin();
  noted_count = 0;
  counting = true;
}

Bytes Allocations::heap_peak() { return heap.peak(); }
Bytes Allocations::mapping_peak() { return mappings.peak(); }

std::vector<Allocations::Large> Allocations::TakeLarge() {
  counting = false;
  PENSTOCK_CHECK(noted_count <= noted.size(), "more allocations than can be noted");
  std::vector<Large> large;
  for (size_t i = 0; i < noted_count; ++i) {
    Large one{.size = Bytes{noted[i].size}, .callers = ""};
    for (int frame = 0; frame < noted[i].depth; ++frame) {
      one.callers += NameOf(noted[i].callers[frame]) + " ";
    }
    large.push_back(std::move(one));
  }
  return large;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)

bool Allocations::CanBeCounted() { return false; }

}  // namespace penstock

#else

bool Allocations::CanBeCounted() { return true; }

namespace {

void* Taken(void* at) {
  if (at == nullptr) return at;
  const size_t size = ::malloc_usable_size(at);
  heap.Take(size);
  Note(size);
  return at;
}

void Given(void* at) {
  if (at != nullptr) heap.Give(::malloc_usable_size(at));
}

}  // namespace
}  // namespace penstock

// What glibc calls its own, and how.
// NOLINTBEGIN(bugprone-reserved-identifier,readability-*)
extern "C" {
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* at, size_t size);
void* __libc_memalign(size_t alignment, size_t size);
void __libc_free(void* at);

void* malloc(size_t size) { return penstock::Taken(__libc_malloc(size)); }
void* calloc(size_t count, size_t size) { return penstock::Taken(__libc_calloc(count, size)); }
void* realloc(void* at, size_t size) {
  penstock::Given(at);
  return penstock::Taken(__libc_realloc(at, size));
}
void* memalign(size_t alignment, size_t size) {
  return penstock::Taken(__libc_memalign(alignment, size));
}
void* aligned_alloc(size_t alignment, size_t size) {
  return penstock::Taken(__libc_memalign(alignment, size));
}
int posix_memalign(void** at, size_t alignment, size_t size) {
  *at = penstock::Taken(__libc_memalign(alignment, size));
  return *at == nullptr ? ENOMEM : 0;
}
void free(void* at) {
  penstock::Given(at);
  __libc_free(at);
}

void* mmap(void* at, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  const long mapped = ::syscall(SYS_mmap, at, size, protection, flags, fd, offset);
  if (mapped == -1) return MAP_FAILED;
  penstock::mappings.Take(size);
  penstock::Note(size);
  return reinterpret_cast<void*>(mapped);
}
int munmap(void* at, size_t size) noexcept {
  penstock::mappings.Give(size);
  return static_cast<int>(::syscall(SYS_munmap, at, size));
}
}
// NOLINTEND(bugprone-reserved-identifier,readability-*)

#endif
