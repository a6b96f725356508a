#include "train/process/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <memory>

#include "base/file_system.h"
#include "base/message_text.h"

namespace penstock::train {

int ExitCode(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kBudget:
      return 2;
    case ErrorCode::kNotFound:
    case ErrorCode::kPermission:
    case ErrorCode::kOutOfSpace:
    case ErrorCode::kOutOfMemory:
    case ErrorCode::kIo:
    case ErrorCode::kUnavailable:
    case ErrorCode::kCorruption:
      return 3;
    case ErrorCode::kNumeric:
      return 4;
    case ErrorCode::kCancelled:
      return 130;
  }
  PENSTOCK_CHECK(false, "error code {}", static_cast<int>(code));
  return 3;
}

void StartLogging() {
  auto logger = std::make_shared<spdlog::logger>("penstock",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("penstock: %v");
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

void SilenceNotices() { spdlog::default_logger()->set_level(spdlog::level::off); }

void LogNotice(const std::string& text) { spdlog::info("{}", MessageLine(text)); }

void LogNotices(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) LogNotice(text);
}

void LogWarning(const std::string& text) {
  std::fputs(("penstock: warning: " + MessageLine(text) + "\n").c_str(), stderr);
}

void LogFileSystem(const std::string& what, const std::string& folder) {
  const std::string notice = FileSystemNotice(fmt::format("{} {}", what, folder), folder);
  if (!notice.empty()) LogNotice(notice);
}

int ReportError(const Error& error) {
  std::fflush(stdout);
  std::fputs(("penstock: error: " + MessageLine(error.message) + "\n").c_str(), stderr);
  return ExitCode(error.code);
}

}  // namespace penstock::train
