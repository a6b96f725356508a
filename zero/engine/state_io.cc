#include "zero/engine/state_io.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "base/topology.h"
#include "offload/state_format.h"
#include "offload/uuid.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/numa_placement.h"
#include "zero/states/start_team.h"

namespace penstock::zero {
namespace {

static_assert(config::kMaxNvmePaths <= offload::kMaxPaths);

/// Engines of one kind say the same of themselves.
void AddOnce(const std::string& notice, std::vector<std::string>& notices) {
  const bool known = std::find(notices.begin(), notices.end(), notice) != notices.end();
  if (!notice.empty() && !known) notices.push_back(notice);
}

/// Asks the machine to which nodes a GPU and the drives that steps use are attached, places
/// `memory` and plans the threads. Nothing here is worth ending a run.
void Place(const EngineOptions& options, const ComputeDevice& device, offload::Slab& memory,
           StateIo& io) {
  const config::Config& config = options.config;
  io.threads = {.counts = {config.compute_threads, config.optimizer_threads},
                .io = std::vector<std::vector<int>>(options.state_folders.size())};
  const Result<Topology> topology = ReadTopology();
  if (!topology.ok()) {
    io.notices.push_back("threads and host memory are not placed: " + topology.error().message);
    return;
  }
  const bool drives = config::UsesNvme(config) && !config.aio.simulate;
  std::vector<PathDevices> paths;
  for (const std::string& folder : options.state_folders) {
    if (drives) paths.push_back({.path = folder, .devices = BlockDevicesOf(folder)});
  }
  NumaPlacement placement = PlaceNear(*topology, paths, device.pci_bus_id);
  if (!placement.memory_nodes.empty()) {
    const Status placed = memory.PreferNodes(placement.memory_nodes);
    if (!placed.ok()) placement.notice += "; memory does not: " + placed.error().message;
  }
  if (drives || !device.pci_bus_id.empty()) io.notices.push_back(placement.notice);
  if (IsResident(config)) return;
  io.threads = PlanThreads(*topology, device.kind, io.threads.counts, placement);
  LeaveOutRefused(io.threads);
  io.threads.io.resize(options.state_folders.size());
  io.notices.push_back(io.threads.notice);
}

Status MakeEngines(const EngineOptions& options, StateIo& io) {
  for (size_t path = 0; path < options.state_folders.size(); ++path) {
    aio::EngineOptions aio = options.config.aio;
    aio.cpus = io.threads.io[path];
    aio.on_stall = options.warn;
    std::string notice;
    PENSTOCK_ASSIGN(std::unique_ptr<aio::Engine> engine, options.create_io
                                                             ? options.create_io(path, aio, &notice)
                                                             : aio::CreateEngine(aio, &notice));
    io.engines.push_back(std::move(engine));
    AddOnce(notice, io.notices);
  }
  return {};
}

/// One line of what each drive's engine says: drives of which it differs are named. The memlock
/// limit may have room for the memory of some of them.
std::string JoinByDrive(const std::vector<std::string>& lines,
                        const std::vector<std::string>& folders) {
  std::map<std::string, std::vector<std::string>> said;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (!lines[i].empty()) said[lines[i]].push_back(folders[i]);
  }
  if (said.empty()) return "";
  if (said.size() == 1 && said.begin()->second.size() == lines.size()) return said.begin()->first;
  std::string joined;
  for (const auto& [line, where] : said) {
    joined += fmt::format("{}for {} of {} drives ({}) {}", joined.empty() ? "" : "; ", where.size(),
                          lines.size(), fmt::join(where, ", "), line);
  }
  return joined;
}

Status MakeFile(const EngineOptions& options, const offload::ShardLayout& layout, StateIo& io) {
  std::vector<aio::Engine*> engines;
  for (const auto& engine : io.engines) engines.push_back(engine.get());
  const bool require_direct = config::UsesNvme(options.config);
  if (!options.adopt.empty()) {
    PENSTOCK_ASSIGN(
        offload::OpenedState state,
        offload::StateFile::Open(options.adopt, layout, require_direct, engines, options.adopt_at));
    io.file = std::move(state.file);
    io.adopted = std::move(state.commit);
    for (const std::string& notice : state.notices) io.notices.push_back(notice);
    return {};
  }
  PENSTOCK_ASSIGN(io.file,
                  offload::StateFile::Create(layout,
                                             {.folders = options.state_folders,
                                              .durable = options.config.durable,
                                              .uuid = options.state_uuid,
                                              .require_direct = require_direct,
                                              .simulated = options.config.aio.simulate.has_value(),
                                              .probe = options.probe},
                                             engines));
  return {};
}

uint64_t Sum(const std::vector<std::unique_ptr<aio::Engine>>& engines,
             uint64_t aio::EngineStats::*counter) {
  uint64_t sum = 0;
  for (const auto& engine : engines) sum += engine->stats().*counter;
  return sum;
}

std::string SharesNotice(const std::vector<offload::PathShare>& shares,
                         const std::vector<std::string>& folders) {
  std::string text;
  for (size_t i = 0; i < shares.size(); ++i) {
    const double speed = shares[i].bytes_a_second;
    text += fmt::format("{} {:.1f} % in {}", i == 0 ? ":" : ",", 100 * shares[i].share, folders[i]);
    if (speed > 0) text += fmt::format(" at {:.2f} GB/s in a burst", speed / 1e9);
  }
  return fmt::format("state over {} drives{}", shares.size(), text);
}

}  // namespace

