// Threads of a CUDA block on the CPU, as fibers of one thread: each runs until it meets the others
// at a barrier or in an operation of its warp. The order is another one for every block: any of
// those that can go on, or one warp as far ahead of the others as barriers let it, so that a
// missing barrier shows.
//
// Misuse ends the program: lanes of a warp in different operations, an operation of a warp of which
// a lane has ended, a barrier that some never reach. What it cannot show: what two threads do
// between two meetings at the same time, and threads that meet at different places in operations of
// one kind.
//
// Threads: RunGrid may run on several threads at once, each with blocks of its own. The other
// functions are called by what RunGrid runs.
#pragma once

#include <vector_types.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace penstock::emulated_cuda {

inline constexpr unsigned kLanes = 32;

/// Calls `body` as every thread of every block, block after block. `threads`: a multiple of a warp;
/// `what` the kernel does, for messages.
void RunGrid(const char* what, uint64_t blocks, dim3 threads, size_t shared,
             const std::function<void()>& body);

/// Of the block's dynamic shared memory.
unsigned char* DynamicShared();
/// Returns when all threads of the block are there that have not ended; whether all said true.
bool MeetBlock(const char* operation, bool value);

/// What a lane brings into an operation of its warp, and what it gets out.
inline constexpr size_t kLaneBytes = 64;
unsigned LaneOfThread();
std::byte* WarpInputs();   ///< [kLanes], one after the other
std::byte* WarpOutputs();  ///< [kLanes], likewise
/// Returns when all lanes are there; the last one to come calls `combine` before anyone goes on.
void MeetWarp(const char* operation, void (*combine)(const std::byte* in, std::byte* out));

/// An operation of a warp: kCombine(in[32], out[32]) is called once, with what all lanes bring.
template <typename In, typename Out, void (*kCombine)(const In*, Out*)>
Out OfWarp(const char* operation, const In& in) {
  static_assert(sizeof(In) <= kLaneBytes && sizeof(Out) <= kLaneBytes);
  const unsigned lane = LaneOfThread();
  std::memcpy(WarpInputs() + lane * sizeof(In), &in, sizeof(In));
  MeetWarp(operation, [](const std::byte* from, std::byte* to) {
    kCombine(reinterpret_cast<const In*>(from), reinterpret_cast<Out*>(to));
  });
  Out out;
  std::memcpy(&out, WarpOutputs() + lane * sizeof(Out), sizeof(Out));
  return out;
}

}  // namespace penstock::emulated_cuda

// As CUDA names them.
inline constinit thread_local uint3 threadIdx{}, blockIdx{};
inline constinit thread_local dim3 blockDim{}, gridDim{};
