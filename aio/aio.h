// Asynchronous file I/O: requests with a priority, one ticket each, over interchangeable engines.
//
// An Engine takes requests of any size, splits them into blocks of `block_size`, keeps at most
// `queue_depth` blocks in flight and fills the queue across requests. Every completion is
// classified (error, short, full, over-long) before the data is used: transient errors are retried
// with a bound, short transfers are continued, everything else becomes one Error on the ticket of
// its request; the engine stays usable for the others.
//
// Guaranteed: a request completes exactly once; a successful read filled its whole buffer from the
// file, a successful write was accepted in full by the kernel, and neither touched a byte outside
// its range. Not guaranteed: order between requests (wait for the first to order the second after
// it), and durability (see Operation::kSync). docs/aio.md has the whole contract.
//
// Threads: every function of Engine may be called from any thread; from a completion callback only
// Submit and stats.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "aio/file.h"
#include "aio/ticket.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

/// What an engine knows of a file since Engine::RegisterFile. The destructor takes the registration
/// back; it must run before the file and the engine end. Movable.
class FileRegistration {
 public:
  FileRegistration() = default;
  explicit FileRegistration(std::function<void()> take_back) : take_back_(std::move(take_back)) {}
  FileRegistration(FileRegistration&& other) noexcept
      : take_back_(std::exchange(other.take_back_, nullptr)) {}
  FileRegistration& operator=(FileRegistration&& other) noexcept {
    FileRegistration taken(std::move(other));  // what this one held is taken back now
    std::swap(take_back_, taken.take_back_);
    return *this;
  }
  ~FileRegistration() {
    if (take_back_) take_back_();
  }

 private:
  std::function<void()> take_back_;
};

/// kSync makes durable what was complete before it was submitted (fdatasync); it has no buffer.
enum class Operation : uint8_t { kRead, kWrite, kSync };
const char* ToString(Operation operation);

/// Which requests are served first when the queue is full. State reads leave half of the queue to
/// write-backs that wait: the memory that these hold is what further state reads wait for. A lower
/// class is still served regularly: after `kStarvationBound` blocks of higher classes, one block of
/// the oldest lower request goes first.
enum class Priority : uint8_t { kParameterRead, kStateRead, kWriteBack };
inline constexpr int kPriorityCount = 3;
inline constexpr int kStarvationBound = 16;

struct Request {
  Operation operation = Operation::kRead;
  const File* file = nullptr;
  /// Any offset, address and size > 0. An aligned request (file->alignment()) is never copied. Of
  /// an unaligned request, the pages that it covers in part (of the kernel's size, or of
  /// file->alignment() if that is larger) go through the page cache, and the rest goes directly; if
  /// address and offset differ modulo the alignment, all of it goes through the page cache. No
  /// other request may run on those pages at the same time.
  FileOffset offset;
  std::span<std::byte> buffer;
  Priority priority = Priority::kParameterRead;
  /// Called once with the outcome, on an engine thread, after the ticket became done; never two at
  /// a time. Must be short, must not throw and must not wait for the engine (it may Submit).
  std::function<void(const Status&)> on_complete;
  /// What the bytes are, as in "record of tile 7", for messages. Any thread, until the request is
  /// complete; it must not wait. If empty, messages do not describe the bytes.
  std::function<std::string()> about;
};

/// Sums since the engine was made; bytes and blocks count what completed successfully.
struct EngineStats {
  uint64_t read_bytes = 0;
  uint64_t write_bytes = 0;
  uint64_t requests = 0;
  uint64_t blocks = 0;
  uint64_t syncs = 0;          ///< successful ones; not counted as blocks
  uint64_t retries = 0;        ///< blocks submitted again after EINTR or EAGAIN
  uint64_t continuations = 0;  ///< blocks submitted again after a short transfer
  uint64_t errors = 0;         ///< failed requests
  int max_in_flight = 0;       ///< max number of blocks in flight
};

class Engine {
 public:
  /// Drains: returns only when no request is in flight. No other call may overlap it, except for a
  /// Submit whose request is complete.
  virtual ~Engine() = default;

  /// Queues a request and returns at once. A malformed one (no file; an empty read or write; a sync
  /// with a buffer) fails on its ticket.
  virtual Ticket Submit(Request request) = 0;
  /// Submits kSync and waits for it.
  Status Sync(const File& file);
  /// Blocks until every request submitted before the call is complete.
  virtual void Drain() = 0;
  /// Ends requests early: what the drive does not have yet fails with kCancelled, and blocks that
  /// it has are waited for. Requests submitted later are served.
  virtual void Cancel() = 0;

  /// Says that buffers will lie in this memory, so that the kernel pins it once and not for each
  /// block (io_uring: pieces of at most 1 GiB). May be called once, with memory that is not empty
  /// and outlives the engine. Returns a line that says whether the memory was registered; empty
  /// with kOff. Buffers elsewhere are served as before. Errors: kInvalidArgument for a second call
  /// or no memory; with `registered_buffers` kOn only, kUnavailable if the engine cannot register
  /// memory or the memlock limit is too low.
  virtual Result<std::string> RegisterBuffers(std::span<const std::span<std::byte>> memory) = 0;
  /// Says that `file` will be used often, until the registration ends (io_uring: registered file).
  /// An engine without such a registration does nothing. Errors: kUnavailable if the engine cannot
  /// serve the file, because its drive has no polled queues and iopoll was asked for.
  virtual Result<FileRegistration> RegisterFile(const File& file) = 0;

