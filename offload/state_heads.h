// Finds the head of a state file that was opened for reading: the first one, or the second one if
// the first cannot be read or is invalid (docs/state_format.md, "Second head").
//
// Plain buffered reads. Threads: any, with one file each.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "offload/state_format.h"

namespace penstock::offload {

/// An open file of a state.
struct OpenStateFile {
  int fd = -1;
  const std::string& path;
};

/// The head of a file.
struct FoundHead {
  StateHeader header;
  std::string notice;  ///< says what is wrong with an unused head; empty: nothing
};

/// Fills `bytes` from `offset` on. Errors: kIo, naming path and offset; kCorruption where the file
/// ends before.
Status ReadAt(const OpenStateFile& file, FileOffset offset, std::span<std::byte> bytes);

/// What is known of a file before its head is read.
enum class Finished {
  kUnknown,  ///< a mark in place of the header says that it was never finished
  kYes       ///< a mark is damage, as anything else that is no header
};

/// Returns the head of a file. Errors, each naming the file: kNotFound if it was never finished;
/// kUnavailable for another version; kIo or kCorruption if neither head can be used, or if the file
/// is shorter than the head says.
Result<FoundHead> FindHead(const OpenStateFile& file, Finished finished);

/// Derives the head of a file without a usable head from `sibling`, the header of another path of
/// its state. `why`: the error of FindHead. Errors: `why` if the file is shorter than such a file
/// is.
Result<FoundHead> HeadFromSibling(const OpenStateFile& file, const StateHeader& sibling,
                                  uint32_t path, const Error& why);

/// Returns a line for each head of a file that is not, byte for byte, that of `header`, or cannot
/// be read. A file that ends before its second head, as programs wrote before there was one, is
/// right.
std::vector<std::string> HeadDamages(const OpenStateFile& file, const StateHeader& header);

}  // namespace penstock::offload
