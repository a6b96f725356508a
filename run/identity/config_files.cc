#include "run/identity/config_files.h"

#include <utility>

#include "base/files.h"
#include "base/units.h"

namespace penstock::train {
namespace {

constexpr Bytes kMaxConfig = 16_MiB;

}  // namespace

Result<std::vector<config::ConfigSource>> ReadConfigFiles(const std::vector<std::string>& paths) {
  std::vector<config::ConfigSource> sources;
  for (const std::string& path : paths) {
    Result<std::string> text = ReadTextFileOrPipe(path, kMaxConfig);
    if (!text.ok()) return Error{text.error().code, "--config: " + text.error().message};
    sources.push_back({path, *std::move(text)});
  }
  return sources;
}

}  // namespace penstock::train
