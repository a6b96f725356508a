// What an engine is made with.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "aio/drive_speed.h"
#include "base/activity.h"
#include "base/result.h"
#include "base/units.h"
#include "comm/world.h"
#include "config/config.h"
#include "device/device.h"
#include "offload/commit_agreement.h"
#include "offload/uuid.h"
#include "zero/model.h"

namespace penstock::aio {
class Engine;
class File;
}  // namespace penstock::aio

namespace penstock::comm {
class Communicator;
}  // namespace penstock::comm

namespace penstock::zero {

struct EngineOptions {
  ModelSpec model;
  config::Config config;  ///< homes, tile size, optimizer, budgets, aio, overlap, durability
  /// Where the files of the state go: nvme_paths, or RUN when no home is nvme.
  std::vector<std::string> state_folders;
  /// Files of a committed state to resume in place (see StatePort::Adopt), in the state_folders and
  /// in the order of their paths; none: a new state.
  std::vector<std::string> adopt;
  /// The commit from which the run resumes: the newest intact one, on which several ranks have
  /// agreed. None: the newest.
  std::optional<offload::CommitName> adopt_at;
  std::optional<offload::Uuid> state_uuid;  ///< of a new state; none: a random one
  /// Whether the first commit is verified regardless of `config`: for a state that is moved, as its
  /// old files are removed after that commit.
  bool verify_first_commit = false;
  uint64_t seed = 0;      ///< of stochastic rounding
  Bytes host_memory;      ///< limit of all that is charged to it
  Bytes device_reserved;  ///< device bytes that others take (activations, scratch)
  Bytes host_reserved;    ///< bytes of host_memory that others take (activation checkpoints)
  /// The caller's stream, on which it enqueues its kernels; it outlives the engine. None: the
  /// engine makes one.
  device::Stream* compute_stream = nullptr;
  /// To the other ranks; outlives the engine. None: this is the only rank.
  comm::Communicator* communicator = nullptr;
  /// With several ranks: the number of this start of the run, the same on all ranks. Their commits
  /// name it.
  uint64_t commit_session = 0;
  /// Called by the thread that makes a commit, once this rank's is durable. Returns when those of
  /// all ranks are; until then the commit before it stands. None: no other rank makes any.
  std::function<Status(uint64_t step)> vote;
  ActivityMeter* meter = nullptr;
  /// Told in one line when a drive does not answer, and when it does again, and of what was lost in
  /// a file of the state and is there twice; any thread. If empty, nothing is looked at or said.
  std::function<void(const std::string& line)> warn;
  /// With several ranks: called with what the calling thread does now, for messages, as in "waits
  /// for weights of h.3". Cheap. May be empty.
  std::function<void(std::string_view what)> doing;
  /// With several ranks: told of each piece of a commit that was written or read back, for which
  /// other ranks may wait (comm::Job::Progressed). Cheap; any thread. If empty, nothing is told.
  std::function<void()> progressed;

  // Tests may replace these: the function that makes the I/O engine of a path (none:
  // aio::CreateEngine), and the one that measures drives for the paths' shares.
  std::function<Result<std::unique_ptr<aio::Engine>>(size_t path, const aio::EngineOptions& options,
                                                     std::string* notice)>
      create_io;
  aio::SpeedProbe probe = aio::MeasureFile;

  comm::World world() const;
};

}  // namespace penstock::zero
