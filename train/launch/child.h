// A child process, which does not outlive its object.
//
// Threads: the thread that started it, which must live as long as the process: the kernel takes the
// end of that thread for the end of the parent.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace penstock::train {

struct ChildCommand {
  std::string program;                 ///< a path; or a name without slashes, looked up in PATH
  std::vector<std::string> arguments;  ///< from the program's name on
  std::vector<std::string> environment;
  /// Descriptors that become its standard ones. They are above 2, or have their own number already.
  int stdin_fd = 0;
  int stdout_fd = 1;
  int stderr_fd = 2;
  bool ends_with_parent = false;  ///< gets SIGTERM if this process is gone
  /// Whether SIGINT, SIGTERM and SIGHUP end it, as by default; else it and its children ignore
  /// them.
  bool interruptible = true;
};

class Child {
 public:
  /// Starts a process in its own group, so that signals of the terminal do not reach it. If it is
  /// interruptible, it begins with default actions for the signals that the launcher takes (an
  /// ignored SIGHUP stays ignored). It may write to the terminal from the background. Errors:
  /// kNotFound, kPermission and others of execve, E2BIG among them; kUnavailable if there are too
  /// many processes.
  static Result<Child> Start(const ChildCommand& command);

  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  /// Kills the process if it still runs, and waits for its end.
  ~Child();

  pid_t pid() const { return pid_; }
  /// Sends a signal to the process and those that it has started.
  void Signal(int signal) const;
  /// Returns waitpid's status once the process has ended; the object is then empty.
  std::optional<int> Poll();
  /// Releases the process: it may outlive the object.
  void Leave() { pid_ = 0; }

 private:
  explicit Child(pid_t pid) : pid_(pid) {}

  pid_t pid_;  ///< 0: nothing to wait for
};

}  // namespace penstock::train
