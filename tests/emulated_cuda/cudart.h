// The part of CUDA's runtime that penstock calls, on the CPU: linked in place of libcudart. There
// is one device, whose memory is the host's; each stream is a thread.
//
// Streams run in order and, to each other, in any order, as CUDA's do; from time to time one stops
// for a moment. Device memory is NaN until it is written. Copies from and to host memory
// that is not registered make the caller wait, and device memory that nobody allocated is an error.
// Nothing ever fails later. A stream that is destroyed has done its work: CUDA would go on.
#pragma once

#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

namespace penstock::emulated_cuda {

/// What memory holds before it is written, two bytes at a time: NaN in every dtype, and a wild
/// index.
inline constexpr uint16_t kNeverWritten = 0x7fff;

/// Runs on the stream's thread behind what it has been given before. Returns what a launch does.
cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work);
/// Whether cudaMalloc has given these bytes out.
bool IsOnDevice(const void* data, size_t size);

/// What the program has asked for so far.
struct Counts {
  std::map<std::string, uint64_t> launches;  ///< by what the kernels do
  std::map<cudaStream_t, uint64_t> waits;    ///< of streams, for events
  uint64_t copies_to_host = 0;
};
Counts CountsSoFar();
void CountLaunch(const char* what);
/// How much shared memory a block may have: 227 KiB until it is set. A launch that asks for more
/// fails.
size_t SharedMemoryOfBlock();
void SetSharedMemoryOfBlock(size_t bytes);
/// How many bytes of host memory are registered.
size_t RegisteredBytes();

}  // namespace penstock::emulated_cuda
