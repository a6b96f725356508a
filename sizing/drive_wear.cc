#include "sizing/drive_wear.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>

#include "sizing/time_units.h"

namespace penstock::train {
namespace {

constexpr double kDaysAYear = 365;

/// Takes a number above 0 with `unit` behind it off the front of `text`; none if there is none.
std::optional<double> Take(std::string_view* text, std::string_view unit) {
  double number = 0;
  const auto parsed = std::from_chars(text->data(), text->data() + text->size(), number);
  if (parsed.ec != std::errc() || !(number > 0) || std::isinf(number)) return std::nullopt;
  text->remove_prefix(static_cast<size_t>(parsed.ptr - text->data()));
  if (!text->starts_with(unit)) return std::nullopt;
  text->remove_prefix(unit.size());
  return number;
}

/// "3DWPD,1.92TB,5y" in terabytes.
std::optional<double> ReadDailyWrites(std::string_view text) {
  const std::optional<double> writes = Take(&text, "DWPD,");
  const std::optional<double> terabytes = writes ? Take(&text, "TB,") : std::nullopt;
  const std::optional<double> years = terabytes ? Take(&text, "y") : std::nullopt;
  if (!years || !text.empty()) return std::nullopt;
  return *writes * *terabytes * *years * kDaysAYear;
}

}  // namespace

Result<DriveRating> ParseDriveRating(const std::string& text) {
  std::string_view rest = text;
  std::optional<double> terabytes = Take(&rest, "TBW");
  if (!terabytes || !rest.empty()) terabytes = ReadDailyWrites(text);
  if (terabytes) return DriveRating{.terabytes = *terabytes};
  return MakeError(ErrorCode::kInvalidArgument,
                   "\"{}\" is no rating of a drive; write 600TBW, or 3DWPD,1.92TB,5y (drive writes "
                   "a day, capacity, years)",
                   text);
}

DriveWear WearOf(Bytes written, double step_s, const std::optional<DriveRating>& rating,
                 uint64_t drives) {
  DriveWear wear{
      .terabytes_a_day = static_cast<double>(written.value) / 1e12 * kDaySeconds / step_s,
      .drives = drives};
  if (rating && wear.terabytes_a_day > 0) {
    wear.days_to_rating = rating->terabytes * static_cast<double>(drives) / wear.terabytes_a_day;
  }
  return wear;
}

std::string DriveWearText(const DriveWear& wear, const std::optional<DriveRating>& rating) {
  const std::string drives = wear.drives == 1 ? "" : fmt::format(" to {} drives", wear.drives);
  std::string text = fmt::format("{:.1f} TB written a day{}", wear.terabytes_a_day, drives);
  if (!rating || !wear.days_to_rating) return text;
  return text + fmt::format("; the rating of {:.0f} TB{} is reached after {:.1f} days",
                            rating->terabytes, wear.drives == 1 ? "" : " each",
                            *wear.days_to_rating);
}

nlohmann::json DriveWearJson(const DriveWear& wear, const std::optional<DriveRating>& rating) {
  nlohmann::json object = {{"terabytes_a_day", wear.terabytes_a_day},
                           {"drives", wear.drives},
                           {"rating_terabytes", nullptr},
                           {"days_to_rating", nullptr}};
  if (rating) object["rating_terabytes"] = rating->terabytes;
  if (wear.days_to_rating) object["days_to_rating"] = *wear.days_to_rating;
  return object;
}

}  // namespace penstock::train
