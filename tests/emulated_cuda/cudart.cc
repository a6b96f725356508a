#include "tests/emulated_cuda/cudart.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kMemory = size_t{16} << 30;

/// What an event stands for since it was last recorded.
struct Point {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
  Clock::time_point time;

  void Reach() {
    const std::scoped_lock lock(mutex);
    reached = true;
    time = Clock::now();
    changed.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [this] { return reached; });
  }
  bool Reached() {
    const std::scoped_lock lock(mutex);
    return reached;
  }
};

/// Ranges of addresses that do not overlap.
class Ranges {
 public:
  bool Add(const void* data, size_t size) {
    const std::scoped_lock lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto next = ends_.lower_bound(begin);
    if (next != ends_.end() && next->first < begin + size) return false;
    if (next != ends_.begin() && std::prev(next)->second > begin) return false;
    ends_[begin] = begin + size;
    return true;
  }
  /// The size of the range that begins there; 0 where none does.
  size_t Remove(const void* data) {
    const std::scoped_lock lock(mutex_);
    const auto found = ends_.find(reinterpret_cast<uintptr_t>(data));
    if (found == ends_.end()) return 0;
    const size_t size = found->second - found->first;
    ends_.erase(found);
    return size;
  }
  bool Contain(const void* data, size_t size) {
    const std::scoped_lock lock(mutex_);
    const auto begin = reinterpret_cast<uintptr_t>(data);
    auto next = ends_.upper_bound(begin);
    return next != ends_.begin() && begin + size <= (--next)->second;
  }
  size_t Total() {
    const std::scoped_lock lock(mutex_);
    size_t total = 0;
    for (const auto& [begin, end] : ends_) total += end - begin;
    return total;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;
};

Ranges device_memory;
Ranges registered;
std::mutex counts_mutex;
penstock::emulated_cuda::Counts counts;
std::atomic<size_t> shared_memory_of_block = 227 * 1024;

template <typename Change>
void Count(Change change) {
  const std::scoped_lock lock(counts_mutex);
  change(counts);
}

/// Memory of kNeverWritten, of which pages are made where they are written: one file's, again and
/// again.
void* MapOfNaN(size_t size) {
  constexpr size_t kPiece = size_t{4} << 20;
  static const int file = [] {
    const int made = memfd_create("nan", 0);
    const std::vector<uint16_t> piece(kPiece / 2, penstock::emulated_cuda::kNeverWritten);
    return write(made, piece.data(), kPiece) == static_cast<ssize_t>(kPiece) ? made : -1;
  }();
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  void* const all =
      mmap(nullptr, size, kAccess, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (all == MAP_FAILED) return nullptr;
  for (size_t at = 0; at < size; at += kPiece) {
    if (mmap(static_cast<char*>(all) + at, std::min(kPiece, size - at), kAccess,
             MAP_PRIVATE | MAP_FIXED, file, 0) == MAP_FAILED) {
      return nullptr;
    }
  }
  return all;
}

}  // namespace

struct CUevent_st {
  bool timed;
  std::mutex mutex;
  std::shared_ptr<Point> point;  ///< none: it was never recorded, and counts as reached

  std::shared_ptr<Point> Now() {
    const std::scoped_lock lock(mutex);
    return point;
  }
};

struct CUstream_st {
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<std::function<void()>> work;
  bool ending = false;
  uint64_t done = 0;
  std::thread thread{[this] { Run(); }};

  void Add(std::function<void()> more) {
    const std::scoped_lock lock(mutex);
    work.push_back(std::move(more));
    changed.notify_one();
  }
  void Run() {
    for (;;) {
      std::function<void()> next;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return ending || !work.empty(); });
        if (work.empty()) return;
        next = std::move(work.front());
        work.pop_front();
      }
      // So that who should wait for this stream and does not is wrong now and then.
      if (++done % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      next();
    }
  }
  std::shared_ptr<Point> Mark() {
    auto point = std::make_shared<Point>();
    Add([point] { point->Reach(); });
    return point;
  }
};

