// Shared by the tests of aio: scratch files, patterns, and the engines that every contract is
// checked on.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/aio.h"
#include "base/mapping.h"

namespace penstock::aio {

/// A path of its own in the test's temporary folder; its contents are removed at the end.
class ScratchPath {
 public:
  ScratchPath() {
    static std::atomic<int> count{0};
    path_ = testing::TempDir() + "/penstock-aio-" + std::to_string(::getpid()) + "-" +
            std::to_string(count++);
  }
  ~ScratchPath() { ::unlink(path_.c_str()); }
  ScratchPath(const ScratchPath&) = delete;
  ScratchPath& operator=(const ScratchPath&) = delete;

  const std::string& str() const { return path_; }

 private:
  std::string path_;
};

/// A new, writable scratch file: with O_DIRECT where the file system has it, unless told otherwise.
/// Where it has not, TemporaryFolder.HasDirectIoSoThatTheTestsUseIt says so.
class ScratchFile {
 public:
  ScratchFile() : file_(Open(true)) {
    if (!file_.ok() && file_.error().code == ErrorCode::kUnavailable) file_ = Open(false);
  }
  explicit ScratchFile(bool direct) : file_(Open(direct)) {}

  File& get() { return file_.value(); }
  const Result<File>& result() const { return file_; }
  const std::string& path() const { return scratch_.str(); }

 private:
  Result<File> Open(bool direct) {
    return File::Open(scratch_.str(), {.create = true, .writable = true, .direct = direct});
  }

  ScratchPath scratch_;
  Result<File> file_;
};

/// Byte number `position` of the pattern `seed`.
inline std::byte PatternAt(uint64_t seed, uint64_t position) {
  uint64_t x = (seed + 1) * 0x9E3779B97F4A7C15 + position / 8;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9;
  return static_cast<std::byte>((x ^ (x >> 32)) >> (position % 8 * 8));
}

inline void FillPattern(std::span<std::byte> bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = PatternAt(seed, i);
}

/// How many bytes are not those of the pattern.
inline size_t PatternErrors(std::span<const std::byte> bytes, uint64_t seed) {
  size_t errors = 0;
  for (size_t i = 0; i < bytes.size(); ++i) errors += bytes[i] == PatternAt(seed, i) ? 0 : 1;
  return errors;
}

/// Memory that Buffers are cut from while an engine has it registered.
class RegisteredArena {
 public:
  static constexpr size_t kSize = 4 << 20;

  RegisteredArena();
  ~RegisteredArena();
  RegisteredArena(const RegisteredArena&) = delete;
  RegisteredArena& operator=(const RegisteredArena&) = delete;

  /// In two parts that touch, so that some blocks lie in both.
  std::array<std::span<std::byte>, 2> parts();
  /// The arena that exists, if any. One at a time.
  static RegisteredArena* current();
  /// Page-aligned; null when there is no room left.
  std::byte* Take(size_t size);

 private:
  Result<Mapping> mapping_;
  std::atomic<size_t> taken_{0};
};

/// Page-aligned, zero-filled memory of a size that need not be a multiple of pages.
class Buffer {
 public:
  explicit Buffer(size_t size) : size_(size) {
    RegisteredArena* arena = RegisteredArena::current();
    if (arena != nullptr) data_ = arena->Take(size);
    if (data_ != nullptr) return;
    mapping_.emplace(Mapping::Create(Bytes{size}));
    data_ = mapping_->value().data();
  }
  std::span<std::byte> bytes() { return {data_, size_}; }

 private:
  size_t size_;
  std::byte* data_ = nullptr;
  std::optional<Result<Mapping>> mapping_;
};

/// `count` times `part` bytes of addresses over `part` bytes of memory.
class Folded {
 public:
  Folded(size_t part, size_t count) : size_(part * count) {
    const UniqueFd memory(::memfd_create("folded", MFD_CLOEXEC));
    void* base =
        ::mmap(nullptr, size_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED || ::ftruncate(memory.get(), static_cast<off_t>(part)) != 0) return;
    data_ = static_cast<std::byte*>(base);
    for (size_t i = 0; i < count; ++i) {
      ok_ = ::mmap(data_ + i * part, part, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                   memory.get(), 0) != MAP_FAILED;
      if (!ok_) return;
    }
  }
  ~Folded() {
    if (data_ != nullptr) ::munmap(data_, size_);
  }
  Folded(const Folded&) = delete;
  Folded& operator=(const Folded&) = delete;

