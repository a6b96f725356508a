#include "run/rows/bounded_lines.h"

#include <utility>

namespace penstock::train {

// Room for a line of kMaxLine, and the zero that getline puts behind it.
BoundedLines::BoundedLines(std::istream& file, std::string path)
    : file_(file), path_(std::move(path)), buffer_(kMaxLine.value + 1) {}

BoundedLines::Line BoundedLines::Next() {
  if (!file_.good()) return Line::kEnd;
  begin_ = end_;
  file_.getline(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  const auto taken = static_cast<size_t>(file_.gcount());
  if (file_.bad() || (file_.eof() && taken == 0)) return Line::kEnd;
  ++number_;
  end_ = end_ + Bytes{taken};
  const bool has_break = !file_.eof() && !file_.fail();
  text_.assign(buffer_.data(), has_break ? taken - 1 : taken);
  if (file_.eof()) return Line::kTorn;
  return file_.fail() ? Line::kTooLong : Line::kComplete;
}

bool BoundedLines::AtEnd() { return file_.peek() == std::istream::traits_type::eof(); }

Status BoundedLines::status() const {
  if (!file_.bad()) return {};
  return MakeError(ErrorCode::kIo, "reading {} failed", path_);
}

Error BoundedLines::TooLong() {
  file_.clear();
  file_.seekg(0, std::ios::end);
  const std::streamoff size = file_.tellg();
  const std::string rest =
      size < 0 ? "" : fmt::format(", and the file has {} bytes", static_cast<uint64_t>(size));
  return MakeError(ErrorCode::kCorruption,
                   "{}, line {} (from byte {} on): it is longer than {} bytes, which a line may "
                   "have at most{}; repair the file, or move it away",
                   path_, number_, begin_.value, kMaxLine.value, rest);
}

}  // namespace penstock::train
