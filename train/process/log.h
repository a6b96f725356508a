// Messages for the user: notices on stderr, and one line for the failure that ends the program.
//
// Each is one line of bounded length without control characters, even in quoted text
// (base/message_text.h). Results go to stdout and are not logged. Threads: ExitCode and LogWarning
// from any, LogNotice and LogNotices from one at a time; the others from the main thread.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// The exit code of a failure: 2 usage, 3 environment, 4 numeric, 130 interrupted.
int ExitCode(ErrorCode code);

/// Sends spdlog's default logger to stderr, as "penstock: <message>". May be called again.
void StartLogging();

/// Drops all notices from now on: another process shows them.
void SilenceNotices();

void LogNotice(const std::string& text);
void LogNotices(const std::vector<std::string>& texts);

/// Writes "penstock: warning: <message>" to stderr, also where notices are silent. Any thread.
void LogWarning(const std::string& text);

/// Logs a notice if `folder`, which `what` names, is not on a drive of this machine
/// (base/file_system.h).
void LogFileSystem(const std::string& what, const std::string& folder);

/// Writes "penstock: error: <message>" to stderr; returns the exit code that belongs to it.
int ReportError(const Error& error);

}  // namespace penstock::train
