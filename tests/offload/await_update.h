// What optimizer threads do for a tile store, where a test does it itself.
#pragma once

#include <atomic>
#include <optional>
#include <thread>

#include "offload/tile_store.h"
#include "tests/deadline.h"

namespace penstock::offload {

/// Compares a weight that was read with its checksum. Returns false if there is none.
inline bool CheckRead(TileStore& store) {
  const std::optional<ReadWeight> read = store.TryTakeRead();
  if (read) store.FinishRead(*read, WeightChecksum(read->seed, read->weight));
  return read.has_value();
}

/// The next update that the store gives; none where it gives none in time.
inline std::optional<TileUpdate> AwaitUpdate(TileStore& store) {
  std::optional<TileUpdate> update;
  static_cast<void>(BecomesTrue([&] {
    while (CheckRead(store)) continue;
    return (update = store.TryTakeUpdate()).has_value();
  }));
  return update;
}

/// A thread that compares what is read, while it lives.
class ReadChecker {
 public:
  explicit ReadChecker(TileStore& store)
      : thread_([this, &store] {
          while (!stop_) {
            if (!CheckRead(store)) std::this_thread::yield();
          }
        }) {}
  ~ReadChecker() {
    stop_ = true;
    thread_.join();
  }
  ReadChecker(const ReadChecker&) = delete;
  ReadChecker& operator=(const ReadChecker&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace penstock::offload
