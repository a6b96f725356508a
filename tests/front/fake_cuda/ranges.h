// What the fake driver knows of memory: ranges of the host and the device, and the copies between
// them that are under way. One lock for all.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

namespace fake_cuda {

/// Notes what was used wrongly.
void Note(const std::string& what);

struct Range {
  uint64_t begin = 0;
  uint64_t size = 0;

  bool Contains(const Range& other) const {
    return begin <= other.begin && other.begin + other.size <= begin + size;
  }
  bool Meets(const Range& other) const {
    return begin < other.begin + other.size && other.begin < begin + size;
  }
};

/// A copy that was enqueued and has not ended.
struct Copy {
  Range host;
  Range device;
};

class Memory {
 public:
  /// Returns 0 if the device has no room left.
  uint64_t Allocate(size_t size);
  /// Allocates at addresses that the host can follow.
  void Map();
  /// How much device memory there is from now on, and how much of it is free.
  void Resize(size_t size);
  std::pair<size_t, size_t> FreeAndSize();
  /// The most that was allocated at once since the last call.
  size_t TakePeak();
  void Share();
  bool Free(uint64_t address);
  /// Null, and noted, if the range is not that of one allocation.
  std::byte* Find(const Range& range, const char* what);

  bool Register(const Range& range);
  bool Unregister(uint64_t begin);
  size_t registered();
  size_t registered_bytes();

  /// Notes what is wrong with the copy. Returns false if it cannot be made.
  bool Begin(const Copy& copy, std::list<Copy>::iterator* under_way);
  void End(std::list<Copy>::iterator under_way);
  uint64_t copies();

 private:
  struct Block {
    std::unique_ptr<std::byte, void (*)(void*)> data;
    uint64_t size;
  };

  std::byte* FindLocked(const Range& range);

  std::mutex mutex_;
  /// No address of the host's: a pointer with this bit has no page.
  static constexpr uint64_t kFirstOfDevice = uint64_t{1} << 62;

  uint64_t next_ = kFirstOfDevice;
  std::map<uint64_t, Block> blocks_;
  size_t size_ = size_t{1} << 40;
  size_t used_ = 0;
  size_t peak_ = 0;
  bool mapped_ = false;
  bool shared_ = false;  ///< addresses of the host are also the device's
  std::list<Range> registered_;
  std::list<Copy> under_way_;
  uint64_t copies_ = 0;
};

Memory& TheMemory();

}  // namespace fake_cuda
