// One thing that the doctor looked at: what it found, whether that is good, and what to do.
//
// Checks are values, made by functions over what was read; how they are written is decided here.
// docs/doctor.md lists them.
//
// Threads: any.
#pragma once

#include <string>
#include <vector>

namespace penstock::train {

enum class CheckState {
  kOk,
  kWarn,     ///< training works, but could work better
  kFail,     ///< training would be refused, or would fail
  kUnknown,  ///< what would tell is not shown here
};

struct Check {
  CheckState state = CheckState::kOk;
  std::string name;
  std::string found;
  std::string advice = {};  ///< what to do; empty: nothing
};
using Checks = std::vector<Check>;

Check OkCheck(std::string name, std::string found);
Check WarnCheck(std::string name, std::string found, std::string advice);
Check FailCheck(std::string name, std::string found, std::string advice);
/// `why` says what could not be read.
Check UnknownCheck(std::string name, std::string why);

/// A line for each check, and a last one with the counts. A check always has one line, without
/// control characters.
std::string ToText(const Checks& checks);

bool HasFailed(const Checks& checks);

void Append(Checks more, Checks* checks);

}  // namespace penstock::train
