#include "base/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock {
namespace {

using nlohmann::json;

/// What the parser has taken so far.
struct Cursor {
  size_t count = 0;  ///< characters
  size_t line = 1;   ///< line of the next character

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

/// Builds the value of the parser's events, and finds what is wrong: the parser's error, or else
/// the first thing that is refused of what the parser itself accepts (of a key that is there twice
/// it keeps the last one). After that it builds no further and waits for the parser's error. The
/// library's own builder that can refuse looks at all siblings at the end of each object.
class StrictBuilder final : public json::json_sax_t {
 public:
  /// Both must outlive it; `lines` may be null. `values`: false keeps nothing but the type of the
  /// whole, for a text whose value is of no use.
  StrictBuilder(const Cursor* cursor, JsonLines* lines, bool values = true)
      : cursor_(cursor), lines_(lines), values_(values) {
    frames_.reserve(kDeepestJson);  // so that a frame's key stays where it is
  }

  const std::optional<JsonFault>& fault() const { return fault_; }
  json TakeValue() { return std::move(root_); }

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return Add(value); }
  bool string(string_t& value) override { return Add(values_ ? json(std::move(value)) : json()); }
  bool binary(binary_t& value) override { return Add(std::move(value)); }
  bool start_object(size_t /*size*/) override { return Open(json::value_t::object); }
  bool start_array(size_t /*size*/) override { return Open(json::value_t::array); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& key) override {
    if (fault_) return true;
    Frame& frame = frames_.back();
    const auto [first, inserted] = frame.keys.emplace(std::move(key), cursor_->line);
    frame.key = &first->first;
    if (!inserted) {
      fault_ = FaultHere(JsonFault::Kind::kDuplicateKey);
      fault_->key = first->first;
      fault_->path = Path();
      fault_->first_line = first->second;
    } else if (lines_ != nullptr && PathSize() <= kMaxJsonPath) {
      lines_->emplace(Path(), cursor_->line);
    }
    return true;
  }

  bool parse_error(size_t byte, const std::string& /*token*/,
                   const json::exception& error) override {
    const bool syntax = dynamic_cast<const json::parse_error*>(&error) != nullptr;
    fault_ = FaultHere(syntax ? JsonFault::Kind::kSyntax : JsonFault::Kind::kUnreadable);
    if (syntax) fault_->byte = byte;
    if (!syntax) fault_->reason = JsonReason(error);
    return false;
  }

 private:
  /// An object or a list that is being read.
  struct Frame {
    json* container;
    std::map<std::string, size_t> keys;  ///< key -> line
    const std::string* key = nullptr;    ///< key of the member that is being read; null in a list
  };

  /// Puts a value where it belongs and returns its place, which stays until the container takes the
  /// next one.
  json* Place(json&& value) {
    if (frames_.empty()) return &(root_ = std::move(value));
    if (!values_) return nullptr;
    const Frame& frame = frames_.back();
    if (frame.key == nullptr) return &frame.container->emplace_back(std::move(value));
    return &((*frame.container)[*frame.key] = std::move(value));
  }

  bool Add(json&& value) {
    if (!fault_) Place(std::move(value));
    return true;
  }

  bool Open(json::value_t type) {
    if (fault_) return true;
    if (frames_.size() == kDeepestJson) {
      fault_ = FaultHere(JsonFault::Kind::kTooDeep);
    } else {
      frames_.push_back({.container = Place(json(type)), .keys = {}});
    }
    return true;
  }

  bool Close() {
    if (!fault_) frames_.pop_back();
    return true;
  }

  /// Returns the path of the member that is being read. It is joined only on request: a path holds
  /// the keys of all containers around, and there may be many values below a long key.
  std::string Path() const {
    std::string path;
    for (const Frame& frame : frames_) {
      path = JoinJsonPath(std::move(path), frame.key == nullptr ? "[]" : *frame.key);
    }
    return path;
  }

  /// Returns at least the size of Path().
  size_t PathSize() const {
    size_t size = 0;
    for (const Frame& frame : frames_) size += frame.key == nullptr ? 3 : frame.key->size() + 1;
    return size;
  }

  JsonFault FaultHere(JsonFault::Kind kind) const {
    return {.kind = kind, .byte = cursor_->count, .line = cursor_->line};
  }

