#include "train/launch/launch.h"

#include <unistd.h>

#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/files.h"
#include "base/token.h"
#include "base/units.h"
#include "train/launch/hostfile.h"
#include "train/launch/launch_loop.h"
#include "train/launch/meeting_port.h"
#include "train/launch/rank_environment.h"
#include "train/launch/remote_command.h"
#include "train/launch/this_host.h"

namespace penstock::train {
namespace {

constexpr Bytes kMaxHostfile = 16_MiB;
/// Rank 0's default port if ranks run on several hosts; the same as torchrun's.
constexpr uint16_t kDefaultPort = 29500;

/// Which ranks run where.
struct LaunchPlan {
  std::vector<RankPlace> places;
  std::vector<std::string> others;  ///< the name of each host; empty for this one
  MeetingPoint meeting;
  std::optional<MeetingPort> held;  ///< if rank 0 runs here

  /// The host of a rank that runs elsewhere; else empty.
  const std::string& ElsewhereOf(const RankPlace& place) const { return others[place.host]; }
};

Result<LaunchPlan> PlanOneHost(const LaunchCommand& command) {
  LaunchPlan plan;
  const HostSlots all{.name = "localhost", .slots = command.ranks};
  PENSTOCK_ASSIGN(plan.places, PlaceRanks(command.ranks, {&all, 1}, ""));
  plan.others = {""};
  plan.meeting = {.address = "127.0.0.1", .port = command.master_port.value_or(0)};
  return plan;
}

/// Refuses an address that means rank 0's host here, but would mean the other hosts themselves
/// there.
Status CheckReachable(const LaunchPlan& plan) {
  if (!IsLoopback(plan.meeting.address)) return {};
  for (const RankPlace& place : plan.places) {
    const std::string& host = plan.ElsewhereOf(place);
    if (host.empty()) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "{} means another host on {}, so rank {} would not find rank 0; write a name "
                     "by which the others reach rank 0's host into the first line of the hostfile",
                     plan.meeting.address, host, place.rank);
  }
  return {};
}

Result<LaunchPlan> PlanHosts(const LaunchCommand& command) {
  Result<std::string> text = ReadTextFileOrPipe(command.hostfile, kMaxHostfile);
  if (!text.ok()) return Error{text.error().code, "--hostfile: " + text.error().message};
  const std::string own = OwnHostName();
  PENSTOCK_ASSIGN(const std::vector<HostSlots> hosts, ParseHostfile(*text, command.hostfile, own));
  LaunchPlan plan;
  PENSTOCK_ASSIGN(plan.places, PlaceRanks(command.ranks, hosts, command.hostfile));
  for (const HostSlots& host : hosts) {
    plan.others.push_back(IsThisHost(host.name, own) ? "" : host.name);
  }
  plan.meeting = {.address = hosts[0].name, .port = command.master_port.value_or(kDefaultPort)};
  PENSTOCK_TRY(CheckReachable(plan));
  return plan;
}

Result<LaunchPlan> MakePlan(const LaunchCommand& command) {
  PENSTOCK_ASSIGN(LaunchPlan plan,
                  command.hostfile.empty() ? PlanOneHost(command) : PlanHosts(command));
  PENSTOCK_ASSIGN(plan.meeting.token, MakeToken());
  if (!plan.ElsewhereOf(plan.places[0]).empty()) return plan;
  PENSTOCK_ASSIGN(plan.held, MeetingPort::Hold(plan.meeting.port));
  plan.meeting.port = plan.held->number();
  return plan;
}

std::vector<std::string> OwnEnvironment() {
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  return WithoutLaunchers(environment);
}

void Append(std::vector<std::string>* to, const std::vector<std::string>& more) {
  to->insert(to->end(), more.begin(), more.end());
}

RankCommand CommandHere(const LaunchCommand& command, const std::string& program,
                        const std::vector<std::string>& variables) {
  RankCommand here{.program = program, .arguments = {"penstock"}, .environment = OwnEnvironment()};
  Append(&here.arguments, command.arguments);
  Append(&here.environment, variables);
  return here;
}

Result<RankCommand> CommandElsewhere(const LaunchCommand& command, const std::string& program,
                                     const std::string& host, std::vector<std::string> variables) {
  std::error_code error;
  const std::string path = std::filesystem::canonical(program, error).string();
  if (error) return ErrnoError(error.value(), "finding the file of this program for " + host);
  const std::string folder = std::filesystem::current_path(error).string();
  if (error) return ErrnoError(error.value(), "finding the working folder for " + host);
  const std::vector<std::string> environment = OwnEnvironment();
  Append(&variables, VariablesForAllHosts(environment));
  const std::string remote = RemoteCommand({.folder = folder,
                                            .program = path,
                                            .arguments = command.arguments,
                                            .variables = std::move(variables)});
  // There is no user to answer ssh's questions: without a key it must fail. A host that does not
  // answer, and a broken connection, end it within 30 s. -T: no terminal there.
  return RankCommand{.host = host,
                     .program = "ssh",
                     .arguments = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "-o",
                                   "ServerAliveInterval=10", "-T", host, remote},
                     .environment = environment};
}

Result<RankCommand> CommandOf(const LaunchCommand& command, const std::string& program,
                              const LaunchPlan& plan, const RankPlace& place) {
  const std::string& host = plan.ElsewhereOf(place);
  std::vector<std::string> variables = RankVariables(place, command.ranks, plan.meeting);
  const std::string token = TokenVariable(plan.meeting);
  if (host.empty()) {
    variables.push_back(token);
    return CommandHere(command, program, variables);
  }
  PENSTOCK_ASSIGN(RankCommand elsewhere,
                  CommandElsewhere(command, program, host, std::move(variables)));
  elsewhere.first_input = token + "\n";
  return elsewhere;
}

}  // namespace

Result<int> RunLaunch(const LaunchCommand& command, const LaunchSetting& setting) {
  PENSTOCK_CHECK(command.ranks >= 1 && command.ranks <= kMaxRanks);
  PENSTOCK_ASSIGN(const LaunchPlan plan, MakePlan(command));
  std::vector<RankCommand> commands;
  for (const RankPlace& place : plan.places) {
    PENSTOCK_ASSIGN(RankCommand rank, CommandOf(command, setting.program, plan, place));
    rank.rank = place.rank;
    commands.push_back(std::move(rank));
  }
  return RunRanks(commands, setting.patience);
}

}  // namespace penstock::train
