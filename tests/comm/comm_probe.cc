// A rank of a job that is started as a rank of a training would be, for tests from outside.
//
//   comm_probe talk      calls everything once, and says what it was told
//   comm_probe connect   connects with all ranks over Gloo, and says in how many milliseconds
//   comm_probe hold      waits until rank 0's input ends, or the job does
//   comm_probe fail      the rank --rank ends the job with an error
//   comm_probe disagree  the rank --rank does not agree
//   comm_probe leave     the rank --rank leaves without a word
//
// Exit code: 0 when all ranks have finished, 3 for any error, which is the last line on stderr.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "comm/communicator.h"
#include "comm/job.h"
#include "device/device.h"

namespace penstock::comm {
namespace {

struct ProbeOptions {
  int64_t join_s = 60;
  int64_t heartbeat_s = 30;
  int64_t operation_s = 600;
  uint32_t rank = 1;                ///< the one that fails
  std::vector<std::string> inside;  ///< operations by rank; "-": none
  std::vector<std::string> doing;   ///< by rank
};

std::optional<std::string> ProcessEnvironment(const std::string& name) {
  const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe)
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

int Report(const Error& error) {
  std::fputs(("comm_probe: error: " + error.message + "\n").c_str(), stderr);
  return 3;
}

void Say(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

/// The owner's function: no rank continues.
void EndProcess(const Error& verdict, const std::string& /*report*/) { ::_exit(Report(verdict)); }

/// After a failure the job's thread ends the process.
[[noreturn]] void AwaitEnd() {
  while (true) ::pause();
}

Status Talk(Job& job, const ProbeOptions& /*options*/) {
  const World& world = job.world();
  PENSTOCK_TRY(job.Agree({}));
  PENSTOCK_ASSIGN(const std::vector<std::string> all,
                  job.Gather(fmt::format("{} at {}", world.rank, world.local_rank)));
  PENSTOCK_TRY(job.Vote(1, 2));
  Say(fmt::format("rank {} of {}, {} of {}, hosts {}: {}", world.rank, world.size, world.local_rank,
                  world.local_size, job.hosts().size(), fmt::join(all, ", ")));
  return {};
}

Status Connect(Job& job, const ProbeOptions& /*options*/) {
  PENSTOCK_ASSIGN(const auto device, device::CreateCpuDevice({.memory = 1_MiB}));
  PENSTOCK_TRY(job.Agree({}));
  const auto begin = std::chrono::steady_clock::now();
  PENSTOCK_ASSIGN(const auto communicator, CreateGloo(job, *device));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  Say(fmt::format("rank {} of {} connected in {:.1f} ms", job.world().rank, job.world().size,
                  took.count()));
  return job.Agree({});
}

Status Hold(Job& job, const ProbeOptions& options) {
  const uint32_t rank = job.world().rank;
  if (rank < options.doing.size()) job.Doing(options.doing[rank]);
  if (rank < options.inside.size() && options.inside[rank] != "-") {
    const std::string& number = options.inside[rank];
    const Operation operation = {.step = 12,
                                 .index = static_cast<uint32_t>(std::stoul(number)),
                                 .what = "weights of h." + number};
    job.Entered(operation, OperationState::kEnqueued);
    job.Entered(operation, OperationState::kBegun);
  }
  PENSTOCK_TRY(job.Agree({}));
  Say(fmt::format("rank {} pid {} holds", rank, ::getpid()));
  if (rank == 0) {
    while (std::cin.get() != EOF) {
    }
  }
  return job.Gather("").status();
}

Status FailAsRank(Job& job, const ProbeOptions& options) {
  if (job.world().rank == options.rank) job.Fail({ErrorCode::kOutOfSpace, "the drive is full"});
  return job.Gather("").status();
}

Status Disagree(Job& job, const ProbeOptions& options) {
  if (job.world().rank != options.rank) return job.Agree({});
  return job.Agree(Error{ErrorCode::kInvalidArgument, "lr is 0.002"});
}

Status Leave(Job& job, const ProbeOptions& options) {
  if (job.world().rank == options.rank) ::_exit(0);
  return Hold(job, options);
}

using Command = Status (*)(Job&, const ProbeOptions&);

int RunProbe(Command command, const ProbeOptions& options) {
  Result<std::unique_ptr<Job>> job =
      Job::Join(ProcessEnvironment, {.join_timeout = std::chrono::seconds(options.join_s),
                                     .timeouts = {std::chrono::seconds(options.heartbeat_s),
                                                  std::chrono::seconds(options.operation_s)},
                                     .on_failure = EndProcess});
  if (!job.ok()) return Report(job.error());
  Status outcome = command(**job, options);
  if (outcome.ok()) outcome = (*job)->Finish();
  if (outcome.ok()) return 0;
  // The function is not called for an error that all ranks have agreed on.
  if (command == Disagree) return Report(outcome.error());
  AwaitEnd();
}

}  // namespace
}  // namespace penstock::comm

int main(int argc, char** argv) {
  using namespace penstock::comm;  // NOLINT(google-build-using-namespace)
  try {
    std::signal(SIGPIPE, SIG_IGN);
    ProbeOptions options;
    Command command = nullptr;
    CLI::App app("A rank of a job, for tests");
    app.require_subcommand(1);
    app.fallthrough();
    app.add_option("--join", options.join_s, "seconds");
    app.add_option("--heartbeat", options.heartbeat_s, "seconds");
    app.add_option("--operation", options.operation_s, "seconds");
    app.add_option("--rank", options.rank, "the rank that is meant");
    app.add_option("--inside", options.inside, "hold: the operation in which each rank is, or -");
    app.add_option("--doing", options.doing, "hold: what each rank does");
    const std::pair<const char*, Command> commands[] = {
        {"talk", Talk},       {"connect", Connect},   {"hold", Hold},
        {"fail", FailAsRank}, {"disagree", Disagree}, {"leave", Leave}};
    for (const auto& [name, function] : commands) {
      app.add_subcommand(name)->callback([&command, function = function] { command = function; });
    }
    CLI11_PARSE(app, argc, argv);
    return RunProbe(command, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "comm_probe: error: %s\n", error.what());
    return 3;
  }
}