  virtual EngineStats stats() const = 0;
  /// "io_uring", "threads", "simulated", …
  virtual const std::string& name() const = 0;
};

enum class EngineKind { kAuto, kUring, kLibaio, kThreads };
const char* ToString(EngineKind kind);

/// A drive in memory with a speed limit. Zero means unlimited.
struct SimulatedDrive {
  double read_gbps = 0;   ///< GB/s (10^9 bytes)
  double write_gbps = 0;  ///< GB/s
  bool shared = false;  ///< reads and writes share read_gbps, as on a drive that is not full duplex
  double latency_us = 0;  ///< added to every block
};

/// Damage befalls one such unit of a file, as a drive's sector.
inline constexpr Bytes kDamagedUnit = 4_KiB;

/// One fault, for tests. Positions count the blocks that reach the drive, from 0; a sync is a
/// block.
struct Fault {
  /// Kinds from kLost on are damage by a write that is reported as successful (aio/write_damage.h).
  enum class Kind {
    kError,
    kShort,
    kDelay,
    kLost,  ///< nothing of the block is written
    kFlip,  ///< one bit of a unit is flipped
    kOld,   ///< a unit of the block keeps its old content
    kAway,  ///< a unit of the block is written over the next one, and keeps its old content
    kBad    ///< later reads of a unit fail with EIO, until it is written again
  } kind = Kind::kError;
  std::optional<Operation> operation;  ///< none: any; damage: a write
  uint64_t first_block = 0;            ///< among the blocks of `operation`
  uint64_t count = 1;
  int error_number = 5;  ///< kError: EIO unless said otherwise
  /// Selects and counts only blocks that hold this byte of their file; damage hits its unit.
  std::optional<FileOffset> at;
  uint64_t unit = 0;  ///< damage without `at`: the number of the unit within the block
};
/// Random faults from a seed, on top of the listed ones: chances in [0, 1] for each block.
struct FaultPlan {
  std::vector<Fault> faults;
  uint64_t seed = 0;
  double error_chance = 0;      ///< EIO
  double transient_chance = 0;  ///< EINTR or EAGAIN
  double short_chance = 0;
  double delay_chance = 0;  ///< reported after others
  bool reorder = false;     ///< completions are reported in random order
  /// The drive has a cache that forgets: writes reach the file only with the sync after them, and a
  /// sync that fails loses a random choice of them. At the end, a random choice (from the seed) of
  /// the writes that were not synced reaches the file, in random order, some torn between two units
  /// of the file's alignment.
  bool lose_unsynced = false;
  /// With lose_unsynced, the crash comes at this block; it and all later blocks fail with EIO.
  std::optional<uint64_t> crash_at_block;
  std::optional<uint64_t> crash_at_sync;  ///< the same, counting syncs alone
  /// Told of a unit of a file that a fault of kBad makes unreadable, for tests that have it fail
  /// where no engine reads, too. May be empty.
  std::function<void(int fd, FileOffset unit)> on_bad_unit;
};

enum class Registration : uint8_t { kAuto, kOn, kOff };

inline constexpr Bytes kDefaultBlockSize = 1_MiB;
inline constexpr Bytes kMinBlockSize = 4_KiB;  ///< every block size is a multiple of it
inline constexpr Bytes kMaxBlockSize = 1_GiB;
inline constexpr int kDefaultQueueDepth = 32;
inline constexpr int kMaxQueueDepth = 4096;
inline constexpr int kMaxThreadCount = 64;
inline constexpr std::chrono::seconds kStallAfter{30};

struct EngineOptions {
  EngineKind kind = EngineKind::kAuto;
  Bytes block_size = kDefaultBlockSize;  ///< a multiple of kMinBlockSize, to kMaxBlockSize
  int queue_depth = kDefaultQueueDepth;  ///< blocks in flight, 1 to kMaxQueueDepth
  int thread_count = 1;  ///< threads of the thread engine, each with a block: 1 to kMaxThreadCount
  bool sqpoll = false;   ///< io_uring: a kernel thread fetches submissions; calls only to wait
  bool iopoll = false;   ///< io_uring: completions are polled for; the drive needs polled queues
  Registration registered_buffers = Registration::kAuto;
  std::vector<int> cpus;                   ///< CPUs for the engine's threads; empty: any
  bool single_submit = false;              ///< one system call a block instead of one a batch
  bool overlap_events = true;              ///< false: fill the queue, wait for all of it, repeat
  std::optional<SimulatedDrive> simulate;  ///< the engine is a throttled thread engine
  std::optional<FaultPlan> faults;         ///< wraps the engine's drive
  /// Called with one line when the drive has had a block for `stall_after`, and when it answers
  /// again (aio/stall_watch.h); on a thread of the engine, and not after its end. Must not wait for
  /// the engine. If empty, stalls are not reported, and there is no thread for it.
  std::function<void(const std::string& line)> on_stall;
  std::chrono::nanoseconds stall_after = kStallAfter;
};

/// Makes the engine that `options` name. kAuto probes io_uring, libaio, then threads; `notice`, if
/// given, receives one line that says what was chosen and why. A named engine, sqpoll or iopoll
/// that is not available is kUnavailable; no other engine silently takes its place. options out of
/// range are kInvalidArgument, and so are sqpoll and iopoll with another engine than io_uring.
Result<std::unique_ptr<Engine>> CreateEngine(const EngineOptions& options,
                                             std::string* notice = nullptr);

}  // namespace penstock::aio
