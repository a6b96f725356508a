// Classifies the result of one block. Pure, and the only place that interprets results.
#pragma once

#include <cstdint>
#include <string>

#include "aio/aio.h"
#include "base/result.h"
#include "base/units.h"

namespace penstock::aio {

enum class Verdict {
  kFull,       ///< everything was transferred
  kShort,      ///< a part was transferred; continue after it
  kTransient,  ///< nothing was transferred, retry: EINTR, EAGAIN, or a write of 0 bytes;
               ///< of a sync EINTR alone
  kEndOfFile,  ///< a read met the end of the file
  kOverLong,   ///< more was reported than asked for
  kFailed,     ///< any other errno
};

struct Classified {
  Verdict verdict = Verdict::kFailed;
  /// kFull and kShort: the bytes that count as transferred. Of a short transfer only whole
  /// multiples of the alignment count, because a continuation must start on one.
  Bytes transferred;
  int error_number = 0;  ///< kFailed and kTransient
};

/// "read of 4096 bytes at offset 0 of /path", for messages. The request must have a file.
std::string Describe(const Request& request);
/// The same of a part of it.
std::string Describe(const Request& request, FileOffset position, Bytes size);

/// `result` is the bytes transferred or a negative errno, of `size` bytes on a file of `alignment`.
Classified Classify(Operation operation, Bytes size, Bytes alignment, int64_t result);

/// Returns the error of a request of which one block ended in `classified`: operation, length,
/// offset, path, reason and what to do. `position` and `size` are those of the last attempt.
Error DescribeFailure(const Request& request, FileOffset position, Bytes size,
                      const Classified& classified);

}  // namespace penstock::aio
