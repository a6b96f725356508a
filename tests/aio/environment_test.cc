// Environments that take something away: io_uring and AIO forbidden by seccomp, a low memlock
// limit, limits on the size and the number of files. Each in a child process, as none can be given
// back.
#include <gmock/gmock.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

#include "aio/libaio_drive.h"
#include "aio/uring_drive.h"
#include "tests/aio/support.h"

namespace penstock::aio {
namespace {

using testing::HasSubstr;

/// What `body` returned in a process of its own, or how that process ended.
std::string InChild(const std::function<std::string()>& body) {
  int ends[2];
  if (::pipe(ends) != 0) return "no pipe";
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const pid_t child = ::fork();
  if (child == 0) {
    const std::string text = body();
    const bool written = ::write(writer.get(), text.data(), text.size()) >= 0;
    ::_exit(written ? 0 : 1);
  }
  writer = UniqueFd();
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; (size = ::read(reader.get(), buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<size_t>(size));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return status == 0 ? text : "the child ended with status " + std::to_string(status);
}

/// Makes the calls of this thread, and of those that it will start, fail; with EPERM unless told
/// otherwise, as container runtimes do.
bool Forbid(std::initializer_list<long> calls, int error_number = EPERM) {
  std::vector<sock_filter> program = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const long call : calls) {
    program.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(call), 0, 1));
    program.push_back(
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<uint32_t>(error_number)));
  }
  program.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog filter = {static_cast<unsigned short>(program.size()), program.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

/// The notice of the engine that was made and "; works", or the error and its code.
std::string Describe(const EngineOptions& options, const File& file) {
  std::string notice;
  const auto engine = CreateEngine(options, &notice);
  if (!engine.ok()) {
    const bool unavailable = engine.error().code == ErrorCode::kUnavailable;
    return (unavailable ? "kUnavailable: " : "error: ") + engine.error().message;
  }
  Buffer buffer(4096);
  const Status written = (*engine)->Submit(WriteRequest(file, 0, buffer.bytes())).Wait();
  return notice + (written.ok() ? "; works" : "; " + written.error().message);
}

/// Opens a file that exists. A forked child has none of the files that its parent has open.
File OpenInChild(const std::string& path) {
  const auto open = [&path](bool direct) {
    return File::Open(path, {.writable = true, .direct = direct});
  };
  Result<File> file = open(true);
  if (!file.ok()) file = open(false);
  return std::move(file).value();
}

class Forbidden : public testing::Test {
 protected:
  /// Describes the engine in a child in which `calls` are forbidden.
  std::string Try(std::initializer_list<long> calls, const EngineOptions& options) {
    return InChild([&]() -> std::string {
      const File file = OpenInChild(file_.path());
      if (!Forbid(calls)) return "no seccomp";
      return Describe(options, file);
    });
  }

  ScratchFile file_;
};

TEST_F(Forbidden, ANamedEngineIsAnErrorAndNeverAnotherOne) {
  const std::string ring = Try({SYS_io_uring_setup}, {.kind = EngineKind::kUring});
  if (ring == "no seccomp") GTEST_SKIP() << "a seccomp filter cannot be set here";
  EXPECT_THAT(ring, HasSubstr("kUnavailable: io_uring: it is forbidden here"));
  EXPECT_THAT(ring, HasSubstr("choose another aio engine, or auto"));
  const std::string polled = Try({SYS_io_uring_setup}, {.sqpoll = true});
  EXPECT_THAT(polled, HasSubstr("kUnavailable: io_uring with sqpoll: it is forbidden here"));
  const std::string libaio = Try({SYS_io_setup}, {.kind = EngineKind::kLibaio});
  EXPECT_THAT(libaio, HasSubstr("kUnavailable: libaio: it is forbidden here"));
}

TEST_F(Forbidden, AutoTakesTheNextEngineAndSaysWhy) {
  const std::string without_ring = Try({SYS_io_uring_setup}, {});
  if (without_ring == "no seccomp") GTEST_SKIP() << "a seccomp filter cannot be set here";
  if (CreateEngine({.kind = EngineKind::kLibaio}).ok()) {
    EXPECT_THAT(without_ring, HasSubstr("aio engine libaio: io_uring: it is forbidden here"));
  }
  EXPECT_THAT(without_ring, HasSubstr("; works"));
  const std::string without_both = Try({SYS_io_uring_setup, SYS_io_setup}, {});
  EXPECT_THAT(without_both, HasSubstr("aio engine threads: io_uring: it is forbidden here"));
  EXPECT_THAT(without_both, HasSubstr("libaio: it is forbidden here"));
  EXPECT_THAT(without_both, HasSubstr("; works"));
}

/// What a drive makes of two blocks after the kernel began to refuse `call` for want of resources.
template <typename MakeDrive>
std::string RefusedBlocks(long call, const MakeDrive& make) {
  return InChild([&]() -> std::string {
    const auto drive = make();
    if (!drive.ok()) return "no drive: " + drive.error().message;
    if (!Forbid({call}, EAGAIN)) return "no seccomp";
    const UniqueFd file(::memfd_create("file", MFD_CLOEXEC));
    Buffer buffer(8192);
    std::string text;
    // Twice, so that what was refused once can be submitted again.
    for (int round = 0; round < 2; ++round) {
      for (uint32_t slot = 0; slot < 2; ++slot) {
        (*drive)->Submit({.operation = Operation::kWrite,
                          .fd = file.get(),
                          .data = buffer.bytes().subspan(slot * 4096, 4096),
                          .alignment = 1_B,
                          .slot = slot});
      }
      std::vector<BlockResult> results;
      while (results.size() < 2) (*drive)->Reap(true, results);
      for (const BlockResult& result : results) {
        text += fmt::format("{}: {} ", result.slot, ErrnoText(static_cast<int>(-result.result)));
      }
    }
    return text;
  });
}

constexpr const char* kRefusedTwice =
    "0: Resource temporarily unavailable 1: Resource temporarily unavailable "
    "0: Resource temporarily unavailable 1: Resource temporarily unavailable ";

TEST(Refused, ARingThatTheKernelRefusesToEnterGivesItsBlocksBack) {
  const std::string outcome =
      RefusedBlocks(SYS_io_uring_enter, [] { return UringDrive::Create({.queue_depth = 2}); });
  if (outcome.starts_with("no ")) GTEST_SKIP() << outcome;
  EXPECT_EQ(outcome, kRefusedTwice);
}

TEST(Refused, AContextThatTheKernelRefusesGivesItsBlocksBack) {
  const std::string outcome =
      RefusedBlocks(SYS_io_submit, [] { return LibaioDrive::Create(2, false); });
  if (outcome.starts_with("no ")) GTEST_SKIP() << outcome;
  EXPECT_EQ(outcome, kRefusedTwice);
}

TEST(Refused, AnEngineWithoutThreadsIsAnErrorThatSaysWhatToDo) {
  const std::string outcome = InChild([&]() -> std::string {
    constexpr uid_t kNobody = 65534;
    if (::geteuid() == 0 && (::setgroups(0, nullptr) != 0 || ::setuid(kNobody) != 0)) {
      return "no rights";
    }
    constexpr rlim_t kFew = 8;
    const rlimit limit{kFew, kFew};
    if (::setrlimit(RLIMIT_NPROC, &limit) != 0) return "no limit";
    const auto engine = CreateEngine({.kind = EngineKind::kThreads, .thread_count = 64});
    if (engine.ok()) return "no effect: the limit does not hold here";
    const bool unavailable = engine.error().code == ErrorCode::kUnavailable;
    return (unavailable ? "kUnavailable: " : "another code: ") + engine.error().message;
  });
  if (outcome.starts_with("no ")) GTEST_SKIP() << outcome;
  EXPECT_THAT(outcome, testing::StartsWith("kUnavailable: starting "));
  EXPECT_THAT(outcome, HasSubstr("raise the limit of processes"));
}

/// As an ordinary user finds it: 8 MiB of memlock, and no right to exceed it.
bool BecomeOrdinary() {
  constexpr rlim_t kUsual = 8 << 20;
  const rlimit limit{kUsual, kUsual};
  if (::setrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  constexpr uid_t kNobody = 65534;
  if (::geteuid() != 0) return true;
  return ::setgroups(0, nullptr) == 0 && ::setgid(kNobody) == 0 && ::setuid(kNobody) == 0;
}

/// The line or the error of registering 64 MiB as an ordinary user, and how a write went then.
std::string RegisterAsOrdinaryUser(Registration registration, const std::string& path) {
  return InChild([&]() -> std::string {
    const File file = OpenInChild(path);
    if (!BecomeOrdinary()) return "no rights";
    const auto engine =
        CreateEngine({.kind = EngineKind::kUring, .registered_buffers = registration});
    if (!engine.ok()) return "no ring: " + engine.error().message;
    Buffer buffer(64 << 20);
    const auto line = (*engine)->RegisterBuffers(std::array{buffer.bytes()});
    const Status written =
        (*engine)->Submit(WriteRequest(file, 0, buffer.bytes().first(8192))).Wait();
    return (line.ok() ? *line : "error: " + line.error().message) +
           (written.ok() ? "; works" : "; " + written.error().message);
  });
}

TEST(Memlock, ALimitThatIsTooLowIsALineWithAutoAndAnErrorWhenAskedFor) {
  const ScratchFile file;
  const std::string automatic = RegisterAsOrdinaryUser(Registration::kAuto, file.path());
  if (automatic.starts_with("no ")) GTEST_SKIP() << automatic;
  EXPECT_THAT(automatic, testing::StartsWith("aio buffers are not registered: "));
  EXPECT_THAT(automatic, HasSubstr("memlock limit of 8.00 MiB"));
  EXPECT_THAT(automatic, HasSubstr("ulimit -l"));
  EXPECT_THAT(automatic, HasSubstr("; works"));
  const std::string on = RegisterAsOrdinaryUser(Registration::kOn, file.path());
  EXPECT_THAT(on, testing::StartsWith("error: registering 64.0 MiB with io_uring"));
  EXPECT_THAT(on, HasSubstr("memlock limit of 8.00 MiB"));
  EXPECT_EQ(RegisterAsOrdinaryUser(Registration::kOff, file.path()), "; works");
}

TEST(DescriptorLimit, AFileThatCannotBeOpenedTwiceIsAnErrorAndDoesNotStayBehind) {
  if (!ScratchFile(true).result().ok()) GTEST_SKIP() << "this file system has no O_DIRECT";
  const ScratchPath path;
  const std::string outcome = InChild([&]() -> std::string {
    const UniqueFd next(::dup(STDIN_FILENO));
    // Room for this one and one more: the file is created and opened directly, and no further.
    const auto most = static_cast<rlim_t>(next.get()) + 2;
    const rlimit limit{most, most};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return "no limit";
    const auto file = File::Open(path.str(), {.create = true, .writable = true});
    return file.ok() ? "opened" : file.error().message;
  });
  if (outcome.starts_with("no ")) GTEST_SKIP() << outcome;
  EXPECT_THAT(outcome, HasSubstr("opening " + path.str()));
  EXPECT_THAT(outcome, HasSubstr("Too many open files"));
  EXPECT_NE(::access(path.str().c_str(), F_OK), 0) << "the file that was created must be gone";
}

TEST(FileSizeLimit, AWriteBeyondItIsOutOfSpaceAndTheEngineStaysUsable) {
  for (const EngineKind kind : {EngineKind::kUring, EngineKind::kLibaio, EngineKind::kThreads}) {
    const ScratchFile scratch;
    const std::string outcome = InChild([&]() -> std::string {
      const File file = OpenInChild(scratch.path());
      constexpr rlim_t kLimit = 1 << 20;
      const rlimit limit{kLimit, kLimit};
      if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "no limit";
      const auto engine = CreateEngine({.kind = kind, .block_size = 64_KiB});
      if (!engine.ok()) return "no engine: " + engine.error().message;
      Buffer buffer(2 << 20);
      const Status beyond = (*engine)->Submit(WriteRequest(file, 0, buffer.bytes())).Wait();
      const Status within =
          (*engine)->Submit(WriteRequest(file, 0, buffer.bytes().first(1 << 20))).Wait();
      if (beyond.ok() || !within.ok()) return "wrong: " + MessageOf(within);
      if (beyond.error().code != ErrorCode::kOutOfSpace) return "another code";
      return beyond.error().message;
    });
    if (outcome.starts_with("no ")) continue;
    EXPECT_THAT(outcome, HasSubstr("File too large")) << ToString(kind);
    EXPECT_THAT(outcome, HasSubstr(scratch.path()));
    EXPECT_THAT(outcome, HasSubstr("in a request for 2097152 bytes at 0"));
  }
}

}  // namespace
}  // namespace penstock::aio
