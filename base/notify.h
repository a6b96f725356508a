// A line for people that does not report a failure. A program prints it; a library hands it to its
// caller.
#pragma once

#include <functional>
#include <string>

namespace penstock {

/// Any thread may call it, one at a time.
using Notify = std::function<void(const std::string& line)>;

}  // namespace penstock
