#include "train/data_json.h"

#include <set>
#include <utility>
#include <vector>

namespace penstock::train {
namespace {

using nlohmann::json;

/// Watches a parse for keys that an object holds twice; the parser itself keeps the last one.
class DuplicateFinder {
 public:
  void operator()(json::parse_event_t event, const json& parsed) {
    if (event == json::parse_event_t::object_start) keys_.emplace_back();
    if (event == json::parse_event_t::object_end) keys_.pop_back();
    if (event != json::parse_event_t::key || !duplicate_.empty()) return;
    auto key = parsed.get<std::string>();
    if (!keys_.back().insert(key).second) duplicate_ = std::move(key);
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  std::vector<std::set<std::string>> keys_;
  std::string duplicate_;
};

}  // namespace

Result<json> ParseJsonObject(std::string_view text, const std::string& name, ErrorCode code) {
  DuplicateFinder finder;
  json value;
  try {
    value = json::parse(text, [&finder](int, json::parse_event_t event, json& parsed) {
      finder(event, parsed);
      return true;
    });
  } catch (const json::parse_error& error) {
    return MakeError(code, "{} is not JSON: syntax error at byte {} of {}", name, error.byte,
                     text.size());
  } catch (const json::exception& error) {
    return MakeError(code, "{} cannot be read as JSON ({})", name, error.what());
  }
  if (!finder.duplicate().empty()) {
    return MakeError(code, "{} has the key \"{}\" twice in one object", name, finder.duplicate());
  }
  if (!value.is_object()) return MakeError(code, "{} is not a JSON object", name);
  return value;
}

std::string Excerpt(const json& value) {
  constexpr size_t kLongest = 40;
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "…";
}

}  // namespace penstock::train
