// The part of the state that both engines share: the I/O engines, the files, counters and commits.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/result.h"
#include "device/device.h"
#include "offload/commit_verifier.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "zero/engine/state_port.h"
#include "zero/plan/commit_verification.h"
#include "zero/plan/thread_plan.h"

namespace penstock::zero {

/// What computes the model that a state belongs to: the CPU, or a GPU.
struct ComputeDevice {
  device::Kind kind = device::Kind::kCpu;
  std::string pci_bus_id;  ///< PCI bus id of the GPU; empty if unknown

  static ComputeDevice Of(const device::Device& device) {
    return {.kind = device.kind(), .pci_bus_id = device.pci_bus_id()};
  }
};

struct StateIo {
  std::vector<std::unique_ptr<aio::Engine>> engines;  ///< of each path
  std::unique_ptr<offload::StateFile> file;
  std::vector<std::string> paths;  ///< of the files
  std::string uuid;
  std::vector<std::string> notices;
  bool verifies_first_alone = false;  ///< only the first commit is verified
  ThreadPlan threads;                 ///< of the engine; the I/O engines' threads run there already
  std::optional<offload::CommitRecord> adopted;  ///< the commit from which training resumes
  uint64_t setup_read_bytes = 0;  ///< read before training: to measure the drives, to resume
  uint64_t init_bytes = 0;
  /// The largest number told so far: a verifier's reads are subtracted when they begin and counted
  /// when they end, so the difference may shrink meanwhile.
  mutable uint64_t step_read_bytes = 0;

  /// Plans the threads, makes an I/O engine for each path, near its drive, and creates or opens the
  /// state. States are read into and written from `memory`, which is untouched so far and outlives
  /// the engines: it is placed near the drives and the device, and gets its pages. Errors: of
  /// engines and state.
  static Result<StateIo> Create(const EngineOptions& options, const offload::ShardLayout& layout,
                                const ComputeDevice& device, offload::Slab& memory);

  /// Makes what verifies commits; null, if they are not verified. Adds a notice if the user has to
  /// know. Errors: kOutOfMemory.
  Result<std::unique_ptr<offload::CommitVerifier>> CreateVerifier(
      const EngineOptions& options, const offload::ShardLayout& layout,
      const CommitVerification& plan);
  /// Says that a commit has ended: lets a verifier go that was made for the first one alone, which
  /// comes before any step.
  void EndCommit(std::unique_ptr<offload::CommitVerifier>& verifier);

  /// Registers memory that steps read into and write from with the engines, where there is any.
  /// `folders`: of the engines, for the notice.
  Status RegisterMemory(std::span<const std::span<std::byte>> parts,
                        const std::vector<std::string>& folders);
  const std::string& engine_name() const { return engines.front()->name(); }
  /// Says that training begins: bytes read so far do not count as those of steps.
  void EndSetup();
  /// Returns all bytes written so far.
  uint64_t written() const;
  /// Splits the bytes written: `step_bytes` by steps; the rest, except initialisation, by commits.
  /// Of those read, `verifier` (null: none) has read its own.
  EngineCounters Counters(uint64_t step_bytes, const offload::CommitVerifier* verifier) const;
};

}  // namespace penstock::zero
