// What a training's writes do to a drive: terabytes a day, against what the drive is rated for.
//
// A terabyte is 10^12 bytes, as drives' data sheets have it. Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// What a drive is rated for: terabytes that may be written to it in its life.
struct DriveRating {
  double terabytes = 0;
};
/// Reads "600TBW", or "3DWPD,1.92TB,5y": drive writes a day, capacity and years of warranty, which
/// are multiplied, with 365 days a year. Errors: kInvalidArgument, quoting the text and saying what
/// to write.
Result<DriveRating> ParseDriveRating(const std::string& text);

struct DriveWear {
  double terabytes_a_day = 0;  ///< written to all drives
  uint64_t drives = 1;
  std::optional<double> days_to_rating = {};  ///< none without a rating, or if nothing is written
};
/// `written`: by a step, to so many drives alike; `step_s`: its seconds, above 0; `rating`: of each
/// drive.
DriveWear WearOf(Bytes written, double step_s, const std::optional<DriveRating>& rating,
                 uint64_t drives = 1);

/// Returns "129.6 TB written a day; the rating of 600 TB is reached after 4.6 days": one line
/// without a line break.
std::string DriveWearText(const DriveWear& wear, const std::optional<DriveRating>& rating);
/// Returns {"terabytes_a_day", "drives", "rating_terabytes", "days_to_rating"}; null where there is
/// none.
nlohmann::json DriveWearJson(const DriveWear& wear, const std::optional<DriveRating>& rating);

}  // namespace penstock::train
