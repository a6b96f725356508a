#include "zero/json_document.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using nlohmann::json;

/// What the parser has taken so far.
struct Cursor {
  size_t count = 0;  ///< characters
  size_t line = 1;   ///< of the next character

  void Pass(char character) {
    ++count;
    if (character == '\n') ++line;
  }
};

/// Hands characters to the parser and tells the cursor; what the parser's own interface does not
/// give.
class CountingIterator {
 public:
  // NOLINTBEGIN(readability-identifier-naming): std::iterator_traits reads these names.
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;
  // NOLINTEND(readability-identifier-naming)

  CountingIterator(const char* at, Cursor* cursor) : at_(at), cursor_(cursor) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    cursor_->Pass(*at_);
    ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const CountingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  Cursor* cursor_;
};

/// Follows the parser's events: where each key stands, and the first thing that strict reading
/// refuses; after that it follows no further.
class KeyTracker {
 public:
  explicit KeyTracker(const Cursor* cursor) : cursor_(cursor) {}

  bool OnEvent(json::parse_event_t event, const json& parsed) {
    if (refusal_) return true;
    switch (event) {
      case json::parse_event_t::object_start:
      case json::parse_event_t::array_start:
        Open();
        break;
      case json::parse_event_t::object_end:
      case json::parse_event_t::array_end:
        frames_.pop_back();
        break;
      case json::parse_event_t::key:
        OnKey(parsed.get_ref<const std::string&>());
        break;
      case json::parse_event_t::value:
        break;
    }
    return true;
  }

  const std::map<std::string, size_t>& lines() const { return lines_; }
  /// "line: what is wrong", where something is.
  const std::optional<std::string>& refusal() const { return refusal_; }

 private:
  struct Frame {
    std::string path;
    std::string key;                     ///< of the member that is being read
    std::map<std::string, size_t> keys;  ///< key -> line
  };

  void Open() {
    std::string path;
    if (!frames_.empty()) path = JoinPath(frames_.back().path, frames_.back().key);
    frames_.push_back(Frame{std::move(path), "[]", {}});
    if (frames_.size() > kMaxJsonDepth) {
      Refuse(fmt::format("nested deeper than {} levels", kMaxJsonDepth));
    }
  }

  void OnKey(const std::string& key) {
    Frame& frame = frames_.back();
    frame.key = key;
    const std::string path = JoinPath(frame.path, key);
    const auto [first, inserted] = frame.keys.emplace(key, cursor_->line);
    if (!inserted) {
      Refuse(fmt::format("duplicate key {} (first on line {}); keep one of them", json(path).dump(),
                         first->second));
    }
    lines_.emplace(path, cursor_->line);
  }

  void Refuse(const std::string& why) { refusal_ = fmt::format("{}: {}", cursor_->line, why); }

  const Cursor* cursor_;
  std::vector<Frame> frames_;
  std::map<std::string, size_t> lines_;
  std::optional<std::string> refusal_;
};

/// "line:column" of character number `count`, from 1, of `text`.
std::string PositionOf(std::string_view text, size_t count) {
  const std::string_view before = text.substr(0, count == 0 ? 0 : count - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // 0 without one
  return fmt::format("{}:{}", line, before.size() - line_start + 1);
}

/// The library's message without its tag and position, on one line of bounded length.
std::string Explain(std::string_view what) {
  for (const std::string_view mark : {"] ", "parse error at line ", ": "}) {
    const size_t at = what.find(mark);
    if (at == std::string_view::npos) break;
    what.remove_prefix(at + mark.size());
  }
  constexpr size_t kMaxLength = 300;
  return fmt::format("{}{}", what.substr(0, kMaxLength), what.size() > kMaxLength ? "..." : "");
}

void MergeInto(json& target, json&& source) {
  if (!target.is_object() || !source.is_object()) {
    target = std::move(source);
    return;
  }
  for (auto& [key, value] : source.items()) MergeInto(target[key], std::move(value));
}

}  // namespace

std::string JoinPath(const std::string& path, const std::string& key) {
  return path.empty() ? key : path + "." + key;
}

Status JsonDocument::Merge(const std::string& name, const std::string& text) {
  Cursor cursor;
  KeyTracker tracker(&cursor);
  json parsed;
  try {
    parsed = json::parse(
        CountingIterator(text.data(), &cursor),
        CountingIterator(text.data() + text.size(), &cursor),
        [&tracker](int /*depth*/, json::parse_event_t event, json& value) {
          return tracker.OnEvent(event, value);
        },
        /*allow_exceptions=*/true, /*ignore_comments=*/true);
  } catch (const json::exception& error) {
    const auto* syntax = dynamic_cast<const json::parse_error*>(&error);
    const size_t at = syntax != nullptr ? syntax->byte : cursor.count;
    return MakeError(ErrorCode::kInvalidArgument, "{}:{}: not valid JSON: {}", name,
                     PositionOf(text, at), Explain(error.what()));
  }
  if (tracker.refusal()) {
    return MakeError(ErrorCode::kInvalidArgument, "{}:{}", name, *tracker.refusal());
  }
  if (!parsed.is_object()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}: the configuration must be a JSON object, not {}", name,
                     parsed.type_name());
  }
  for (const auto& [path, line] : tracker.lines()) {
    positions_[path] = fmt::format("{}:{}", name, line);
  }
  MergeInto(root_, std::move(parsed));
  return {};
}

std::string JsonDocument::Where(const std::string& path) const {
  std::string prefix = path;
  while (!prefix.empty()) {
    if (const auto found = positions_.find(prefix); found != positions_.end()) {
      return found->second + ": ";
    }
    const size_t dot = prefix.rfind('.');
    prefix.resize(dot == std::string::npos ? 0 : dot);
  }
  return {};
}

}  // namespace penstock::zero
