// One path of a state: its file, and the I/O engine that serves it.
//
// Owns the open, locked, preallocated file. The destructor removes a file that the object created,
// unless Keep was called or its path then names another file. offload::StateFile decides which
// bytes belong where.
//
// Threads: Submit, Cancel and geometry from any thread, the others from one thread at a time.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "aio/drive_speed.h"
#include "base/result.h"
#include "offload/state_format.h"

namespace penstock::offload {

/// Bytes of a file that are on the drive and must stay as they were written.
struct WrittenBytes {
  FileOffset offset;
  Bytes size;
  uint64_t checksum = 0;  ///< offload::Checksum of them
};

struct StatePathOptions {
  std::string folder;
  std::string name;  ///< name of the file
  bool require_direct = true;
  bool simulated = false;  ///< kept in memory (memfd)
};

class StatePath {
 public:
  /// Creates and locks an empty file; MarkUnfinished must follow. `engine` outlives the path.
  /// Errors: kNotFound, kPermission, kUnavailable (no O_DIRECT, or units larger than the format's).
  static Result<std::unique_ptr<StatePath>> Create(const StatePathOptions& options,
                                                   aio::Engine& engine);
  /// Opens and locks an existing file for further writes; Adopt must follow. Errors: those of
  /// Create; kNotFound if there is no such file.
  static Result<std::unique_ptr<StatePath>> Open(const StatePathOptions& options,
                                                 aio::Engine& engine);
  ~StatePath();

  /// Marks a new file durably as an unfinished one of the state `uuid`, until WriteHead has written
  /// its header. So the rest that a kill leaves can be told from a damaged state.
  Status MarkUnfinished(const Uuid& uuid);
  /// Measures bytes a second with at most `size` bytes of the file, which afterwards has only its
  /// mark again.
  Result<double> Measure(const aio::SpeedProbe& probe, Bytes size);
  /// Preallocates the file and writes both heads of `header`, the first header last. All is durable
  /// when this returns.
  /// Errors: kOutOfSpace with what is free and what is needed.
  Status WriteHead(const StateHeader& header);
  /// Takes the file as it is, with the `geometry` of its header; `head` is everything before commit
  /// place 0, as it should be. Where a head is something else or not there, writes it, durably, and
  /// reads it back: nothing else is written before. Returns a notice of what was written; a head
  /// that cannot be written, or for which a full drive has no room, is named there, if the other
  /// one holds. Errors: kCorruption if the file is shorter; of I/O if no head holds.
  Result<std::string> Adopt(const StateGeometry& geometry, std::vector<std::byte> head);
  /// Lets the file stay when the object is destroyed.
  void Keep() { keep_ = true; }

  const std::string& file_path() const { return file_.path(); }
  const StateGeometry& geometry() const { return geometry_; }

  /// Submits `request`, in which only the file is missing.
  aio::Ticket Submit(aio::Request request) {
    request.file = &file_;
    return engine_.Submit(std::move(request));
  }
  void Cancel() { engine_.Cancel(); }
  /// Has the page cache give up a range of a file without O_DIRECT that is on the drive, so that
  /// reads see what the drive holds.
  void LeaveCache(FileOffset offset, Bytes size) const;
  /// Writes bytes, padded with zeros to the alignment, and waits. `about` names them in messages.
  Status Write(FileOffset offset, std::span<const std::byte> bytes, std::string about = "head");
  Status Sync() { return engine_.Sync(file_); }

  /// Checks that the open file is still the one at its path, and as long as it was made. Errors:
  /// kNotFound if it was deleted; kUnavailable if it was moved away, with or without another file
  /// in its place; kCorruption if it was cut.
  Status CheckPlace() const;
  /// The same, and checks that a head reads back from the drive as it was written. One that does
  /// not is not looked at again if the other one does; returns a notice of it. Errors: also those
  /// of CheckWritten.
  Result<std::string> CheckHeads();
  /// Checks that `written` reads back from the drive; `what` is its name in messages. Errors:
  /// kCorruption, kIo.
  Status CheckWritten(const WrittenBytes& written, const char* what) const;

 private:
  StatePath(aio::File file, StatePathOptions options, aio::Engine& engine);
  static Result<std::unique_ptr<StatePath>> OpenOrCreate(const StatePathOptions& options,
                                                         bool create, aio::Engine& engine);
  Result<std::string> MakeRoomForSecondHead(Bytes size);
  Status WriteFirstHead(std::span<const std::byte> head);

  aio::File file_;
  const StatePathOptions options_;
  aio::Engine& engine_;
  aio::FileRegistration registration_;
  StateGeometry geometry_;
  Bytes held_bytes_;                 ///< actual size of the file: smaller without a second head
  std::vector<WrittenBytes> heads_;  ///< valid heads
  bool keep_ = false;
};

}  // namespace penstock::offload
