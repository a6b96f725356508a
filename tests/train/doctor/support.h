// Says what a check must be.
#pragma once

#include <gmock/gmock.h>

#include <string>

#include "train/doctor/check.h"

namespace penstock::train {

/// A check in this state whose line holds `part`.
inline testing::Matcher<const Check&> CheckIs(CheckState state, const std::string& part) {
  return testing::AllOf(
      testing::Field("state", &Check::state, state),
      testing::ResultOf(
          "its line", [](const Check& check) { return check.found + "; " + check.advice; },
          testing::HasSubstr(part)));
}

}  // namespace penstock::train
