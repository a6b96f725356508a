#include "comm/environment.h"

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

#include "base/token.h"
#include "comm/members.h"

namespace penstock::comm {
namespace {

constexpr uint32_t kMaxPort = 65535;
/// Ports behind the one that torchrun's agent has for itself.
constexpr uint32_t kPortsBehindAgent = 16;
/// The longest part of a run's name.
constexpr size_t kMaxRun = 256;

/// A variable that is a number from `least` to `most`; none if it is not set.
Result<std::optional<uint32_t>> NumberIn(const Environment& environment, const std::string& name,
                                         uint32_t least, uint32_t most) {
  const std::optional<std::string> text = environment(name);
  if (!text.has_value()) return std::optional<uint32_t>();
  uint32_t value = 0;
  const char* end = text->data() + text->size();
  const auto [last, failure] = std::from_chars(text->data(), end, value);
  if (failure != std::errc() || last != end || value < least || value > most) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "environment: {}={} is no number from {} to {}; set it to one, or unset it if "
                     "no launcher starts this process",
                     name, OneLine(*text, kMaxRun), least, most);
  }
  return std::optional(value);
}

Error Lacks(const std::string& has, const std::string& lacks, const std::string& advice) {
  return MakeError(ErrorCode::kInvalidArgument, "environment: {} is set and {} is not; {}", has,
                   lacks, advice);
}

/// One of `size` ranks, from two variables.
Status ReadRank(const Environment& environment, const std::string& rank_name,
                const std::string& size_name, Launch* launch) {
  PENSTOCK_ASSIGN(const auto size, NumberIn(environment, size_name, 1, kMaxRanks));
  PENSTOCK_ASSIGN(const auto rank, NumberIn(environment, rank_name, 0, kMaxRanks - 1));
  if (!size.has_value()) {
    return Lacks(rank_name, size_name, "set both, or unset " + rank_name + " for one rank");
  }
  if (!rank.has_value() && *size > 1) {
    return Lacks(size_name, rank_name, "set both, or unset " + size_name + " for one rank");
  }
  launch->size = *size;
  launch->rank = rank.value_or(0);
  if (launch->rank < launch->size) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "environment: {}={} is no rank of {}={}; ranks count from 0", rank_name,
                   launch->rank, size_name, launch->size);
}

/// Refuses RANK and WORLD_SIZE that are not those of the launcher that started the process.
Status CompareWith(const Environment& environment, const Launch& launch, const char* rank_name,
                   const char* size_name) {
  if (environment(size_name).value_or("1") == "1") return {};
  Launch other;
  PENSTOCK_TRY(ReadRank(environment, rank_name, size_name, &other));
  if (other.size == launch.size && other.rank == launch.rank) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "environment: WORLD_SIZE={} and RANK={} contradict {}={} and {}={}; unset those "
                   "of the launcher that did not start this process",
                   launch.size, launch.rank, size_name, other.size, rank_name, other.rank);
}

