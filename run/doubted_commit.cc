#include "run/doubted_commit.h"

#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/strict_json.h"

namespace penstock::train {
namespace {

constexpr Bytes kMaxNote = 4_KiB;

}  // namespace

Status NoteDoubt(const Folder& run, const DoubtedCommit& commit) {
  const nlohmann::ordered_json json = {{"state_uuid", commit.state_uuid}, {"step", commit.step}};
  return WriteTextFile(run, kDoubtName, json.dump() + "\n");
}

Status RemoveDoubt(const Folder& run) {
  PENSTOCK_ASSIGN(const FolderEntry entry, run.Look(kDoubtName));
  if (entry.kind == FolderEntry::Kind::kNone) return {};
  PENSTOCK_TRY(run.RemoveFile(kDoubtName));
  return run.Sync();
}

std::optional<uint64_t> DoubtedStep(const Folder& run, const std::string& state_uuid) {
  const Result<std::string> text = ReadTextFile(run, kDoubtName, kMaxNote);
  if (!text.ok()) return std::nullopt;
  const Result<nlohmann::json> json =
      ParseJsonObject(*text, run.PathOf(kDoubtName), ErrorCode::kCorruption);
  if (!json.ok()) return std::nullopt;
  const auto uuid = json->find("state_uuid");
  const auto step = json->find("step");
  const bool known = uuid != json->end() && step != json->end() && step->is_number_unsigned();
  if (!known || *uuid != state_uuid) return std::nullopt;
  return step->get<uint64_t>();
}

}  // namespace penstock::train
