// Shows progress as one line on stderr: rewritten in place on a terminal, plain lines elsewhere.
//
// Threads: one at a time.
#pragma once

#include <cstdio>
#include <string>

namespace penstock::train {

class StatusLine {
 public:
  /// `terminal`: rewrite one line of `out`; otherwise every text is a line of its own.
  StatusLine(std::FILE* out, bool terminal) : out_(out), terminal_(terminal) {}
  ~StatusLine() { Finish(); }
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;

  void Show(const std::string& line);
  /// Leaves the cursor at the start of an empty line, for other output.
  void Finish();

 private:
  std::FILE* out_;
  bool terminal_;
  bool line_open_ = false;
};

/// "[####----]": `share` (clamped to [0, 1]) of a bar, whole parts only, so that it is full only
/// at the end.
std::string ProgressBar(double share);

/// "1:05", "2:03:00"; below zero is zero.
std::string DurationText(double seconds);

}  // namespace penstock::train
