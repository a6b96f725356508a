#include "config/config.h"

#include <limits>

#include "config/sections.h"

namespace penstock::config {

void ReadConfig(JsonReader& reader, ConfigDraft& draft) {
  reader.Read([&](JsonSection& top) {
    ReadBatch(top, draft);
    ReadPrecision(top, draft);
    ReadOptimizer(reader, top, draft);
    ReadScheduler(top, draft);
    ReadZero(top, draft);
    ReadAio(top, draft);
    ReadPenstock(top, draft);
    ReadMonitors(top, draft.config);
    ReadOthers(top, draft);
  });
}

Result<Config> ParseConfig(const std::vector<ConfigSource>& sources, uint64_t world_size) {
  PENSTOCK_CHECK(world_size > 0 && world_size <= std::numeric_limits<int32_t>::max());
  JsonDocument document;
  for (const ConfigSource& source : sources) {
    PENSTOCK_TRY(document.Merge(source.name, source.text));
  }
  JsonReader reader(document);
  ConfigDraft draft;
  draft.world_size = world_size;
  ReadConfig(reader, draft);
  PENSTOCK_TRY(reader.status());
  CheckBatch(reader, draft);
  CheckRampup(reader, draft);
  CheckScheduler(reader, draft);
  CheckHomes(reader, draft);
  PENSTOCK_TRY(reader.status());
  draft.config.superseded = reader.superseded();
  draft.config.automatic = reader.automatic();
  return std::move(draft.config);
}

}  // namespace penstock::config
