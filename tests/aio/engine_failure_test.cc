// What every engine makes of errors: one failed ticket with the whole story, and the rest unharmed.
#include <gmock/gmock.h>

#include <atomic>
#include <cerrno>
#include <future>
#include <vector>

#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

using EngineFailure = EngineTest;
INSTANTIATE_TEST_SUITE_P(Engines, EngineFailure, testing::ValuesIn(EveryEngine()), CaseName);

EngineOptions WithFault(Fault fault) {
  FaultPlan plan;
  plan.faults.push_back(fault);
  return {.block_size = 4_KiB, .queue_depth = 8, .faults = plan};
}

TEST_P(EngineFailure, APermanentErrorFailsItsRequestAloneAndTellsEverything) {
  MAKE_ENGINE(engine, WithFault({.operation = Operation::kWrite, .first_block = 7}));
  ScratchFile file;
  Buffer buffer(10 * 8192);
  FillPattern(buffer.bytes(), 1);
  std::vector<Ticket> tickets;
  std::atomic<int> calls{0};
  for (size_t i = 0; i < 10; ++i) {
    Request request = WriteRequest(file.get(), i * 8192, buffer.bytes().subspan(i * 8192, 8192));
    request.on_complete = [&](const Status&) { ++calls; };
    tickets.push_back(engine->Submit(std::move(request)));
  }
  engine->Drain();
  EXPECT_EQ(calls, 10);
  // Blocks are cut in order while nothing is retried: write block 7 is the second half of
  // request 3.
  for (size_t i = 0; i < 10; ++i) EXPECT_EQ(tickets[i].Wait().ok(), i != 3) << i;
  const Error error = tickets[3].Wait().error();
  EXPECT_EQ(error.code, ErrorCode::kIo);
  EXPECT_THAT(error.message, HasSubstr("write of 4096 bytes at offset 28672 of " + file.path()));
  EXPECT_THAT(error.message, HasSubstr("in a request for 8192 bytes at 24576"));
  EXPECT_THAT(error.message, HasSubstr("Input/output error"));
  EXPECT_EQ(MessageOf(WaitAll(tickets)), error.message);
  EXPECT_EQ(engine->stats().errors, 1u);
  EXPECT_EQ(engine->stats().requests, 10u);
}

TEST_P(EngineFailure, NoSpaceHasACodeOfItsOwn) {
  MAKE_ENGINE(engine, WithFault({.error_number = ENOSPC}));
  ScratchFile file;
  Buffer buffer(4096);
  const Status failed = engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait();
  ASSERT_FALSE(failed.ok());
  EXPECT_EQ(failed.error().code, ErrorCode::kOutOfSpace);
  EXPECT_THAT(failed.error().message, HasSubstr("No space left on device"));
  EXPECT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
}

