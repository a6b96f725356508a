// The table of faults in docs/aio.md, a row each.
#include "aio/completion.h"

#include <gmock/gmock.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

constexpr int64_t kSize = 8192;

struct Row {
  std::string name;
  Operation operation = Operation::kRead;
  int64_t result = 0;  ///< of kSize bytes at an alignment of 512
  Verdict verdict = Verdict::kFailed;
  ErrorCode code = ErrorCode::kIo;  ///< if the request ends with it
  std::string reason;               ///< what its error says
};
void PrintTo(const Row& row, std::ostream* out) { *out << row.name; }

const std::vector<Row>& Rows() {
  using enum Operation;
  using enum Verdict;
  static const std::vector<Row> rows = {
      {"full_read", kRead, kSize, kFull},
      {"full_write", kWrite, kSize, kFull},
      {"full_sync", kSync, 0, kFull},
      {"short_read", kRead, 4096, kShort},
      {"short_write", kWrite, 4096, kShort},
      {"read_of_nothing", kRead, 0, kEndOfFile, ErrorCode::kIo, "the file ends before"},
      {"read_of_less_than_a_unit", kRead, 511, kEndOfFile, ErrorCode::kIo, "the file shrank"},
      {"write_of_nothing", kWrite, 0, kTransient, ErrorCode::kIo, "tried again and again"},
      {"too_long", kRead, kSize + 1, kOverLong, ErrorCode::kIo, "8193 bytes, more than were asked"},
      {"EINTR", kRead, -EINTR, kTransient, ErrorCode::kIo, "tried again and again"},
      {"EAGAIN", kWrite, -EAGAIN, kTransient, ErrorCode::kIo, "tried again and again"},
      {"EINTR_of_a_sync", kSync, -EINTR, kTransient, ErrorCode::kIo, "last sync may be lost"},
      {"EAGAIN_of_a_sync", kSync, -EAGAIN, kFailed, ErrorCode::kIo, "last sync may be lost"},
      {"ENOSPC", kWrite, -ENOSPC, kFailed, ErrorCode::kOutOfSpace, "free space on its file system"},
      {"EDQUOT", kWrite, -EDQUOT, kFailed, ErrorCode::kOutOfSpace, "free space on its file system"},
      {"EFBIG", kWrite, -EFBIG, kFailed, ErrorCode::kOutOfSpace, "File too large"},
      {"EINVAL", kRead, -EINVAL, kFailed, ErrorCode::kIo, "direct I/O of this alignment?"},
      {"EOPNOTSUPP", kRead, -EOPNOTSUPP, kFailed, ErrorCode::kIo, "a drive with polled queues"},
      {"EBADF_of_a_read", kRead, -EBADF, kFailed, ErrorCode::kIo, "is the file open?"},
      {"EBADF_of_a_write", kWrite, -EBADF, kFailed, ErrorCode::kIo, "open, and for writing?"},
      {"EIO", kRead, -EIO, kFailed, ErrorCode::kIo, "see the kernel log for the state"},
      {"EIO_of_a_sync", kSync, -EIO, kFailed, ErrorCode::kIo, "last sync may be lost"},
      {"ENOSPC_of_a_sync", kSync, -ENOSPC, kFailed, ErrorCode::kOutOfSpace, "may be lost"},
      {"ENOMEM", kRead, -ENOMEM, kFailed, ErrorCode::kOutOfMemory, "Cannot allocate memory"},
  };
  return rows;
}

class FaultTable : public testing::TestWithParam<Row> {
 protected:
  Request MakeRequest() {
    const bool sync = GetParam().operation == Operation::kSync;
    return {.operation = GetParam().operation,
            .file = &file_,
            .offset = FileOffset{512},
            .buffer = sync ? std::span<std::byte>() : buffer_.bytes()};
  }

  File file_ = File::Adopt(UniqueFd(), "the-file", 512_B);
  Buffer buffer_{kSize};
};

INSTANTIATE_TEST_SUITE_P(Rows, FaultTable, testing::ValuesIn(Rows()),
                         [](const auto& info) { return info.param.name; });

TEST_P(FaultTable, ARowBecomesItsVerdictAndItsError) {
  const Row& row = GetParam();
  const Request request = MakeRequest();
  const Bytes size{request.buffer.size()};
  const Classified classified = Classify(row.operation, size, 512_B, row.result);
  EXPECT_EQ(classified.verdict, row.verdict);
  if (row.verdict == Verdict::kFull || row.verdict == Verdict::kShort) {
    EXPECT_EQ(classified.transferred, Bytes{static_cast<uint64_t>(row.result)});
    return;
  }
  const Error error = DescribeFailure(request, request.offset, size, classified);
  EXPECT_EQ(error.code, row.code);
  EXPECT_THAT(error.message, HasSubstr("of the-file"));
  EXPECT_THAT(error.message, HasSubstr(row.reason));
  EXPECT_THAT(error.message, testing::Not(HasSubstr("\n")));
}

TEST(Classify, OfAShortTransferOnlyWholeUnitsCount) {
  const Classified classified = Classify(Operation::kRead, 8_KiB, 512_B, 1300);
  EXPECT_EQ(classified.verdict, Verdict::kShort);
  EXPECT_EQ(classified.transferred, 1_KiB);
}

}  // namespace
}  // namespace penstock::aio
