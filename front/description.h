// The descriptions of a training and of a plan in the C interface, as JSON (docs/c_api.md).
#pragma once

#include <string>
#include <vector>

#include "front/training.h"

namespace penstock::front {

std::string DescribeTraining(const Training& training);
std::string DescribeCounters(const Training& training);
/// A list of lines.
std::string DescribeLines(const std::vector<std::string>& lines);
/// What Training::Create would take of a plan, or what is missing.
std::string DescribePlan(const Plan& plan);

}  // namespace penstock::front