Result<StateIo> StateIo::Create(const EngineOptions& options, const offload::ShardLayout& layout,
                                const ComputeDevice& device, offload::Slab& memory) {
  const config::Config& config = options.config;
  StateIo io;
  Place(options, device, memory, io);
  TakePages(memory.bytes(), StartThreads());
  PENSTOCK_TRY(MakeEngines(options, io));
  PENSTOCK_TRY(MakeFile(options, layout, io));
  const std::vector<offload::PathShare> shares = io.file->Shares();
  for (const offload::PathShare& share : shares) io.paths.push_back(share.path);
  if (shares.size() > 1) io.notices.push_back(SharesNotice(shares, options.state_folders));
  io.file->WarnBy(options.warn);
  if (Trace* trace = TraceOf(options.meter)) io.file->TraceTo(*trace);
  io.uuid = offload::ToString(io.file->uuid());
  if (config.aio.simulate) {
    io.notices.emplace_back("drives are simulated in memory: commits end with the process");
  }
  io.EndSetup();
  io.init_bytes = io.written();
  return io;
}

void StateIo::EndSetup() {
  setup_read_bytes = Sum(engines, &aio::EngineStats::read_bytes);
  step_read_bytes = 0;
}

Result<std::unique_ptr<offload::CommitVerifier>> StateIo::CreateVerifier(
    const EngineOptions& options, const offload::ShardLayout& layout,
    const CommitVerification& plan) {
  if (!plan.notice.empty()) notices.push_back(plan.notice);
  verifies_first_alone = options.verify_first_commit && !plan.on;
  if (!plan.on && !verifies_first_alone) return std::unique_ptr<offload::CommitVerifier>();
  return offload::CommitVerifier::Create(layout, *file, std::max(1, threads.counts.optimizer),
                                         options.progressed);
}

void StateIo::EndCommit(std::unique_ptr<offload::CommitVerifier>& verifier) {
  if (!std::exchange(verifies_first_alone, false)) return;
  verifier.reset();
  EndSetup();
}

Status StateIo::RegisterMemory(std::span<const std::span<std::byte>> parts,
                               const std::vector<std::string>& folders) {
  std::vector<std::span<std::byte>> used;
  std::ranges::copy_if(parts, std::back_inserter(used), [](auto part) { return !part.empty(); });
  if (used.empty()) return {};
  std::vector<std::string> lines;
  for (const auto& engine : engines) {
    PENSTOCK_ASSIGN(std::string line, engine->RegisterBuffers(used));
    lines.push_back(std::move(line));
  }
  AddOnce(JoinByDrive(lines, folders), notices);
  return {};
}

uint64_t StateIo::written() const { return Sum(engines, &aio::EngineStats::write_bytes); }

EngineCounters StateIo::Counters(uint64_t step_bytes,
                                 const offload::CommitVerifier* verifier) const {
  // In this order: what has ended by then was submitted before.
  const uint64_t read = Sum(engines, &aio::EngineStats::read_bytes) - setup_read_bytes;
  const uint64_t verified = verifier == nullptr ? 0 : verifier->submitted_bytes();
  step_read_bytes = std::max(step_read_bytes, read - std::min(read, verified));
  return {.nvme_read_bytes = step_read_bytes,
          .nvme_write_bytes = step_bytes,
          .nvme_init_bytes = init_bytes,
          .nvme_commit_bytes = written() - init_bytes - step_bytes,
          .nvme_verify_bytes = verified};
}

}  // namespace penstock::zero