/// torchrun may itself be started by mpirun or srun, once on each node: then it is torchrun that
/// says. mpirun starts its daemons with srun, whose variables its processes inherit.
Status CompareWithOthers(const Environment& environment, const Launch& launch) {
  if (environment("TORCHELASTIC_RUN_ID").has_value()) return {};
  if (environment("OMPI_COMM_WORLD_SIZE").has_value()) {
    return CompareWith(environment, launch, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
  }
  return CompareWith(environment, launch, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
}

Status ReadLocal(const Environment& environment, Launch* launch) {
  PENSTOCK_ASSIGN(launch->local_size, NumberIn(environment, "LOCAL_WORLD_SIZE", 1, launch->size));
  PENSTOCK_ASSIGN(launch->local_rank, NumberIn(environment, "LOCAL_RANK", 0,
                                               launch->local_size.value_or(launch->size) - 1));
  return {};
}

/// MASTER_ADDR and MASTER_PORT, where they are needed.
Status ReadMeetingPoint(const Environment& environment, Launch* launch) {
  const std::optional<std::string> host = environment("MASTER_ADDR");
  PENSTOCK_ASSIGN(const auto port, NumberIn(environment, "MASTER_PORT", 1, kMaxPort));
  if (!host.has_value() || host->empty() || !port.has_value()) {
    return Lacks("WORLD_SIZE", host.value_or("").empty() ? "MASTER_ADDR" : "MASTER_PORT",
                 "set MASTER_ADDR to the host of rank 0 and MASTER_PORT to a free port there, on "
                 "all ranks");
  }
  launch->port_advice = "MASTER_PORT says so; set it to a free port, on all ranks";
  const bool by_agent = environment("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  const uint32_t first = by_agent ? *port + 1 : *port;
  const uint32_t last = by_agent ? std::min(*port + kPortsBehindAgent, kMaxPort) : *port;
  for (uint32_t i = first; i <= last; ++i) {
    launch->endpoints.push_back({*host, static_cast<uint16_t>(i)});
  }
  if (by_agent) {
    launch->port_advice =
        "torchrun has MASTER_PORT, and the ports behind it are taken, too; give "
        "torchrun another --master-port or --rdzv-endpoint";
    if (launch->endpoints.empty()) return Error{ErrorCode::kInvalidArgument, launch->port_advice};
  }
  return {};
}

Result<Launch> FromRankAndSize(const Environment& environment) {
  Launch launch;
  PENSTOCK_TRY(ReadRank(environment, "RANK", "WORLD_SIZE", &launch));
  PENSTOCK_TRY(CompareWithOthers(environment, launch));
  PENSTOCK_TRY(ReadLocal(environment, &launch));
  if (launch.size == 1) return launch;
  PENSTOCK_TRY(ReadMeetingPoint(environment, &launch));
  if (const auto run = environment("TORCHELASTIC_RUN_ID"); run.has_value()) {
    launch.run = "torchrun " + OneLine(*run, kMaxRun) + " restart " +
                 OneLine(environment("TORCHELASTIC_RESTART_COUNT").value_or("0"), kMaxRun);
  }
  return launch;
}

Result<Launch> FromPmix(const Environment& environment) {
  const std::optional<std::string> name = environment("PMIX_NAMESPACE");
  if (!name.has_value()) {
    return Lacks("PMIX_RANK", "PMIX_NAMESPACE", "unset PMIX_RANK if no launcher left it");
  }
  if (environment("OMPI_COMM_WORLD_SIZE").value_or("") == "1") return Launch{};
  PENSTOCK_ASSIGN(const auto rank, NumberIn(environment, "PMIX_RANK", 0, kMaxRanks - 1));
  return Launch{.rank = *rank, .by_pmix = true, .run = OneLine("PMIx " + *name, kMaxRun)};
}

Result<Launch> FromSlurm(const Environment& environment) {
  Launch launch;
  PENSTOCK_TRY(ReadRank(environment, "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", &launch));
  PENSTOCK_ASSIGN(launch.local_rank, NumberIn(environment, "SLURM_LOCALID", 0, launch.size - 1));
  constexpr uint32_t kFirstPort = 20000;
  PENSTOCK_ASSIGN(const auto job, NumberIn(environment, "SLURM_JOB_ID", 0, UINT32_MAX));
  PENSTOCK_ASSIGN(const auto port, NumberIn(environment, "MASTER_PORT", 1, kMaxPort));
  std::string host = environment("MASTER_ADDR").value_or("");
  if (host.empty()) {
    PENSTOCK_ASSIGN(host, FirstHost(environment("SLURM_STEP_NODELIST").value_or("")));
  }
  launch.endpoints = {{std::move(host),
                       static_cast<uint16_t>(port.value_or(kFirstPort + job.value_or(0) % 20000))}};
  launch.port_advice = port.has_value()
                           ? "MASTER_PORT says so; set it to a free port, on all ranks"
                           : "it is 20000 + SLURM_JOB_ID mod 20000; set MASTER_PORT to a free port";
  launch.run = OneLine("Slurm " + environment("SLURM_JOB_ID").value_or("") + "." +
                           environment("SLURM_STEP_ID").value_or(""),
                       kMaxRun);
  return launch;
}

/// Without this check, each process of an unsupported launcher would train alone.
Status CheckNoOtherLauncher(const Environment& environment) {
  for (const char* name :
       {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "FLUX_JOB_SIZE"}) {
    const std::optional<std::string> size = environment(name);
    if (!size.has_value() || *size == "1") continue;
    return MakeError(
        ErrorCode::kInvalidArgument,
        "environment: {}={} is of a launcher that is not understood; start with mpirun "
        "of Open MPI 4 or later, srun, torchrun or the variables RANK, WORLD_SIZE, "
        "MASTER_ADDR and MASTER_PORT; or unset {} for one rank",
        name, OneLine(*size, kMaxRun), name);
  }
  return {};
}

/// The token of the job; empty if none is given. The messages do not show it.
Result<std::string> ReadToken(const Environment& environment) {
  std::string token = environment(kTokenVariable).value_or("");
  const bool plain = std::ranges::all_of(token, [](char c) { return c > ' ' && c <= '~'; });
  if (token.empty() || (plain && token.size() >= kMinToken && token.size() <= kMaxToken)) {
    return token;
  }
  return MakeError(
      ErrorCode::kInvalidArgument,
      "environment: {} has {} characters{}; give all ranks the same {} to {} printable "
      "ones without spaces, such as those of \"openssl rand -hex 16\"",
      kTokenVariable, token.size(), plain ? "" : ", some of which are not printable", kMinToken,
      kMaxToken);
}

Result<Launch> ReadPlace(const Environment& environment) {
  if (environment("RANK").has_value() || environment("WORLD_SIZE").has_value()) {
    return FromRankAndSize(environment);
  }
  if (environment("PMIX_RANK").has_value()) return FromPmix(environment);
  if (environment("SLURM_STEP_NUM_TASKS").value_or("1") != "1") return FromSlurm(environment);
  PENSTOCK_TRY(CheckNoOtherLauncher(environment));
  return Launch{};
}

}  // namespace

Result<Launch> ReadLaunch(const Environment& environment) {
  PENSTOCK_ASSIGN(Launch launch, ReadPlace(environment));
  // A single rank meets no others.
  if (launch.size == 1 && !launch.by_pmix) return launch;
  PENSTOCK_ASSIGN(launch.token, ReadToken(environment));
  return launch;
}

Result<std::string> FirstHost(const std::string& list) {
  std::string host;
  size_t at = 0;
  bool complete = true;
  while (at < list.size() && list[at] != ',' && complete) {
    if (list[at] != '[') {
      host += list[at++];
      continue;
    }
    const size_t end = list.find(']', at);
    complete = end != std::string::npos;
    const size_t first = list.find_first_of("-,]", at + 1);
    host += list.substr(at + 1, first - at - 1);
    at = end + 1;
  }
  if (complete && !host.empty()) return host;
  return MakeError(ErrorCode::kInvalidArgument,
                   "environment: SLURM_STEP_NODELIST={} names no host; set MASTER_ADDR to the host "
                   "of rank 0, on all ranks",
                   list);
}

}  // namespace penstock::comm
