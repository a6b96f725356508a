// What share of a long search a build does. A search is a test by one thread that tries many
// inputs of pure code: the release build tries all of them. There is nothing in it for the thread
// sanitizer to see; forged input keeps a share that the address sanitizer can look at in seconds.
// Combinations of an optimizer's options are all tried, but on an emulated processor, where a share
// takes a minute.
#pragma once

#include <cstdint>

namespace penstock {

/// A search tries one input in so many. A prime, so that a search that goes through the bytes of a
/// format comes to every byte of its words.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kSearchStride = 101;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr uint64_t kSearchStride = 11;
#else
inline constexpr uint64_t kSearchStride = 1;
#endif

/// The same for a test of kernels on an emulated processor.
#if defined(PENSTOCK_EMULATED)
inline constexpr uint64_t kEmulatedStride = 7;
#else
inline constexpr uint64_t kEmulatedStride = 1;
#endif

/// The same for combinations of placements, dtypes and optimizers that each train: what the thread
/// sanitizer would see in all, it sees in a share. Coprime to the numbers of placements.
#if defined(__SANITIZE_THREAD__)
inline constexpr uint64_t kTrainingStride = 5;
#else
inline constexpr uint64_t kTrainingStride = 1;
#endif

/// Of so many inputs, how many a search tries.
constexpr uint64_t SearchShare(uint64_t inputs) { return inputs / kSearchStride; }

}  // namespace penstock
