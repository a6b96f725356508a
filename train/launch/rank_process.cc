#include "train/launch/rank_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <utility>

#include "train/launch/remote_command.h"
#include "train/process/log.h"

namespace penstock::train {
namespace {

struct Pipe {
  UniqueFd reader;
  UniqueFd writer;
};

/// Makes a pipe that no other program inherits; our end never blocks.
Result<Pipe> MakePipe(UniqueFd Pipe::*ours) {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return ErrnoError(errno, "making a pipe for a rank");
  Pipe pipe{.reader = UniqueFd(ends[0]), .writer = UniqueFd(ends[1])};
  // The rank's end stays blocking, as programs expect.
  if (::fcntl((pipe.*ours).get(), F_SETFL, O_NONBLOCK) != 0) {
    return ErrnoError(errno, "setting up a pipe for a rank");
  }
  return pipe;
}

/// Makes the standard input of the process: the pipe for signals for ssh, else none.
Result<Pipe> MakeInput(bool elsewhere) {
  if (elsewhere) return MakePipe(&Pipe::writer);
  Pipe nothing;
  nothing.reader = UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!nothing.reader.valid()) return ErrnoError(errno, "opening /dev/null");
  return nothing;
}

}  // namespace

Result<RankProcess> RankProcess::Start(const RankCommand& command) {
  const bool elsewhere = !command.host.empty();
  PENSTOCK_ASSIGN(Pipe input, MakeInput(elsewhere));
  if (elsewhere) {
    // It fits into a new pipe, even if ssh never reads.
    const std::string& first = command.first_input;
    if (::write(input.writer.get(), first.data(), first.size()) !=
        static_cast<ssize_t>(first.size())) {
      return ErrnoError(errno, "writing to the pipe of a rank");
    }
  }
  Pipe output;
  if (command.rank != 0) {
    PENSTOCK_ASSIGN(output, MakePipe(&Pipe::reader));
  }
  const bool own = output.writer.valid();
  PENSTOCK_ASSIGN(Child child,
                  Child::Start({.program = command.program,
                                .arguments = command.arguments,
                                .environment = command.environment,
                                .stdin_fd = input.reader.get(),
                                .stdout_fd = own ? output.writer.get() : STDOUT_FILENO,
                                .stderr_fd = own ? output.writer.get() : STDERR_FILENO,
                                // ssh notices the end of its standard input, and tells the rank.
                                .ends_with_parent = !elsewhere,
                                // Also through its standard input: a signal to all processes of
                                // this host must not cut off the ranks of the others.
                                .interruptible = !elsewhere}));
  return RankProcess(command, std::move(child), std::move(input.writer), std::move(output.reader));
}

RankProcess::RankProcess(const RankCommand& command, Child child, UniqueFd signals, UniqueFd output)
    : rank_(command.rank),
      elsewhere_(!command.host.empty()),
      name_(elsewhere_ ? fmt::format("rank {} (on {})", command.rank, command.host)
                       : fmt::format("rank {} (pid {})", command.rank, child.pid())),
      child_(std::move(child)),
      signals_(std::move(signals)),
      output_(std::move(output)) {}

std::string RankProcess::Read() {
  std::array<char, 16384> buffer;
  ssize_t got = 0;
  do {
    got = ::read(output_.get(), buffer.data(), buffer.size());
  } while (got < 0 && errno == EINTR);
  if (got > 0) return {buffer.data(), static_cast<size_t>(got)};
  if (got == 0 || errno != EAGAIN) output_ = UniqueFd();
  return "";
}

std::string RankProcess::ReadRest() {
  constexpr size_t kMaxBuffered = size_t{1} << 20;  // at least what a pipe holds
  std::string rest;
  while (output_.valid() && rest.size() < kMaxBuffered) {
    const std::string more = Read();
    if (more.empty()) break;
    rest += more;
  }
  output_ = UniqueFd();
  return rest;
}

void RankProcess::Signal(int signal) const {
  if (!elsewhere_) return child_.Signal(signal);
  // A failure means that ssh has ended, or that the connection hangs.
  const std::string line = SignalLine(signal);
  [[maybe_unused]] const ssize_t ignored = ::write(signals_.get(), line.data(), line.size());
}

bool RankProcess::HasUnreadInput() const {
  int unread = 0;
  return elsewhere_ && ::ioctl(signals_.get(), FIONREAD, &unread) == 0 && unread > 0;
}

void RankProcess::EndConnection() {
  connection_ended_ = true;
  child_.Signal(SIGKILL);
}

std::optional<Ending> RankProcess::Poll() {
  const std::optional<int> status = child_.Poll();
  if (!status.has_value()) return std::nullopt;
  if (connection_ended_) return Ending{.rank = rank_, .code = ExitCode(ErrorCode::kCancelled)};
  return EndingOf(rank_, *status, elsewhere_);
}

void RankProcess::Leave() {
  if (!elsewhere_) child_.Leave();  // else its object kills it
}

}  // namespace penstock::train
