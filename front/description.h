// The descriptions of a training and of a plan in the C interface, as JSON (docs/c_api.md).
#pragma once

#include <string>

#include "front/training.h"

namespace penstock::front {

std::string DescribeTraining(const Training& training);
std::string DescribeCounters(const Training& training);
/// What Training::Create would take of a plan, or what is missing.
std::string DescribePlan(const Plan& plan);

}  // namespace penstock::front
