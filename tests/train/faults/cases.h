// The cases of the search: which fault, where, and what each part of a state file is called.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "offload/state_reader.h"
#include "tests/train/faults/training.h"

namespace penstock::train {

/// What happens to a unit of a state file: as a write reaches the drive, or, at rest, after the end
/// of the training.
enum class Harm { kLost, kFlip, kOld, kAway, kBad, kRestFlip, kRestZero, kRestBad };
inline constexpr Harm kHarms[] = {Harm::kLost, Harm::kFlip,     Harm::kOld,      Harm::kAway,
                                  Harm::kBad,  Harm::kRestFlip, Harm::kRestZero, Harm::kRestBad};
const char* ToString(Harm harm);
bool IsAtRest(Harm harm);
/// Precondition: it is not at rest.
aio::Fault::Kind KindOf(Harm harm);

struct Case {
  size_t setup = 0;  ///< index into Setups()
  Site site;
  Harm harm = Harm::kLost;
  std::string region;  ///< "head", "slot", …
};

const std::vector<Setup>& Setups();
/// "nvme/r0.p0/36864#3/flip", and the way back; nothing where it is no name of a case.
std::string NameOf(const Case& one);
std::optional<Case> CaseNamed(const std::string& name);

/// The parts of the files of a state, each open to be read.
class Regions {
 public:
  /// Reads the files of the run in a folder.
  static Result<Regions> Of(const std::string& folder);
  /// What the unit belongs to; `newest`: whether it belongs to the newest commit or the one before.
  std::string NameOf(const Site& site, bool at_rest) const;
  const std::string& PathOf(uint32_t rank, uint32_t path) const { return files_[rank][path].path; }
  /// Every unit of every file.
  std::vector<Site> Units() const;

 private:
  struct File {
    std::string path;
    offload::StateGeometry geometry;
    uint64_t newest_place = 0;
    uint32_t newest_slot = 0;
    uint64_t size = 0;
  };
  std::vector<std::vector<File>> files_;  ///< by rank, then path
};

/// All cases of a setup, whose undisturbed training made these writes.
std::vector<Case> CasesOf(size_t setup, const std::vector<SeenWrite>& writes,
                          const Regions& regions);

}  // namespace penstock::train
