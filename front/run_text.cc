#include "front/run_text.h"

#include <utility>

#include "front/text_section.h"
#include "run/snapshot.h"

namespace penstock::front {
namespace {

using nlohmann::ordered_json;

const char* NameOf(train::RunKind kind) {
  switch (kind) {
    case train::RunKind::kTrain:
      return "train";
    case train::RunKind::kOptimizer:
      return "optimizer";
    case train::RunKind::kModule:
      return "module";
  }
  return "?";
}

}  // namespace

Result<train::RunRequest> ParseRunRequest(const std::string& text) {
  PENSTOCK_ASSIGN(const json object, ParseJsonObject(text, "options", ErrorCode::kInvalidArgument));
  std::optional<Error> error;
  Section section(object, "options", "", &error);
  train::RunRequest request;
  if (section.Find("run") != nullptr) request.folder = section.Text("run");
  request.nvme_paths = section.Texts("nvme_path");
  const std::string kind = section.Text("kind");
  if (kind == "module") {
    request.kind = train::RunKind::kModule;
  } else if (kind != "optimizer") {
    section.Fail("kind", fmt::format("is \"{}\", which is neither optimizer nor module", kind));
  }
  section.End();
  if (error) return *error;
  return request;
}

Result<TrainingInRun> ParseTrainingInRun(const std::string& text) {
  PENSTOCK_ASSIGN(json object, ParseJsonObject(text, "options", ErrorCode::kInvalidArgument));
  std::optional<Error> error;
  Section section(object, "options", "", &error);
  for (const char* key : {"folders", "continue"}) {
    if (section.Find(key) != nullptr) section.Fail(key, "is the run's here; leave it out");
  }
  TrainingInRun own;
  const json* identity = section.Find("identity");
  if (identity == nullptr || !identity->is_object()) {
    section.Fail("identity", "is no object; give the values that a resumed commit must have");
  } else {
    own.identity.keys = identity->dump();
  }
  if (section.Find("older_identity") != nullptr) {
    own.identity.older = section.Text("older_identity");
  }
  if (section.Find("snapshot") != nullptr) own.snapshot = section.Text("snapshot");
  if (error) return *error;
  for (const char* key : {"identity", "older_identity", "snapshot"}) object.erase(key);
  own.rest = object.dump();
  return own;
}

std::string WithPlaces(const std::string& options, const std::vector<std::string>& folders,
                       const std::vector<std::string>& files) {
  json object = json::parse(options);
  object["folders"] = folders;
  object["continue"] = files;
  return object.dump();
}

std::string DescribeRun(const Folder& folder, const train::RunInfo& info,
                        const std::vector<std::string>& notices) {
  ordered_json state;
  if (info.state) state = {{"uuid", info.state->uuid}, {"paths", info.state->all()}};
  const ordered_json run{{"folder", folder.path()},   {"kind", NameOf(info.kind)},
                         {"run_uuid", info.run_uuid}, {"temporary", info.temporary},
                         {"state", std::move(state)}, {"snapshots", train::Snapshots(folder)},
                         {"notices", notices}};
  return run.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace penstock::front
