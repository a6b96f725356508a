// A folder for the files of one command: made empty, and removed with all that is in it.
//
// It is locked while the command runs. An unlocked one was left by a killed process: the next
// command that needs its name removes it.
//
// Threads: one.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "run/run_lock.h"

namespace penstock::train {

/// The name of a replay's folder, in RUN or where --scratch says.
inline std::string ReplayScratchName(const std::string& run_uuid) { return ".replay-" + run_uuid; }

/// What a killed process left of a scratch folder, locked as long as it lives.
struct LeftScratch {
  Folder folder;
  RunLock lock;

  /// Returns the size of the files in it.
  Bytes Size() const;
  /// Removes it with all that is in it, and ends the lock.
  Status Remove();
};
/// Finds it; nothing if there is no folder of that name. Errors: kUnavailable while a process has
/// it; of Folder.
Result<std::optional<LeftScratch>> FindLeftScratch(const Folder& around, const std::string& name);

class ScratchFolder {
 public:
  /// No other program uses `name` there. Errors: kUnavailable while another process has it; of
  /// Folder.
  static Result<ScratchFolder> Make(const std::string& parent, const std::string& name);
  ScratchFolder(ScratchFolder&& other) noexcept
      : folder_(std::exchange(other.folder_, std::nullopt)), lock_(std::move(other.lock_)) {}
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  /// Removes it.
  ~ScratchFolder();

  /// Absolute.
  const std::string& path() const { return folder_->path(); }

 private:
  ScratchFolder(Folder folder, RunLock lock) : folder_(std::move(folder)), lock_(std::move(lock)) {}

  std::optional<Folder> folder_;  ///< none: it was moved from
  RunLock lock_;
};

}  // namespace penstock::train
