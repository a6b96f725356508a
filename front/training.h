// A training whose model the caller computes: the C interface (front/penstock.h) as a class.
//
// A zero::Session on states at home in host memory or on the drive (front/host_home.h), or on the
// caller's device (front/device_home.h), with an inbox for gradients and copies from and to the
// device. A step begins with the first call that belongs to it. Updates begin when the step ends,
// never with their gradients: only the caller knows whether there will be an update.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/folder_watch.h"
#include "base/result.h"
#include "front/arrival_room.h"
#include "front/device_copies.h"
#include "front/device_home.h"
#include "front/gradient_inbox.h"
#include "front/group_scalars.h"
#include "front/host_home.h"
#include "front/plan.h"
#include "front/snapshot_answers.h"
#include "front/step_log.h"
#include "front/unit_memory.h"
#include "offload/layout.h"
#include "offload/whole_state.h"
#include "zero/engine/state_port.h"
#include "zero/session/session.h"
#include "zero/session/step.h"
#include "zero/states/committed_state.h"
#include "zero/states/tile_fill.h"

namespace penstock::front {

enum class UseKind { kForward, kBackward, kAside };

class Training {
 public:
  /// Makes the files, or resumes in or moves those of Plan::continue_from. Errors: kBudget; of the
  /// state and the I/O engines.
  static Result<std::unique_ptr<Training>> Create(Plan plan);
  /// Drops an open step, and waits for a commit that was begun.
  ~Training();
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;

  // See front/penstock.h. Errors of all: an earlier failure, from then on; kInvalidArgument.
  Status Fill(uint32_t unit, const void* const* tensors);
  /// Where the elements of one state of a tensor of the unit are; null if they are not given.
  using StatesOfUnit = std::function<const float*(size_t tensor, zero::StateKind kind)>;
  Status FillStates(uint32_t unit, const StatesOfUnit& states);
  Status BeginAt(uint64_t step, uint64_t optimizer_steps);
  Status Use(uint32_t unit, UseKind kind, const UnitMemory& to);
  Status Gradient(uint32_t unit, uint32_t tensor, const void* values, DType dtype);
  Status UseOn(uint32_t unit, UseKind kind, const UnitMemory& to, CuStream stream);
  Status GradientOn(uint32_t unit, uint32_t tensor, const void* values, DType dtype,
                    CuStream stream);
  Status ReadGradient(uint32_t unit, uint32_t tensor, float* to);
  Status ReplaceGradient(uint32_t unit, uint32_t tensor, const void* values, DType dtype);
  Status ReportLoss(double loss);
  /// Gives the loss of the step to the curves of its log alone.
  void NoteLoss(double loss) { losses_.noted = loss; }
  Result<zero::GradientNorm::Value> Norm();
  Result<zero::StepOutcome> EndStep(std::span<const GroupScalars> groups, double max_norm,
                                    double loss_scale);
  /// Ends the step as one that is skipped, because the caller has found its gradient not finite.
  /// `lr`: of its first group, for its row.
  Result<zero::StepOutcome> SkipStep(double lr, double loss_scale);
  Status DropStep();
  Result<std::optional<uint64_t>> TakeBackDoubtfulCommit();
  Status Drain();
  /// `caller_file`: what the caller's file has that `json` names (offload/caller_file.h); empty:
  /// `json` is the caller's, and names none.
  Status BeginCommit(std::string json, std::string caller_file = {});
  Status FinishCommit();
  /// From now on a commit counts only if these files are still in that folder
  /// (base/folder_watch.h).
  Status Watch(const std::string& folder, const std::vector<std::string>& names);
  /// `gone` is called when a commit is durable and the watch finds that the folder is gone.
  void Watch(FolderWatch watch, std::function<void()> gone) {
    watch_ = std::move(watch);
    gone_ = std::move(gone);
  }
  /// Has a log take the steps from now on.
  void Log(std::unique_ptr<StepLog> log) { log_ = std::move(log); }
  /// Has `answers` take the snapshots that are asked for, at AnswerRequests.
  void AnswerBy(std::unique_ptr<SnapshotAnswers> answers) { answers_ = std::move(answers); }
  /// Takes them of the newest commit, which `info` names.
  void AnswerRequests(const train::RunInfo& info);
  /// The row of the last step; empty if its loss was not reported.
  std::string RowToCommit() const {
    return log_ == nullptr ? std::string() : log_->RowOf(counts().step);
  }
  /// The samples that its steps took, as far as the log knows them.
  std::optional<uint64_t> SamplesToCommit() const {
    return log_ == nullptr ? std::optional<uint64_t>() : log_->SamplesAt(counts().step);
  }
  /// How many lines for the user the log has, and the lines, each of which is returned once.
  size_t step_notices() const { return log_ == nullptr ? 0 : log_->notices(); }
  std::vector<std::string> TakeStepNotices() {
    return log_ == nullptr ? std::vector<std::string>() : log_->TakeNotices();
  }
  Status CopyCommit(const std::vector<std::string>& paths);
  /// Opens the last commit, which must not be overwritten meanwhile: no step ends, nothing is
  /// committed. Errors: kNotFound without a commit; kInvalidArgument if it is gone.
  Result<offload::WholeState> OpenCommit();
  /// The step of the last commit that is durable.
  std::optional<uint64_t> committed() const { return session_->committed_step(); }
  Status Read(uint32_t unit, uint32_t tensor, zero::StateKind kind, uint64_t begin,
              std::span<float> values);

  /// Returns the memory of a unit's tensors, whose addresses are at `tensors`. Errors:
  /// kInvalidArgument for an address that is null.
  Result<UnitMemory> MemoryOf(uint32_t unit, void* const* tensors) const;