  bool ok() const { return ok_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  size_t size_;
  std::byte* data_ = nullptr;
  bool ok_ = false;
};

/// A way to make an engine, by name. `faults` of the options are kept.
struct EngineCase {
  std::string name;
  std::function<Result<std::unique_ptr<Engine>>(EngineOptions)> make;
  bool registered = false;  ///< the test's Buffers are registered with every engine
};
inline void PrintTo(const EngineCase& engine, std::ostream* out) { *out << engine.name; }
inline std::string CaseName(const testing::TestParamInfo<EngineCase>& info) {
  return info.param.name;
}

/// io_uring (with and without the flags of newer kernels, with registered buffers, with sqpoll),
/// libaio, threads and simulated.
std::vector<EngineCase> EveryEngine();
/// The same, each with faults that no caller may notice: short, transient, delayed and reordered.
std::vector<EngineCase> EveryEngineWithHarmlessFaults();

/// Makes engines of the parameter; a kernel without io_uring is a skip with its reason.
class EngineTest : public testing::TestWithParam<EngineCase> {
 protected:
  void SetUp() override {
    if (GetParam().registered) arena_.emplace();
  }

  /// Null after the test was marked as skipped or failed.
  std::unique_ptr<Engine> Make(EngineOptions options = {}) {
    Result<std::unique_ptr<Engine>> engine = GetParam().make(std::move(options));
    if (!engine.ok()) {
      MarkUnavailable(engine.error());
      return nullptr;
    }
    if (arena_) {
      const auto registered = (*engine)->RegisterBuffers(arena_->parts());
      if (!registered.ok()) {
        MarkUnavailable(registered.error());
        return nullptr;
      }
    }
    return std::move(engine).value();
  }

 private:
  void MarkUnavailable(const Error& error) {
    if (error.code == ErrorCode::kUnavailable) GTEST_SKIP() << error.message;
    FAIL() << error.message;
  }

  std::optional<RegisteredArena> arena_;
};

/// Makes `engine` in a TEST_P of EngineTest, or leaves it.
#define MAKE_ENGINE(engine, ...)                            \
  const std::unique_ptr<Engine> engine = Make(__VA_ARGS__); \
  if (engine == nullptr) return

inline Request ReadRequest(const File& file, uint64_t offset, std::span<std::byte> buffer) {
  return {
      .operation = Operation::kRead, .file = &file, .offset = FileOffset{offset}, .buffer = buffer};
}
inline Request WriteRequest(const File& file, uint64_t offset, std::span<std::byte> buffer) {
  return {.operation = Operation::kWrite,
          .file = &file,
          .offset = FileOffset{offset},
          .buffer = buffer,
          .priority = Priority::kWriteBack};
}

inline std::string MessageOf(const Status& status) {
  return status.ok() ? "" : status.error().message;
}
#define EXPECT_OK(expression) EXPECT_EQ(MessageOf(expression), "")
#define ASSERT_OK(expression) ASSERT_EQ(MessageOf(expression), "")

/// Writes a pattern of `size` bytes at `offset`, reads it into other memory and compares.
inline void RoundTrip(Engine& engine, const File& file, uint64_t offset, size_t size,
                      uint64_t seed) {
  Buffer out(size);
  FillPattern(out.bytes(), seed);
  ASSERT_OK(engine.Submit(WriteRequest(file, offset, out.bytes())).Wait());
  Buffer in(size);
  ASSERT_OK(engine.Submit(ReadRequest(file, offset, in.bytes())).Wait());
  EXPECT_EQ(PatternErrors(in.bytes(), seed), 0u) << size << " bytes at " << offset;
}

}  // namespace penstock::aio
