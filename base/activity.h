// Measures when each resource was busy: the times that a step reports.
//
// Threads mark the start and end of their work in a lane; the work of a GPU is added when its clock
// has been read. From these moments the meter sums the time in which a lane was busy, the time in
// which tiles were updated under compute, and the time in which the computation waited for data
// or for other ranks (something waited and nothing computed).
#pragma once

#include <array>
#include <chrono>
#include <vector>

#include "base/mutex.h"
#include "base/trace.h"

namespace penstock {

enum class Lane {
  kCompute,    ///< the compute stream runs a kernel
  kDataWait,   ///< the compute stream, or the thread that feeds it, waits for parameters
  kOptimizer,  ///< an optimizer thread works: block sums, updates
  kUpdate,     ///< an optimizer thread updates a tile
  kRanks,      ///< an operation between ranks has begun and not ended
};

/// Sums since the meter was made.
struct ActivityTotals {
  std::chrono::nanoseconds compute{};        ///< kCompute busy
  std::chrono::nanoseconds io_wait{};        ///< kDataWait busy and kCompute not
  std::chrono::nanoseconds optimizer{};      ///< kOptimizer busy
  std::chrono::nanoseconds update{};         ///< kUpdate busy
  std::chrono::nanoseconds update_hidden{};  ///< kUpdate and kCompute busy
  std::chrono::nanoseconds comm_wait{};      ///< kRanks busy and kCompute not
};

/// All functions may be called from any thread; Begin and End cost a lock and a clock reading.
class ActivityMeter {
 public:
  using Clock = std::chrono::steady_clock;
  /// The number of newest moments that are kept. An interval may be added late, as long as it began
  /// after the oldest of them; an interval that began before counts from there.
  static constexpr size_t kKept = size_t{1} << 16;

  /// With a `trace`, users of the meter also add their work to the trace.
  explicit ActivityMeter(Trace* trace = nullptr);

  Trace* trace() const { return trace_; }
  void Begin(Lane lane) EXCLUDES(mutex_) { Change(lane, +1); }
  void End(Lane lane) EXCLUDES(mutex_) { Change(lane, -1); }
  /// Adds an interval in which something was busy in the lane.
  void Add(Lane lane, Clock::time_point begin, Clock::time_point end) EXCLUDES(mutex_);
  ActivityTotals Totals() const EXCLUDES(mutex_);

 private:
  using Counts = std::array<int, 5>;  ///< count of each lane
  struct Moment {
    Clock::time_point at;
    Lane lane;
    int change;  ///< change of the lane's count
  };
  /// The sums up to a moment, and what was busy then.
  struct Summed {
    Clock::time_point until;
    Counts busy{};
    ActivityTotals totals;

    void AdvanceTo(Clock::time_point now);
    void Apply(const Moment& moment);
  };

  void Change(Lane lane, int by) EXCLUDES(mutex_);
  void Keep(const Moment& moment) REQUIRES(mutex_);

  Trace* const trace_;
  mutable Mutex mutex_;
  Counts begun_ GUARDED_BY(mutex_){};  ///< work that has begun and not ended
  Summed summed_ GUARDED_BY(mutex_){.until = Clock::now()};
  mutable std::vector<Moment> moments_ GUARDED_BY(mutex_);  ///< later than that
};

/// Returns nothing if there is no meter.
inline Trace* TraceOf(const ActivityMeter* meter) {
  return meter == nullptr ? nullptr : meter->trace();
}

/// Marks a lane busy for a scope. A null meter measures nothing.
class ActivityScope {
 public:
  ActivityScope(ActivityMeter* meter, Lane lane) : meter_(meter), lane_(lane) {
    if (meter_ != nullptr) meter_->Begin(lane_);
  }
  ~ActivityScope() {
    if (meter_ != nullptr) meter_->End(lane_);
  }
  ActivityScope(const ActivityScope&) = delete;
  ActivityScope& operator=(const ActivityScope&) = delete;

 private:
  ActivityMeter* meter_;
  Lane lane_;
};

}  // namespace penstock
