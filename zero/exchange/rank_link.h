// What an engine says to those of the other ranks: the communicator, with each operation named and
// numbered within its step.
//
// All engines make the same calls in the same order, because they carry out the same program with
// the same plan. The numbers are compared, so that a rank that does something else is named.
//
// Threads: the one that feeds the compute stream.
#pragma once

#include <string>
#include <utility>

#include "comm/communicator.h"

namespace penstock::zero {

class RankLink {
 public:
  /// The communicator outlives the link.
  explicit RankLink(comm::Communicator& communicator) : communicator_(communicator) {}
  /// Waits for the operations, because they use their callers' memory.
  ~RankLink() { static_cast<void>(stream().Synchronize()); }
  RankLink(const RankLink&) = delete;
  RankLink& operator=(const RankLink&) = delete;

  const comm::World& world() const { return communicator_.world(); }
  device::Stream& stream() { return communicator_.stream(); }
  /// Sets the number in the run of the step that begins next, from which steps are counted.
  void NumberStep(uint64_t step) { step_ = step - 1; }
  void BeginStep() {
    ++step_;
    index_ = 0;
  }

  // See comm/communicator.h; `what` is for people: "weights of h.3".
  void AllGather(std::byte* data, Bytes part, const std::string& what) {
    communicator_.AllGather(data, part, Next(what));
  }
  void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                const std::string& what) {
    communicator_.AllToAll(from, stride, to, part, Next(what));
  }

 private:
  comm::Operation Next(const std::string& what) {
    return {.step = step_, .index = index_++, .what = what};
  }

  comm::Communicator& communicator_;
  uint64_t step_ = 0;  ///< current step; 0: before the first
  uint32_t index_ = 0;
};

}  // namespace penstock::zero