namespace penstock::emulated_cuda {

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  stream->Add(std::move(work));
  return cudaSuccess;
}
bool IsOnDevice(const void* data, size_t size) { return device_memory.Contain(data, size); }
Counts CountsSoFar() {
  const std::scoped_lock lock(counts_mutex);
  return counts;
}
void CountLaunch(const char* what) {
  Count([what](Counts& all) { ++all.launches[what]; });
}
size_t SharedMemoryOfBlock() { return shared_memory_of_block; }
void SetSharedMemoryOfBlock(size_t bytes) { shared_memory_of_block = bytes; }
size_t RegisteredBytes() { return registered.Total(); }

}  // namespace penstock::emulated_cuda

extern "C" {

const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "cudaErrorMemoryAllocation" : "cudaError";
}
const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorMemoryAllocation ? "out of memory" : "an error of the emulation";
}

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) { return device == 0 ? cudaSuccess : cudaErrorInvalidDevice; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "emulated");
  properties->major = 9;
  properties->multiProcessorCount = 1;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return cudaErrorInvalidValue;
  *value = static_cast<int>(shared_memory_of_block.load());
  return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char* text, int size, int) {
  std::snprintf(text, static_cast<size_t>(size), "ffff:ff:1f.7");
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  *total = kMemory;
  *free = kMemory - device_memory.Total();
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** data, size_t size) {
  if (size > kMemory - device_memory.Total()) return cudaErrorMemoryAllocation;
  *data = MapOfNaN(size);
  if (*data == nullptr) return cudaErrorMemoryAllocation;
  device_memory.Add(*data, size);
  return cudaSuccess;
}
cudaError_t cudaFree(void* data) {
  const size_t size = device_memory.Remove(data);
  return size > 0 && munmap(data, size) == 0 ? cudaSuccess : cudaErrorInvalidValue;
}
cudaError_t cudaHostRegister(void* data, size_t size, unsigned) {
  return registered.Add(data, size) ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered;
}
cudaError_t cudaHostUnregister(void* data) {
  return registered.Remove(data) > 0 ? cudaSuccess : cudaErrorHostMemoryNotRegistered;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t size, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool in = kind == cudaMemcpyHostToDevice;
  if (!device_memory.Contain(in ? to : from, size)) return cudaErrorInvalidValue;
  if (!in) Count([](auto& all) { ++all.copies_to_host; });
  stream->Add([=] { std::memcpy(to, from, size); });
  if (!registered.Contain(in ? from : to, size)) stream->Mark()->Wait();
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* data, int value, size_t size, cudaStream_t stream) {
  if (!device_memory.Contain(data, size)) return cudaErrorInvalidValue;
  stream->Add([=] { std::memset(data, value, size); });
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new CUstream_st;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  stream->Mark()->Wait();
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  {
    const std::scoped_lock lock(stream->mutex);
    // CUDA returns at once, and what the work uses may be gone before it has run.
    PENSTOCK_CHECK(stream->work.empty(), "a stream is destroyed before its work is done");
    stream->ending = true;
    stream->changed.notify_one();
  }
  stream->thread.join();
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  Count([stream](auto& all) { ++all.waits[stream]; });
  if (const auto point = event->Now()) stream->Add([point] { point->Wait(); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  *event = new CUevent_st{.timed = (flags & cudaEventDisableTiming) == 0};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const std::scoped_lock lock(event->mutex);
  event->point = stream->Mark();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const auto point = event->Now();
  return point == nullptr || point->Reached() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto point = event->Now()) point->Wait();
  return cudaSuccess;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  const auto from = begin->Now(), to = end->Now();
  if (!begin->timed || !end->timed || from == nullptr || to == nullptr) {
    return cudaErrorInvalidResourceHandle;
  }
  if (!from->Reached() || !to->Reached()) return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
  return cudaSuccess;
}

}  // extern "C"
