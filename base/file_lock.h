// Locks of files that keep other processes out, on every file system.
//
// A lock is a flock. NFS makes it a lock of the server's, with two rules that local file systems do
// not have: an exclusive lock needs a descriptor that is open for writing, and a shared one needs
// one that is open for reading; and a folder is not locked at the server, but by each client for
// itself. So only regular files are locked, through descriptors that fit: this is checked
// everywhere. The kernel releases a lock when the last descriptor of its open file is closed.
//
// Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace penstock {

/// Locks an open file, and tries for 5 seconds, because the kernel keeps the lock of a killed
/// process until its last I/O is done. Preconditions: it is a regular file, open for writing if
/// `exclusive`, else for reading. Errors: kUnavailable if another process has it; of flock.
Status LockFile(int fd, bool exclusive, const std::string& path);
/// The same without waiting.
Status TryLockFile(int fd, bool exclusive, const std::string& path);
/// Releases the lock, also for children of a fork, which have the file open as well.
void UnlockFile(int fd);

}  // namespace penstock
