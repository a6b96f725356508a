#include "front/commit_text.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/strict_json.h"
#include "front/raw_json.h"
#include "offload/caller_file.h"
#include "run/committed_run.h"

namespace penstock::front {
namespace {

using nlohmann::json;

/// The key that only commits of the package's older format have, with the version of its text.
constexpr const char* kOlder = "penstock_python";
constexpr int kOlderVersion = 1;
constexpr const char* kOlderCallers[] = {"groups", "random", "calls", "attached"};

Error OtherTraining(const std::string& run, const std::string& how) {
  return MakeError(ErrorCode::kInvalidArgument,
                   "the commit of {} is of another training ({}); make the same optimizer, or name "
                   "another run",
                   run, how);
}

Error NotOfARun(const std::string& run, const std::string& what) {
  return MakeError(ErrorCode::kCorruption, "the commit of {} {}; it was not made by a run", run,
                   what);
}

Status CheckSame(const json& there, const Identity& identity, const std::string& run) {
  const json asked = json::parse(identity.keys);
  for (const json& object : {there, asked}) {
    for (const auto& [key, value] : object.items()) {
      const json had = there.value(key, json());
      const json has = asked.value(key, json());
      if (had == has) continue;
      if (key == "kind") {
        return MakeError(ErrorCode::kInvalidArgument,
                         "the commit of {} is of kind {}, and {} was asked for", run, Excerpt(had),
                         Excerpt(has));
      }
      return OtherTraining(
          run, fmt::format("its {} is {}, and {} was asked for", key, Excerpt(had), Excerpt(has)));
    }
  }
  return {};
}

Result<std::string> OlderCallersPart(const json& text, const Identity& identity,
                                     const std::string& raw, const std::string& run) {
  if (text.at(kOlder) != kOlderVersion) {
    return NotOfARun(
        run, fmt::format("has a text of version {}, which is not known", Excerpt(text.at(kOlder))));
  }
  if (text.value("kind", json()) != json::parse(identity.keys).value("kind", json())) {
    return MakeError(ErrorCode::kInvalidArgument, "the commit of {} is of kind {}", run,
                     Excerpt(text.value("kind", json())));
  }
  if (text.value("identity", json()) != identity.older) {
    return OtherTraining(run, "the rule, or names, shapes, dtypes or groups of parameters differ");
  }
  std::string caller;
  for (const char* key : kOlderCallers) {
    const std::string_view value = RawValue(raw, key);
    if (value.empty()) return NotOfARun(run, fmt::format("has no {}", key));
    caller += fmt::format(R"({}"{}":{})", caller.empty() ? "{" : ",", key, value);
  }
  return caller + "}";
}

}  // namespace

Result<CommitText> MakeCommitText(const Identity& identity, std::string caller,
                                  const std::string& row, const std::optional<uint64_t>& samples) {
  if (caller.size() > offload::kMaxCallerFile.value) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the text of the commit has {} bytes, and at most {} fit; keep less in it",
                     caller.size(), offload::kMaxCallerFile.value);
  }
  PENSTOCK_TRY(CheckJsonObject(caller, "the text of the commit", ErrorCode::kInvalidArgument));
  std::string before =
      fmt::format(R"("run":{}{}{})", identity.keys, row.empty() ? "" : R"(,"row":)", row);
  if (samples) before += fmt::format(R"(,"{}":{})", train::kConsumedSamples, *samples);
  if (caller.size() <= kMaxCallerInText.value) {
    return CommitText{.text = fmt::format(R"({{{},"caller":{}}})", before, caller),
                      .caller_file = {}};
  }
  CommitText commit{.text = fmt::format(R"({{{},"{}":{}}})", before, offload::kCallerFileKey,
                                        offload::CallerFileJson(caller)),
                    .caller_file = {}};
  commit.caller_file = std::move(caller);
  return commit;
}

std::optional<uint64_t> SamplesOfCommit(const std::string& text) {
  const json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  const auto samples = parsed.is_object() ? parsed.find(train::kConsumedSamples) : parsed.end();
  if (samples == parsed.end() || !samples->is_number_unsigned()) return std::nullopt;
  return samples->get<uint64_t>();
}

Result<std::string> CallersPart(const std::string& text, const Identity& identity,
                                const std::string& run,
                                const std::function<Result<std::string>()>& read_file) {
  PENSTOCK_ASSIGN(const json parsed, ParseJsonObject(text, "the text of the commit of " + run,
                                                     ErrorCode::kCorruption));
  if (parsed.contains(kOlder)) return OlderCallersPart(parsed, identity, text, run);
  const bool in_file = parsed.contains(offload::kCallerFileKey);
  for (const char* key : {"run", in_file ? offload::kCallerFileKey : "caller"}) {
    if (!parsed.contains(key) || !parsed[key].is_object()) {
      return NotOfARun(run, fmt::format("has no object \"{}\"", key));
    }
  }
  PENSTOCK_TRY(CheckSame(parsed["run"], identity, run));
  if (in_file) return read_file();
  return std::string(RawValue(text, "caller"));
}

}  // namespace penstock::front
