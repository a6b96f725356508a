// Records a trace in the Chrome trace format, for Perfetto and chrome://tracing.
//
// Spans are in rows, and the spans of one row do not overlap. A span is written when it ends,
// through a small buffer, so that memory is bounded and the file of a killed program can be opened,
// too.
//
// Threads: all functions from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace penstock {

/// Rows of a group stand together, in this order.
enum class TraceGroup { kSteps, kWaits, kCompute, kCopies, kOptimizer, kDrives };

class Trace {
 public:
  using Clock = std::chrono::steady_clock;
  struct Row {
    uint32_t id = 0;
  };
  /// Names and numbers that a viewer shows with a span.
  using Args = std::initializer_list<std::pair<const char*, uint64_t>>;

  /// Begins a file that does not exist yet. Errors: kInvalidArgument if it exists; of open.
  static Result<std::unique_ptr<Trace>> Create(const std::string& path);
  ~Trace();
  Trace(const Trace&) = delete;
  Trace& operator=(const Trace&) = delete;

  Row AddRow(TraceGroup group, std::string_view name) EXCLUDES(mutex_);
  void Add(Row row, std::string_view name, Clock::time_point begin, Clock::time_point end,
           Args args = {}) EXCLUDES(mutex_);
  /// The file stays when the object goes.
  void Keep() EXCLUDES(mutex_);
  /// Ends the file, which then has everything added so far. Returns the first failure of a write;
  /// later data is missing.
  Status Finish() EXCLUDES(mutex_);

 private:
  Trace(std::string path, UniqueFd fd) : path_(std::move(path)), fd_(std::move(fd)) {}
  void Put(std::string_view event) REQUIRES(mutex_);
  void Write() REQUIRES(mutex_);

  const std::string path_;
  const Clock::time_point start_ = Clock::now();
  Mutex mutex_;
  UniqueFd fd_ GUARDED_BY(mutex_);
  std::string buffer_ GUARDED_BY(mutex_);
  Status failure_ GUARDED_BY(mutex_);
  bool finished_ GUARDED_BY(mutex_) = false;
  bool keep_ GUARDED_BY(mutex_) = false;
  uint32_t rows_ GUARDED_BY(mutex_) = 0;
};

/// A span from its construction to its destruction; nothing if `trace` is null.
class TraceSpan {
 public:
  /// A span shorter than `shortest` is left out.
  TraceSpan(Trace* trace, Trace::Row row, std::string_view name,
            Trace::Clock::duration shortest = {})
      : trace_(trace), row_(row), shortest_(shortest) {
    if (trace_ == nullptr) return;
    name_ = name;
    begin_ = Trace::Clock::now();
  }
  ~TraceSpan() {
    if (trace_ == nullptr) return;
    const auto end = Trace::Clock::now();
    if (end - begin_ >= shortest_) trace_->Add(row_, name_, begin_, end);
  }
  TraceSpan(const TraceSpan&) = delete;
  TraceSpan& operator=(const TraceSpan&) = delete;

 private:
  Trace* const trace_;
  const Trace::Row row_;
  std::string name_;
  const Trace::Clock::duration shortest_;
  Trace::Clock::time_point begin_;
};

/// Rows for spans that overlap in any way: as many as there are at once.
class TraceRows {
 public:
  TraceRows(Trace& trace, TraceGroup group, std::string name)
      : trace_(trace), group_(group), name_(std::move(name)) {}
  void Add(std::string_view span, Trace::Clock::time_point begin, Trace::Clock::time_point end,
           Trace::Args args) EXCLUDES(mutex_);

 private:
  struct Used {
    Trace::Row row;
    Trace::Clock::time_point until;
  };

  Trace& trace_;
  const TraceGroup group_;
  const std::string name_;
  Mutex mutex_;
  std::vector<Used> rows_ GUARDED_BY(mutex_);
};

}  // namespace penstock
