// Formats numbers for a report's line.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::train {

/// Four digits: "8188", "1.07e+07", "0.003125"; "nan", "infinite".
std::string NumberText(double value);
/// A loss scale, as a power of two where it is one: "2^24".
std::string ScaleText(double scale);
/// "in about 40 s", "in about 18 min", "in about 3.5 h".
std::string InAboutText(double seconds);
/// "layer 1, micro-batch 0, rows 4, 5": what there is of it.
std::string PlaceText(const std::optional<uint32_t>& layer,
                      const std::optional<uint64_t>& micro_batch,
                      const std::vector<uint64_t>& rows);
/// "… (3 more of 40 tensors)" for `count` of `all`; empty for one.
std::string OthersText(size_t count, size_t all);

}  // namespace penstock::train