TEST_P(EngineFailure, TransientErrorsAreTriedAgain) {
  for (const int error_number : {EINTR, EAGAIN}) {
    MAKE_ENGINE(engine, WithFault({.count = 20, .error_number = error_number}));
    ScratchFile file;
    Buffer buffer(20'000);
    EXPECT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
    EXPECT_EQ(engine->stats().retries, 20u);
    EXPECT_EQ(engine->stats().errors, 0u);
  }
}

TEST_P(EngineFailure, TransientErrorsWithoutEndFailInTheEnd) {
  MAKE_ENGINE(engine, WithFault({.count = UINT64_MAX, .error_number = EAGAIN}));
  ScratchFile file;
  Buffer buffer(4096);
  const Status failed = engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait();
  EXPECT_THAT(MessageOf(failed), HasSubstr("Resource temporarily unavailable"));
}

TEST_P(EngineFailure, ShortTransfersAreContinued) {
  MAKE_ENGINE(engine, WithFault({.kind = Fault::Kind::kShort, .count = 9}));
  ScratchFile file(false);  // a block may end at any byte, so each of the nine is short
  Buffer out(20'000);
  FillPattern(out.bytes(), 3);
  ASSERT_OK(engine->Submit(WriteRequest(file.get(), 0, out.bytes())).Wait());
  EXPECT_EQ(engine->stats().continuations, 9u);
  Buffer in(20'000);
  ASSERT_OK(engine->Submit(ReadRequest(file.get(), 0, in.bytes())).Wait());
  EXPECT_EQ(PatternErrors(in.bytes(), 3), 0u);
}

TEST_P(EngineFailure, DelayedBlocksAreAwaited) {
  MAKE_ENGINE(engine, WithFault({.kind = Fault::Kind::kDelay, .count = 3}));
  ScratchFile file;
  Buffer buffer(40'000);
  EXPECT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
}

TEST_P(EngineFailure, AFileThatShrankIsAnErrorNotShortData) {
  for (const bool direct : {false, true}) {
    MAKE_ENGINE(engine, {.block_size = 4_KiB, .queue_depth = 4});
    ScratchFile file(direct);
    if (!file.result().ok()) GTEST_SKIP() << file.result().error().message;
    Buffer buffer(8 * 4096);
    ASSERT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
    ASSERT_EQ(::truncate(file.path().c_str(), 5 * 4096 + 100), 0);
    const Status failed = engine->Submit(ReadRequest(file.get(), 0, buffer.bytes())).Wait();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kIo);
    EXPECT_THAT(failed.error().message, HasSubstr("the file shrank"));
    EXPECT_THAT(failed.error().message, HasSubstr(file.path()));
    EXPECT_OK(engine->Submit(ReadRequest(file.get(), 0, buffer.bytes().first(5 * 4096))).Wait());
  }
}

TEST_P(EngineFailure, ATransferThatTheFileSystemRefusesIsAnErrorWithItsErrno) {
  MAKE_ENGINE(engine);
  ScratchFile scratch;
  Buffer buffer(8192);
  ASSERT_OK(engine->Submit(WriteRequest(scratch.get(), 0, buffer.bytes())).Wait());
  // O_DIRECT without saying so: nothing aligns the request.
  const File file = File::Adopt(UniqueFd(::open(scratch.path().c_str(), O_RDONLY | O_DIRECT)),
                                "claims-no-alignment", 1_B);
  if (file.fd() < 0) GTEST_SKIP() << "this file system has no O_DIRECT";
  const Status refused = engine->Submit(ReadRequest(file, 1, buffer.bytes().first(100))).Wait();
  if (refused.ok()) GTEST_SKIP() << "this file system takes any alignment";
  EXPECT_EQ(refused.error().code, ErrorCode::kIo);
  EXPECT_THAT(MessageOf(refused), HasSubstr("read of 100 bytes at offset 1 of claims-no-alignment: "
                                            "Invalid argument; does the file system"));
  EXPECT_OK(engine->Submit(ReadRequest(file, 0, buffer.bytes())).Wait());
}

TEST_P(EngineFailure, AFailedSyncIsNotTriedAgainAndTheNextOneIsServed) {
  MAKE_ENGINE(engine, WithFault({.operation = Operation::kSync, .error_number = EIO}));
  ScratchFile file;
  const Status failed = engine->Sync(file.get());
  EXPECT_THAT(MessageOf(failed),
              HasSubstr("sync of " + file.path() + " (fdatasync): Input/output"));
  EXPECT_EQ(engine->stats().retries, 0u);
  EXPECT_OK(engine->Sync(file.get()));
  EXPECT_EQ(engine->stats().syncs, 1u);
}

TEST_P(EngineFailure, WritingToAReadOnlyOrClosedFileFails) {
  MAKE_ENGINE(engine);
  ScratchFile file;
  Result<File> read_only = File::Open(file.path(), {.direct = false});
  ASSERT_TRUE(read_only.ok());
  Buffer buffer(4096);
  const Status refused = engine->Submit(WriteRequest(*read_only, 0, buffer.bytes())).Wait();
  EXPECT_THAT(MessageOf(refused), HasSubstr("Bad file descriptor; is the file open, and for"));
  const File closed = File::Adopt(UniqueFd(), "closed-file", 1_B);
  const Status failed = engine->Submit(ReadRequest(closed, 0, buffer.bytes())).Wait();
  EXPECT_THAT(MessageOf(failed), HasSubstr("closed-file: Bad file descriptor"));
  EXPECT_OK(engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait());
}

TEST_P(EngineFailure, MalformedRequestsFailOnTheirTicketAndCallBack) {
  MAKE_ENGINE(engine);
  ScratchFile scratch;
  const File file = File::Adopt(UniqueFd(::dup(scratch.get().fd())), "aligned", 4_KiB);
  Buffer buffer(3 * 4096);
  const auto bytes = buffer.bytes();
  std::vector<Request> malformed = {
      ReadRequest(file, 0, bytes.first(0)),                     // empty
      ReadRequest(file, uint64_t{1} << 63, bytes.first(4096)),  // beyond any file
      ReadRequest(file, (uint64_t{1} << 63) - 4096, bytes),     // its end is
      {.buffer = bytes},                                        // no file
      {.operation = Operation::kSync},                          // the same
      {.operation = Operation::kSync, .file = &file, .buffer = bytes},
  };
  for (Request& request : malformed) {
    std::promise<ErrorCode> called;
    request.on_complete = [&](const Status& outcome) { called.set_value(outcome.error().code); };
    const Status failed = engine->Submit(std::move(request)).Wait();
    ASSERT_FALSE(failed.ok());
    EXPECT_EQ(failed.error().code, ErrorCode::kInvalidArgument);
    EXPECT_EQ(called.get_future().get(), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(engine->stats().errors, malformed.size());
  EXPECT_EQ(engine->stats().blocks, 0u);
}

TEST_P(EngineFailure, TheFirstFailureOfARequestIsTheOneReported) {
  MAKE_ENGINE(engine, WithFault({.first_block = 2, .count = 100}));
  ScratchFile file;
  Buffer buffer(64 * 4096);
  const Status failed = engine->Submit(WriteRequest(file.get(), 0, buffer.bytes())).Wait();
  EXPECT_THAT(MessageOf(failed), HasSubstr("at offset 8192 of"));
  EXPECT_LT(engine->stats().blocks, 8u) << "a failed request is not carried on with";
}

}  // namespace
}  // namespace penstock::aio
