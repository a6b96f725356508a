// Seconds of longer units.
#pragma once

namespace penstock::train {

inline constexpr double kHourSeconds = 3600;
inline constexpr double kDaySeconds = 24 * kHourSeconds;

}  // namespace penstock::train
