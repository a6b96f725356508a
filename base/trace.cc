#include "base/trace.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

namespace penstock {
namespace {

constexpr size_t kBuffer = size_t{1} << 18;
/// Rows of a group are numbered from a multiple of this.
constexpr uint32_t kRowsOfGroup = 1000;

std::string Quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

double Microseconds(Trace::Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

}  // namespace

Result<std::unique_ptr<Trace>> Trace::Create(const std::string& path) {
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid() && errno == EEXIST) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: it exists already; name another file for the trace, or remove it", path);
  }
  if (!fd.valid()) return ErrnoError(errno, "creating the trace " + path);
  std::unique_ptr<Trace> trace(new Trace(path, std::move(fd)));
  MutexLock lock(trace->mutex_);
  trace->buffer_.push_back('[');
  trace->Put(R"({"ph":"M","pid":1,"name":"process_name","args":{"name":"penstock"}})");
  return trace;
}

Trace::~Trace() {
  static_cast<void>(Finish());
  MutexLock lock(mutex_);
  if (!keep_) ::unlink(path_.c_str());
}

void Trace::Keep() {
  MutexLock lock(mutex_);
  keep_ = true;
}

Trace::Row Trace::AddRow(TraceGroup group, std::string_view name) {
  MutexLock lock(mutex_);
  const Row row{++rows_};
  Put(fmt::format(R"({{"ph":"M","pid":1,"tid":{},"name":"thread_name","args":{{"name":{}}}}})",
                  row.id, Quoted(name)));
  Put(fmt::format(
      R"({{"ph":"M","pid":1,"tid":{},"name":"thread_sort_index","args":{{"sort_index":{}}}}})",
      row.id, static_cast<uint32_t>(group) * kRowsOfGroup + row.id));
  return row;
}

void Trace::Add(Row row, std::string_view name, Clock::time_point begin, Clock::time_point end,
                Args args) {
  std::string numbers;
  for (const auto& [key, value] : args) {
    numbers += fmt::format("{}\"{}\":{}", numbers.empty() ? "" : ",", key, value);
  }
  const std::string event = fmt::format(
      R"({{"ph":"X","pid":1,"tid":{},"name":{},"ts":{:.3f},"dur":{:.3f},"args":{{{}}}}})", row.id,
      Quoted(name), Microseconds(begin - start_), Microseconds(end - begin), numbers);
  MutexLock lock(mutex_);
  Put(event);
}

void Trace::Put(std::string_view event) {
  if (!failure_.ok() || finished_) return;
  if (buffer_.size() > 1 || rows_ > 0) buffer_.push_back(',');
  buffer_.push_back('\n');
  buffer_ += event;
  if (buffer_.size() >= kBuffer) Write();
}

void Trace::Write() {
  std::string_view rest = buffer_;
  while (!rest.empty() && failure_.ok()) {
    const ssize_t n = ::write(fd_.get(), rest.data(), rest.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      failure_ = ErrnoError(errno, "writing the trace " + path_);
    } else {
      rest.remove_prefix(static_cast<size_t>(n));
    }
  }
  buffer_.clear();
}

Status Trace::Finish() {
  MutexLock lock(mutex_);
  if (finished_) return failure_;
  buffer_ += "\n]\n";
  Write();
  finished_ = true;
  return failure_;
}

void TraceRows::Add(std::string_view span, Trace::Clock::time_point begin,
                    Trace::Clock::time_point end, Trace::Args args) {
  Trace::Row row;
  {
    MutexLock lock(mutex_);
    auto free = std::ranges::find_if(rows_, [&](const Used& used) { return used.until <= begin; });
    if (free == rows_.end()) {
      const std::string name =
          rows_.empty() ? name_ : fmt::format("{} ({})", name_, rows_.size() + 1);
      free = rows_.insert(free, {.row = trace_.AddRow(group_, name)});
    }
    free->until = end;
    row = free->row;
  }
  trace_.Add(row, span, begin, end, args);
}

}  // namespace penstock
