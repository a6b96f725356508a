// Reads a file of lines, none of which may be longer than a bound: a damaged file may be one line
// of any size, and must take neither the memory nor the time to read it.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <istream>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// The longest line of a file in a run's folder. A row takes less than 1 KiB; a row of
/// headroom.jsonl for a model of 1000 layers takes 100 KiB.
inline constexpr Bytes kMaxLine = 1_MiB;

class BoundedLines {
 public:
  /// `file` is read from its beginning, and outlives this object. `path` is for messages.
  BoundedLines(std::istream& file, std::string path);

  enum class Line {
    kEnd,       ///< there are no more lines, or reading failed
    kComplete,  ///< with its line break
    kTorn,      ///< the last one, without a line break
    kTooLong,   ///< text() is its beginning; reading ends there
  };
  Line Next();

  /// The line that Next came to, without its line break.
  const std::string& text() const { return text_; }
  uint64_t number() const { return number_; }  ///< from 1
  FileOffset begin() const { return begin_; }
  /// Whether the line is the last one.
  bool AtEnd();

  /// Errors: kIo if reading failed.
  Status status() const;
  /// What is wrong where Next returned kTooLong: kCorruption, with the file, the line, its length
  /// as far as it is known, and the bound.
  Error TooLong();

 private:
  std::istream& file_;
  std::string path_;
  std::vector<char> buffer_;
  std::string text_;
  uint64_t number_ = 0;
  FileOffset begin_;
  FileOffset end_;
};

}  // namespace penstock::train
