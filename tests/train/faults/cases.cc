#include "tests/train/faults/cases.h"

#include <fmt/format.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <filesystem>

#include "run/run_folder.h"

namespace penstock::train {
namespace {

constexpr std::pair<Harm, const char*> kNames[] = {
    {Harm::kLost, "lost"},          {Harm::kFlip, "flip"},        {Harm::kOld, "old"},
    {Harm::kAway, "away"},          {Harm::kBad, "eio"},          {Harm::kRestFlip, "rest-flip"},
    {Harm::kRestZero, "rest-zero"}, {Harm::kRestBad, "rest-eio"},
};

}  // namespace

const char* ToString(Harm harm) {
  return std::ranges::find(kNames, harm, &std::pair<Harm, const char*>::first)->second;
}

bool IsAtRest(Harm harm) { return harm >= Harm::kRestFlip; }

aio::Fault::Kind KindOf(Harm harm) {
  switch (harm) {
    case Harm::kFlip:
      return aio::Fault::Kind::kFlip;
    case Harm::kOld:
      return aio::Fault::Kind::kOld;
    case Harm::kAway:
      return aio::Fault::Kind::kAway;
    case Harm::kBad:
      return aio::Fault::Kind::kBad;
    default:
      return aio::Fault::Kind::kLost;
  }
}

const std::vector<Setup>& Setups() {
  static const std::vector<Setup> setups = {
      {.name = "nvme", .device = "nvme"},
      {.name = "host", .device = "cpu"},
      {.name = "paths", .device = "nvme", .paths = 3},
      {.name = "ranks", .device = "nvme", .ranks = 2},
  };
  return setups;
}

std::string NameOf(const Case& one) {
  return fmt::format("{}/r{}.p{}/{}#{}/{}", Setups()[one.setup].name, one.site.rank, one.site.path,
                     one.site.unit.value, one.site.number, ToString(one.harm));
}

std::optional<Case> CaseNamed(const std::string& name) {
  char setup[16] = {};
  char harm[16] = {};
  Case one;
  if (std::sscanf(name.c_str(), "%15[^/]/r%" SCNu32 ".p%" SCNu32 "/%" SCNu64 "#%" SCNu64 "/%15s",
                  setup, &one.site.rank, &one.site.path, &one.site.unit.value, &one.site.number,
                  harm) != 6) {
    return std::nullopt;
  }
  const auto found = std::ranges::find(Setups(), setup, &Setup::name);
  const auto named = std::ranges::find_if(
      kNames, [&harm](const auto& pair) { return std::string_view(pair.second) == harm; });
  if (found == Setups().end() || named == std::end(kNames)) return std::nullopt;
  one.setup = static_cast<size_t>(found - Setups().begin());
  one.harm = named->first;
  return one;
}

Result<Regions> Regions::Of(const std::string& folder) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(folder + "/run"));
  PENSTOCK_ASSIGN(const StateFiles state, CommittedFiles(info, folder));
  Regions regions;
  for (const RankFiles& rank : state.ranks) {
    PENSTOCK_ASSIGN(const auto reader, offload::StateReader::Open(rank.paths));
    std::vector<File>& files = regions.files_.emplace_back();
    for (size_t path = 0; path < rank.paths.size(); ++path) {
      files.push_back({.path = rank.paths[path],
                       .geometry = reader->geometry(path),
                       .newest_place = reader->commit().sequence % 2,
                       .newest_slot = reader->commit().tiles.empty()
                                          ? 0
                                          : static_cast<uint32_t>(reader->commit().tiles[0].slot),
                       .size = std::filesystem::file_size(rank.paths[path])});
    }
  }
  return regions;
}

std::string Regions::NameOf(const Site& site, bool at_rest) const {
  const File& file = files_[site.rank][site.path];
  const offload::StateGeometry& geometry = file.geometry;
  const uint64_t at = site.unit.value;
  const auto age = [at_rest](bool newest) { return !at_rest ? "" : newest ? " n" : " n-1"; };
  if (at < std::min(geometry.commit_offset[0], geometry.commit_offset[1]).value) return "head";
  for (uint64_t place = 0; place < 2; ++place) {
    const uint64_t begin = geometry.commit_offset[place].value;
    if (at < begin || at >= begin + geometry.commit_bytes.value) continue;
    // Places of other paths hold nothing.
    if (site.path != 0) return "unused place";
    return std::string("place") + age(place == file.newest_place);
  }
  const uint64_t slot = at >= geometry.weights_offset[1].value ? 1 : 0;
  if (at >= geometry.frozen_offset.value) return "end";
  return std::string("slot") + age(slot == file.newest_slot);
}

std::vector<Site> Regions::Units() const {
  std::vector<Site> units;
  for (uint32_t rank = 0; rank < files_.size(); ++rank) {
    for (uint32_t path = 0; path < files_[rank].size(); ++path) {
      for (uint64_t at = 0; at < files_[rank][path].size; at += aio::kDamagedUnit.value) {
        units.push_back({.rank = rank, .path = path, .unit = FileOffset{at}});
      }
    }
  }
  return units;
}

std::vector<Case> CasesOf(size_t setup, const std::vector<SeenWrite>& writes,
                          const Regions& regions) {
  std::vector<Case> cases;
  std::map<Site, uint64_t> seen;  // writes to a unit so far
  for (const SeenWrite& write : writes) {
    const uint64_t end = write.offset.value + write.size.value;
    for (uint64_t at = write.offset.value; at < end; at += aio::kDamagedUnit.value) {
      Site site{.rank = write.rank, .path = write.path, .unit = FileOffset{at}};
      site.number = seen[site]++;
      const std::string region = regions.NameOf(site, /*at_rest=*/false);
      for (const Harm harm : kHarms) {
        if (IsAtRest(harm) || (harm == Harm::kLost && at != write.offset.value)) continue;
        cases.push_back({.setup = setup, .site = site, .harm = harm, .region = region});
      }
    }
  }
  for (const Site& site : regions.Units()) {
    for (const Harm harm : {Harm::kRestFlip, Harm::kRestZero, Harm::kRestBad}) {
      cases.push_back({.setup = setup,
                       .site = site,
                       .harm = harm,
                       .region = regions.NameOf(site, /*at_rest=*/true)});
    }
  }
  return cases;
}

}  // namespace penstock::train
