#include "comm/gloo_note.h"

#include <algorithm>
#include <cstring>

namespace penstock::comm {
namespace {

/// Mixes a value into a hash (the finalizer of SplitMix64).
uint64_t Mix(uint64_t hash, uint64_t value) {
  hash += value + 0x9e3779b97f4a7c15;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111eb;
  return hash ^ (hash >> 31);
}

}  // namespace

void GlooNote::Set(uint64_t print, std::string_view words) {
  fingerprint = print;
  length = static_cast<uint32_t>(std::min(words.size(), kMaxText));
  std::memcpy(text, words.data(), length);
}

std::string GlooNote::Text() const { return {text, std::min<size_t>(length, kMaxText)}; }

uint64_t Fingerprint(const Exchange& exchange) {
  const Operation& operation = exchange.operation;
  uint64_t hash = 0;
  for (const uint64_t value :
       {static_cast<uint64_t>(exchange.collective), exchange.part.value, exchange.stride.value,
        operation.step, uint64_t{operation.index}, uint64_t{operation.what.size()}}) {
    hash = Mix(hash, value);
  }
  for (const char letter : operation.what) hash = Mix(hash, static_cast<unsigned char>(letter));
  return hash | uint64_t{1} << 63;
}

}  // namespace penstock::comm
