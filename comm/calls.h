// Messages between the callers of a job and its thread: calls and their replies, notifications, and
// the end.
//
// Threads: the first half from any, the second from the job's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "comm/hub.h"
#include "comm/wire.h"

namespace penstock::comm {

class Calls {
 public:
  /// Errors: what the system says.
  static Result<std::unique_ptr<Calls>> Create();

  /// Makes a call that has `parts` replies, one or more, and waits for them. Errors: why the job
  /// has ended; kInvalidArgument for two calls of a channel at once, or after Finish.
  Result<std::vector<std::string>> Make(Message message, uint32_t parts) EXCLUDES(mutex_);
  /// Hands on a message that has no reply.
  void Tell(Message message) EXCLUDES(mutex_);
  /// Has the thread end.
  void Leave() EXCLUDES(mutex_);
  /// Why the job has failed; ok as long as it has not.
  Status status() const EXCLUDES(mutex_);
  bool ended_agreed() const EXCLUDES(mutex_);

  /// Readable when there is something to take.
  int wakes() const { return wakes_.get(); }
  struct Taken {
    std::vector<Message> messages;  ///< in the order in which they were handed over
    bool leaves = false;            ///< the rank leaves the job; nothing follows these
  };
  Taken Take() EXCLUDES(mutex_);
  /// Hands a reply to its caller. Returns false if no call waits for it.
  bool Reply(Message message) EXCLUDES(mutex_);
  /// Ends every call, and all later ones. The first time counts.
  void End(const Ending& ending) EXCLUDES(mutex_);

 private:
  struct Waiting {
    std::vector<std::string> parts;
    uint32_t arrived = 0;
    bool done = false;
  };

  explicit Calls(UniqueFd wakes) : wakes_(std::move(wakes)) {}
  void Wake() const;
  /// What a call returns once the job has ended.
  Status AfterEnd(bool finishes) const REQUIRES(mutex_);

  const UniqueFd wakes_;
  mutable Mutex mutex_;
  CondVar answered_;
  std::vector<Message> handed_on_ GUARDED_BY(mutex_);
  bool leaves_ GUARDED_BY(mutex_) = false;
  std::map<uint64_t, Waiting> waiting_ GUARDED_BY(mutex_);  ///< keyed by the number of the call
  std::array<uint64_t, kChannels> counts_ GUARDED_BY(mutex_) = {};
  std::optional<Ending> ending_ GUARDED_BY(mutex_);
};

}  // namespace penstock::comm
