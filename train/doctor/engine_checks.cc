#include "train/doctor/engine_checks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <memory>
#include <utility>

#include "aio/aio.h"

namespace penstock::train {
namespace {

constexpr const char* kAllow =
    "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile "
    "(docker run --security-opt seccomp=PROFILE)";
constexpr const char* kWithout = "; until then libaio or threads do the I/O";

Status EngineStatus(aio::EngineKind kind) { return aio::CreateEngine({.kind = kind}).status(); }

/// Why the kernel refuses a ring, and what to do.
std::pair<std::string, std::string> RefusalOf(int error_number, const MachineFiles& files) {
  const uint64_t disabled = files.Number("proc/sys/kernel/io_uring_disabled").value_or(0);
  const bool filtered = files.Field("proc/self/status", "Seccomp").value_or("0") == "2";
  if (error_number == EPERM && disabled == 2) {
    return {"kernel.io_uring_disabled is 2: no process may use it",
            "sysctl kernel.io_uring_disabled=0"};
  }
  if (error_number == EPERM && disabled == 1 && !filtered) {
    return {
        "kernel.io_uring_disabled is 1: only the group kernel.io_uring_group and "
        "CAP_SYS_ADMIN may use it",
        "sysctl kernel.io_uring_disabled=0, or join the group"};
  }
  if (filtered && (error_number == EPERM || error_number == EACCES || error_number == ENOSYS)) {
    return {
        fmt::format("a seccomp filter of this process forbids it ({})", ErrnoText(error_number)),
        kAllow};
  }
  if (error_number == EPERM || error_number == EACCES) {
    return {"it is forbidden here (" + ErrnoText(error_number) + ")", kAllow};
  }
  if (error_number == ENOSYS) {
    return {"this kernel has none (" + ErrnoText(error_number) + ")",
            "use a kernel from 5.6 on that has CONFIG_IO_URING"};
  }
  if (error_number == ENOMEM) {
    return {"the limit of locked memory is too low for a ring", "ulimit -l unlimited"};
  }
  return {"a ring cannot be set up: " + ErrnoText(error_number),
          "see its manual, io_uring_setup(2)"};
}

Check UringCheck(const aio::UringFacts& facts, const MachineFiles& files) {
  if (facts.error_number == 0) {
    return OkCheck("io_uring", fmt::format("available, with {}", fmt::join(facts.features, ", ")));
  }
  auto [why, advice] = RefusalOf(facts.error_number, files);
  return WarnCheck("io_uring", "not available: " + why, advice + kWithout);
}

}  // namespace

EngineFacts ReadEngineFacts() {
  std::string notice;
  const Status chosen = aio::CreateEngine({}, &notice).status();
  return {.uring = aio::ReadUringFacts(),
          .libaio = EngineStatus(aio::EngineKind::kLibaio),
          .threads = EngineStatus(aio::EngineKind::kThreads),
          .automatic = chosen.ok() ? Result<std::string>(notice) : chosen.error()};
}

Checks EngineChecks(const EngineFacts& facts, const MachineFiles& files) {
  Checks checks = {UringCheck(facts.uring, files)};
  checks.push_back(facts.libaio.ok()
                       ? OkCheck("libaio", "available")
                       : WarnCheck("libaio", "not available: " + facts.libaio.error().message,
                                   "needed only where io_uring is not available"));
  checks.push_back(facts.threads.ok()
                       ? OkCheck("threads", "available")
                       : FailCheck("threads", "not available: " + facts.threads.error().message,
                                   "raise the limits of threads and open files"));
  checks.push_back(
      facts.automatic.ok()
          ? OkCheck("engine", *facts.automatic)
          : FailCheck("engine", "none: " + facts.automatic.error().message, "see the lines above"));
  return checks;
}

}  // namespace penstock::train
