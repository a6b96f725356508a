#include "train/doctor/limit_checks.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

#include "base/units.h"

namespace penstock::train {
namespace {

constexpr const char* kLimits = "proc/self/limits";
constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();
constexpr Bytes kLittleLocked = 64_MiB;

/// The soft limit; nothing if it cannot be read.
std::optional<uint64_t> SoftLimit(const MachineFiles& files, const std::string& name) {
  const std::optional<std::string> field = files.Field(kLimits, name);
  if (!field) return std::nullopt;
  std::string soft;
  std::istringstream(*field) >> soft;
  if (soft == "unlimited") return kUnlimited;
  const Result<uint64_t> number = ParseWhole(soft);
  return number.ok() ? std::optional(*number) : std::nullopt;
}

Check UnknownLimit(const std::string& name) {
  return UnknownCheck(name, fmt::format("unknown: /{} cannot be read", kLimits));
}

/// Whether the process has CAP_IPC_LOCK outside of all containers' user namespaces.
bool MayLockMemory(const MachineFiles& files) {
  constexpr int kIpcLock = 14;  // <linux/capability.h>
  const std::optional<std::string> effective = files.Field("proc/self/status", "CapEff");
  if (!effective) return false;
  uint64_t mask = 0;
  std::istringstream(*effective) >> std::hex >> mask;
  uint64_t inside = 1, outside = 1, count = 0;
  std::istringstream(files.Line("proc/self/uid_map").value_or("")) >> inside >> outside >> count;
  const bool own_namespace = inside == 0 && outside == 0 && count == 4294967295U;
  return own_namespace && (mask >> kIpcLock & 1U) != 0;
}

struct LimitRule {
  const char* check;
  const char* name;  ///< in /proc/self/limits
  const char* what;  ///< what it counts; empty: bytes
  uint64_t least;    ///< less is a warning
  const char* advice;
};
constexpr std::array<LimitRule, 4> kRules = {{
    {"open files", "Max open files", "files", 256,
     "models of many files, drives and ranks need some each; ulimit -n 1024"},
    {"processes", "Max processes", "processes and threads", 256,
     "threads count as well; ulimit -u 4096, or raise the container's limit"},
    {"file size", "Max file size", "", kUnlimited,
     "a state has 24 bytes a parameter in one file; ulimit -f unlimited"},
    {"address space", "Max address space", "", kUnlimited,
     "memory is mapped before it is used; ulimit -v unlimited"},
}};

Check LimitCheck(const MachineFiles& files, const LimitRule& rule) {
  const std::optional<uint64_t> limit = SoftLimit(files, rule.name);
  if (!limit) return UnknownLimit(rule.check);
  if (*limit == kUnlimited) return OkCheck(rule.check, "unlimited");
  const std::string what = rule.what;
  const std::string found =
      what.empty() ? ToString(Bytes{*limit}) : fmt::format("{} {}", *limit, what);
  return *limit >= rule.least ? OkCheck(rule.check, found)
                              : WarnCheck(rule.check, found, rule.advice);
}

}  // namespace

Check LockedMemoryCheck(const MachineFiles& files) {
  const std::string name = "locked memory";
  const std::optional<uint64_t> limit = SoftLimit(files, "Max locked memory");
  if (!limit) return UnknownLimit(name);
  if (*limit == kUnlimited) return OkCheck(name, "unlimited");
  const std::string found = ToString(Bytes{*limit});
  if (MayLockMemory(files)) return OkCheck(name, found + ", which CAP_IPC_LOCK lifts");
  if (*limit >= kLittleLocked.value) return OkCheck(name, found);
  return WarnCheck(name, found,
                   "io_uring registers no buffers beyond this limit, and pins each block anew; "
                   "ulimit -l unlimited, LimitMEMLOCK=infinity (systemd), or --ulimit memlock=-1 "
                   "(docker)");
}

Checks LimitChecks(const MachineFiles& files) {
  Checks checks = {LockedMemoryCheck(files)};
  for (const LimitRule& rule : kRules) checks.push_back(LimitCheck(files, rule));
  return checks;
}

}  // namespace penstock::train
