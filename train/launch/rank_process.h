// The process of one rank: the program itself on this host, ssh for a rank on another.
//
// Rank 0 writes to the launcher's own stdout and stderr; the output of other ranks comes through a
// pipe to the launcher.
//
// Threads: that of Child.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"
#include "train/launch/child.h"
#include "train/launch/ending.h"

namespace penstock::train {

/// How a rank is started.
struct RankCommand {
  uint32_t rank = 0;
  std::string host;  ///< host of a rank elsewhere; `program` is then ssh
  std::string program;
  std::vector<std::string> arguments;  ///< from the program's name on
  std::vector<std::string> environment;
  /// The beginning of ssh's standard input, before signals; at most 4096 bytes.
  std::string first_input = {};
};

class RankProcess {
 public:
  /// Starts the process. Its standard input is empty. Errors: those of Child::Start.
  static Result<RankProcess> Start(const RankCommand& command);

  uint32_t rank() const { return rank_; }
  /// For messages: "rank 2 (pid 4711)", "rank 2 (on worker2)".
  const std::string& name() const { return name_; }

  /// The descriptor from which Read reads; invalid for rank 0 and when the output has ended.
  const UniqueFd& output() const { return output_; }
  /// Returns a part of the rank's output, without waiting.
  std::string Read();
  /// Returns the remaining output of a rank that has ended, without waiting for other processes
  /// that have the pipe open, and ends the output.
  std::string ReadRest();

  /// Sends the rank a signal, on this host or another.
  void Signal(int signal) const;
  /// Whether ssh has not read its input, which suggests that it never connected.
  bool HasUnreadInput() const;
  /// Kills ssh, whose connection hangs. Poll then reports that the rank was interrupted.
  void EndConnection();
  /// Returns how the rank has ended, once.
  std::optional<Ending> Poll();
  /// Gives up a rank that does not end: kills ssh, but leaves a process of this host running.
  void Leave();

 private:
  RankProcess(const RankCommand& command, Child child, UniqueFd signals, UniqueFd output);

  uint32_t rank_;
  bool elsewhere_;
  std::string name_;
  Child child_;
  bool connection_ended_ = false;
  UniqueFd signals_;  ///< the standard input of ssh (train/launch/remote_command.h)
  UniqueFd output_;
};

}  // namespace penstock::train