  const Cursor* cursor_;
  JsonLines* lines_;
  const bool values_;
  json root_;
  std::vector<Frame> frames_;
  std::optional<JsonFault> fault_;
};

/// What no JSON text has at byte number `byte`, from 1.
std::string UnexpectedAt(std::string_view text, size_t byte) {
  if (byte == 0 || byte > text.size()) return "it ends too soon";
  const auto found = static_cast<unsigned char>(text[byte - 1]);
  if (found >= 0x80) return "a character that is not expected here, or is not UTF-8";
  if (found < ' ') return "the line ends, or a control character stands, where neither may";
  return fmt::format("unexpected '{}'", text[byte - 1]);
}

std::optional<JsonFault> Read(std::string_view text, const JsonOptions& options, bool values,
                              json* value) {
  Cursor cursor;
  StrictBuilder builder(&cursor, options.lines, values);
  json::sax_parse(CountingIterator(text.data(), &cursor),
                  CountingIterator(text.data() + text.size(), &cursor), &builder,
                  json::input_format_t::json, /*strict=*/true, options.comments);
  if (std::optional<JsonFault> fault = builder.fault()) {
    if (fault->kind == JsonFault::Kind::kSyntax) fault->reason = UnexpectedAt(text, fault->byte);
    return fault;
  }
  *value = builder.TakeValue();
  return std::nullopt;
}

/// The object that `text` holds; without `values`, an empty one.
Result<json> ReadObject(std::string_view text, const std::string& name, ErrorCode code,
                        bool values) {
  json value;
  if (const std::optional<JsonFault> fault = Read(text, {}, values, &value)) {
    switch (fault->kind) {
      case JsonFault::Kind::kSyntax:
        if (fault->byte > text.size()) {
          return MakeError(code, "{} is not JSON: it ends too soon, after {} bytes", name,
                           text.size());
        }
        return MakeError(code, "{} is not JSON: syntax error at byte {} of {}", name, fault->byte,
                         text.size());
      case JsonFault::Kind::kUnreadable:
        return MakeError(code, "{} cannot be read as JSON ({})", name, fault->reason);
      case JsonFault::Kind::kTooDeep:
        return MakeError(code, "{} has values nested deeper than {} levels", name, kDeepestJson);
      case JsonFault::Kind::kDuplicateKey:
        return MakeError(code, "{} has the key \"{}\" twice in one object", name, fault->key);
    }
  }
  if (!value.is_object()) return MakeError(code, "{} is not a JSON object", name);
  return value;
}

}  // namespace

std::string JoinJsonPath(std::string path, std::string_view key) {
  if (!path.empty()) path += '.';
  path += key;
  return path;
}

std::optional<JsonFault> ParseStrictly(std::string_view text, JsonOptions options, json* value) {
  return Read(text, options, /*values=*/true, value);
}

Status CheckJsonObject(std::string_view text, const std::string& name, ErrorCode code) {
  return ReadObject(text, name, code, /*values=*/false).status();
}

Result<json> ParseJsonObject(std::string_view text, const std::string& name, ErrorCode code) {
  return ReadObject(text, name, code, /*values=*/true);
}

std::string JsonReason(const json::exception& error) {
  constexpr int kTypeError = 302;
  constexpr int kNoKey = 403;
  constexpr int kNumberOverflow = 406;
  const std::string_view what = error.what();
  if (const auto* syntax = dynamic_cast<const json::parse_error*>(&error)) {
    return fmt::format("syntax error at byte {}", syntax->byte);
  }
  if (error.id == kNumberOverflow) return "a number is beyond all bounds";
  // "key 'seed' not found", "type must be string, but is null"
  if (error.id == kNoKey && std::ranges::count(what, '\'') == 2) {
    const size_t begin = what.find('\'') + 1;
    return fmt::format("it lacks {}", what.substr(begin, what.find('\'', begin) - begin));
  }
  constexpr std::string_view kBut = ", but is ";
  if (const size_t but = what.find(kBut); error.id == kTypeError && but != what.npos) {
    return fmt::format("a value has another type than it should: {}",
                       what.substr(but + kBut.size()));
  }
  return "a value is not what belongs there";
}

bool FitsJson(const std::string& text) {
  try {
    static_cast<void>(json(text).dump());
    return true;
  } catch (const json::exception&) {
    return false;
  }
}

std::string Excerpt(const json& value) {
  constexpr size_t kMaxShown = 40;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kMaxShown ? text : text.substr(0, kMaxShown) + "…";
}

}  // namespace penstock
