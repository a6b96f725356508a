// Tokens in files: one file of bytes, uint16 or uint32, or a folder of bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"

namespace penstock::train {

/// Tokens by index, read in pieces with pread: never mapped, never whole in memory; at most one
/// file is open at a time. Threads: one at a time.
class TokenData {
 public:
  /// A text file or a folder (bytes are tokens; files below a folder in path order, each followed
  /// by a zero byte; hidden files and links are left out), `.bin` (uint16) or `.u32` (uint32),
  /// little endian. Errors: kNotFound, kInvalidArgument (empty, odd size), naming the path.
  static Result<std::unique_ptr<TokenData>> Open(const std::string& path);
  virtual ~TokenData() = default;

  /// Returns what was opened, for messages.
  virtual const std::string& path() const = 0;
  /// Returns the size in tokens.
  virtual uint64_t size() const = 0;
  /// Reads tokens [begin, begin + tokens.size()). A token at or above `vocabulary` is
  /// kInvalidArgument with its value, its position and the file. Preconditions: the range lies in
  /// [0, size()); vocabulary <= 2^31.
  virtual Status Read(uint64_t begin, uint64_t vocabulary, std::span<int32_t> tokens) = 0;
};

/// Returns a hash of the number of tokens and of 64 evenly spaced pieces of 16384 tokens, or of all
/// tokens if there are fewer: enough to recognise other data without reading terabytes. Errors:
/// those of TokenData::Read.
Result<uint64_t> Fingerprint(TokenData& data, uint64_t vocabulary);

}  // namespace penstock::train
