// An engine whose drive reports one write as done that it did not do as it was told, for tests.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/mapping.h"
#include "tests/aio/wrapped_engine.h"

namespace penstock::aio {

enum class BadWrite { kLost, kBitFlipped, kOldBlockKept, kOneBlockAway };

/// Of the writes of one part of a tile, which one goes wrong, and how.
struct WriteFault {
  std::string part;  ///< as the state file names it: "record of tile 2,"
  uint64_t number = 0;
  BadWrite how = BadWrite::kLost;
};

class FaultyWrites final : public WrappedEngine {
 public:
  static Result<std::unique_ptr<Engine>> Create(const EngineOptions& options, std::string* notice,
                                                const WriteFault& fault) {
    PENSTOCK_ASSIGN(std::unique_ptr<Engine> base, CreateEngine(options, notice));
    return std::unique_ptr<Engine>(std::make_unique<FaultyWrites>(std::move(base), fault));
  }
  FaultyWrites(std::unique_ptr<Engine> base, WriteFault fault)
      : WrappedEngine(std::move(base)), fault_(std::move(fault)) {}

  Ticket Submit(Request request) override {
    const bool is_part = request.operation == Operation::kWrite && request.about &&
                         request.about().starts_with(fault_.part);
    if (is_part && seen_++ == fault_.number) return SubmitBadly(std::move(request));
    return WrappedEngine::Submit(std::move(request));
  }

 private:
  static constexpr size_t kBlock = 4096;

  Ticket SubmitBadly(Request request) {
    const size_t size = request.buffer.size();
    instead_ = Mapping::Create(Bytes{size}).value();
    const std::span<std::byte> bytes(instead_.data(), size);
    std::memcpy(bytes.data(), request.buffer.data(), size);
    switch (fault_.how) {
      case BadWrite::kLost:
        ReadInstead(request, bytes);
        break;
      case BadWrite::kBitFlipped:
        bytes[size / 2] ^= std::byte{4};
        break;
      case BadWrite::kOldBlockKept:
        ReadInstead(request, bytes.subspan(size - kBlock));
        break;
      case BadWrite::kOneBlockAway:
        request.offset = request.offset + Bytes{kBlock};
        break;
    }
    request.buffer = bytes;
    return WrappedEngine::Submit(std::move(request));
  }
  /// What the file has there is written again.
  static void ReadInstead(const Request& request, std::span<std::byte> bytes) {
    const auto offset = request.offset.value + request.buffer.size() - bytes.size();
    ASSERT_EQ(::pread(request.file->buffered_fd(), bytes.data(), bytes.size(),
                      static_cast<off_t>(offset)),
              static_cast<ssize_t>(bytes.size()));
  }

  const WriteFault fault_;
  uint64_t seen_ = 0;
  Mapping instead_;
};

}  // namespace penstock::aio