  /// To be held during every call.
  std::optional<ContextScope> Enter() { return home_ == nullptr ? std::nullopt : home_->Enter(); }
  /// Ends the training after an incomplete call. The last commit stands.
  void Abandon() noexcept;

  const offload::ShardLayout& layout() const { return plan_.layout; }
  const config::Config& config() const { return plan_.engine.config; }
  const zero::Session& session() const { return *session_; }
  bool scales_loss() const { return plan_.scales_loss; }
  uint32_t slots() const { return plan_.slots; }
  const zero::StatePort& engine() const { return states(); }
  const zero::StateIo& io() const {
    return home_ != nullptr ? home_->states().io() : host_->engine().io();
  }
  const std::vector<std::string>& notices() const { return plan_.notices; }
  const std::vector<std::string>& warnings() const { return plan_.warnings; }
  /// The text of the commit from which it resumed; none if it is new.
  const std::optional<std::string>& continued() const { return continued_; }
  bool moved() const { return moved_; }
  const offload::CommitHead& counts() const { return life().counts(); }
  const zero::StepLife& life() const { return session_->life(); }
  /// The loss scale of the open step, or of the next one if none is open.
  double loss_scale() const { return step_ ? life().scale_of_step() : life().next_scale(); }
  /// Whether the caller adds up micro-batches, and gives each gradient once a step.
  bool sums_on_device() const { return plan_.device_sums.value > 0; }
  /// Returns how often a gradient waited for room to arrive in.
  uint64_t gradient_waits() const { return room_.waits(); }
  /// Returns how much host memory is registered for copies from and to the device.
  Bytes registered_bytes() const {
    return copies_ == nullptr ? Bytes{} : copies_->registered_bytes();
  }

 private:
  /// Weights of small tiles are enqueued together, up to this size.
  static constexpr Bytes kMaxAtOnce = 256_KiB;

  explicit Training(Plan plan) : plan_(std::move(plan)) {}
  Status Build();
  Status BuildInbox();
  Status Continue(std::unique_ptr<zero::CommittedState> from);
  Status MoveFrom(const zero::CommittedState& from);
  Status CheckReady();
  Status CheckMaster(const offload::TensorLayout& tensor, const float* values) const;
  Status CheckStates(offload::ModuleId module, const StatesOfUnit& states) const;
  Status CheckUnfilled(uint32_t unit) const;
  Status CheckUnit(uint32_t unit) const;
  Status CheckTensor(uint32_t unit, uint32_t tensor) const;
  Status CheckEnd(double max_norm, double loss_scale);
  Status CheckGroups(size_t groups) const;
  void LogStep(const Result<zero::StepOutcome>& outcome, const zero::StepFigures& figures,
               double lr, double loss_scale);
  Status BeginStep();
  Status BeginUse(uint32_t unit, UseKind kind, bool brings);
  Status BeginGradient(uint32_t unit, uint32_t tensor);
  Status CheckGradient(uint32_t unit, uint32_t tensor);
  Status AddToHome(uint32_t unit, uint32_t tensor, const void* values, DType dtype,
                   CuStream stream);
  zero::StatePort& states() const {
    if (home_ != nullptr) return home_->states();
    return *host_;
  }
  /// The number of threads that copy and add up in host memory: as many as the compute threads,
  /// which wait meanwhile. If a GPU computes, the update threads are idle in a backward.
  int copy_threads() const {
    const zero::ThreadCounts& counts = io().threads.counts;
    return plan_.cuda ? std::max(counts.compute, counts.optimizer) : counts.compute;
  }
  Status CheckDevice() const;
  Result<ContextScope> EnterCopies(CuStream stream);
  Status AwaitCopies();
  Status AwaitGradients();
  Status EnqueueZeros(offload::ModuleId module, uint32_t tensor, DType dtype);
  Status EnqueueWeights(offload::ModuleId module, const UnitMemory& to, CuStream stream);
  Status EnqueuePieces(const GradientInbox::Announced& gradient, CuDevicePointer from,
                       CuStream stream);
  Result<std::vector<zero::GroupSpec>> GroupsOf(std::span<const GroupScalars> groups) const;
  Status LoadTile(offload::TileId tile);
  void CloseStep();
  /// Keeps a failure that ends the training.
  Status Keep(Status status) { return session_->Keep(std::move(status)); }
  Status CheckWatched() const;
  /// Ends the commit that was begun, if any, also after a failure; the log is told.
  Status EndCommit();

  Plan plan_;
  // One of these two.
  std::unique_ptr<HostHome> host_;
  std::unique_ptr<DeviceHome> home_;
  std::optional<zero::Session> session_;
  std::optional<zero::Step> step_;  ///< the open step
  std::optional<GradientInbox> inbox_;
  std::optional<std::string> continued_;
  bool moved_ = false;
  std::optional<FolderWatch> watch_;
  std::function<void()> gone_;    ///< told that the watched folder is gone
  std::unique_ptr<StepLog> log_;  ///< none: the training is of no run
  StepLosses losses_;             ///< of the open step
  /// The tile that was read last, as the last step left it.
  struct ReadTile {
    offload::TileId tile{};
    std::vector<std::byte> weight;
    std::vector<std::byte> record;
  };
  std::optional<ReadTile> read_;
  std::unique_ptr<SnapshotAnswers> answers_;  ///< none: the training is of no run
  ArrivalRoom room_;
  std::unique_ptr<DeviceCopies> copies_;  ///< made on demand; last: uses the others
};

}  // namespace penstock::front
