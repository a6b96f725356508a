#include "train/strict_json.h"

#include <set>
#include <utility>
#include <vector>

namespace penstock::train {
namespace {

using nlohmann::json;

/// Watches a parse for what the parser itself accepts: keys that an object holds twice (it keeps
/// the last one), and nesting without bound.
class Watch {
 public:
  /// False: the value is not kept.
  bool operator()(int depth, json::parse_event_t event, const json& parsed) {
    const bool object = event == json::parse_event_t::object_start;
    const bool start = object || event == json::parse_event_t::array_start;
    too_deep_ = too_deep_ || (start && depth >= kDeepestJson);
    if (too_deep_) return false;
    if (object) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event != json::parse_event_t::key || !duplicate_.empty()) return true;
    auto key = parsed.get<std::string>();
    if (!keys_.back().insert(key).second) duplicate_ = std::move(key);
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }
  bool too_deep() const { return too_deep_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string duplicate_;
  bool too_deep_ = false;
};

}  // namespace

Result<json> ParseJsonObject(std::string_view text, const std::string& name, ErrorCode code) {
  Watch watch;
  json value;
  try {
    value = json::parse(text, [&watch](int depth, json::parse_event_t event, json& parsed) {
      return watch(depth, event, parsed);
    });
  } catch (const json::parse_error& error) {
    return MakeError(code, "{} is not JSON: syntax error at byte {} of {}", name, error.byte,
                     text.size());
  } catch (const json::exception& error) {
    return MakeError(code, "{} cannot be read as JSON ({})", name, error.what());
  }
  if (watch.too_deep()) {
    return MakeError(code, "{} has values nested deeper than {} levels", name, kDeepestJson);
  }
  if (!watch.duplicate().empty()) {
    return MakeError(code, "{} has the key \"{}\" twice in one object", name, watch.duplicate());
  }
  if (!value.is_object()) return MakeError(code, "{} is not a JSON object", name);
  return value;
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
  constexpr size_t kLongest = 40;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "…";
}

}  // namespace penstock::train
