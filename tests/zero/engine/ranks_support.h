// Ranks as threads of this process, each with an engine that trains the toy: what their tests
// share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "tests/zero/states/committed_blocks.h"
#include "tests/zero/toy_model.h"
#include "zero/engine/memory_plan.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {

/// Micro-batches of a step, at most, of all ranks together: 1, 2, 3, 4 and 8 ranks divide them.
inline constexpr uint64_t kGlobalBatch = 24;
inline constexpr uint64_t kSteps = 5;
inline constexpr uint64_t kSkippedStep = 3;

/// How much memory ranks have: on the device the least, or what two slots for layers take; or all
/// that they can use.
enum class Room { kMinimum, kTwoSlots, kAll };

struct Case {
  std::string name;
  DType dtype = DType::kBFloat16;
  Tier parameters = Tier::kNvme;
  Tier optimizer = Tier::kNvme;
  kernels::OptimizerHyperparameters hyper = kernels::AdamHyperparameters{.weight_decay = 0.1};
  bool with_gradients = false;  ///< nothing needs all gradients: updates begin with their own
  bool overlap = true;
  DType communication = DType::kFloat32;
  Room room = Room::kMinimum;
  uint64_t layer_elements = 30000;
  uint64_t tile_elements = 8192;
  Bytes more_host;               ///< than the smallest
  bool first_keeps_all = false;  ///< rank 0 has host memory for all that it has
  int64_t commit_every_steps = 0;
  /// Of each step, of all ranks together; kSkippedStep's has the 13th.
  std::array<uint64_t, kSteps> micro_batches = {kGlobalBatch, kGlobalBatch, kGlobalBatch,
                                                kGlobalBatch, kGlobalBatch};
};

/// What a run computed: the same on all ranks, but for the blocks, which are those of all together.
struct Outcome {
  std::vector<double> losses;
  std::vector<double> norms;
  CommittedBlocks blocks;
};

/// The toy's loss and gradient in micro-batch `index` of the step, of `weights`, times `scale`.
class ToyBatch {
 public:
  ToyBatch(uint64_t step, uint64_t index, float scale)
      : step_(step), index_(index), scale_(scale) {}

  double loss() const { return 1.0 / static_cast<double>(3 + step_ + 7 * index_); }
  /// Adds to `sums` on the stream, as a kernel does.
  void AddGradient(device::Stream& stream, const offload::ShardLayout& layout, ModuleId module,
                   const std::byte* weights, float* sums) const {
    auto& cpu = static_cast<device::CpuStream&>(stream);
    cpu.Launch([batch = *this, &layout, module, weights, sums] {
      for (const offload::TensorLayout& tensor : layout.module(module).tensors) {
        const Encoding encoding = layout.model.group(tensor.group).planes.weight().encoding;
        const std::byte* const values = weights + layout.SlotOffset(module, tensor.offset).value;
        for (uint64_t i = 0; i < tensor.elements; ++i) {
          sums[tensor.offset + i] +=
              batch.Gradient(ToyRun::WeightAt(values, encoding, i), tensor.offset + i);
        }
      }
    });
  }

 private:
  float Gradient(float weight, uint64_t at) const {
    const auto noise = static_cast<float>((at * 31 + index_ * 17 + step_ * 5) % 1009) / 1009.0F;
    return (weight * 0.3F + noise - 0.4F) * scale_ / static_cast<float>(kGlobalBatch);
  }

  uint64_t step_;
  uint64_t index_;
  float scale_;
};

/// What a rank's engine asked of its communicator.
struct Operations {
  std::vector<std::string> enqueued;
  Bytes exchanged;  ///< sent in exchanges
  std::function<void(const std::string& what)> ended = [](const std::string&) {};
};

/// Lists operations and counts bytes, and hands them on.
class ListingCommunicator final : public comm::Communicator {
 public:
  ListingCommunicator(comm::Communicator& to, Operations* operations)
      : to_(to), operations_(*operations) {}

  const comm::World& world() const override { return to_.world(); }
  device::Stream& stream() override { return to_.stream(); }
  void AllGather(std::byte* data, Bytes part, const comm::Operation& operation) override {
    to_.AllGather(data, part, operation);
    List(operation);
  }
  void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                const comm::Operation& operation) override {
    to_.AllToAll(from, stride, to, part, operation);
    operations_.exchanged += part * world().size;
    List(operation);
  }
  void Abort(const Error& why) override { to_.Abort(why); }
  Bytes device_bytes() const override { return to_.device_bytes(); }

 private:
  void List(const comm::Operation& operation) {
    operations_.enqueued.push_back(operation.what);
    stream().Call([this, what = operation.what] { operations_.ended(what); });
  }

  comm::Communicator& to_;
  Operations& operations_;
};

class RanksTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(::testing::TempDir()) / fmt::format("ranks.{}", ::getpid());
    std::filesystem::create_directory(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static config::Config ConfigOf(const Case& c, uint32_t ranks) {
    config::Config config;
    config.dtype = c.dtype;
    config.parameter_home = c.parameters;
    config.optimizer_home = c.optimizer;
    config.check_grad_overflow = !c.with_gradients;
    config.gradient_clipping = c.with_gradients ? 0 : 1;
    config.overlap = c.overlap;
    config.communication = c.communication;
    config.tile_elements = c.tile_elements;
    config.gradient_accumulation_steps = kGlobalBatch / ranks;
    config.commit_every_steps = c.commit_every_steps;
    config.optimizer.lr = 1e-2;
    config.optimizer.hyper = c.hyper;
    config.aio.kind = aio::EngineKind::kThreads;
    config.aio.block_size = 64_KiB;
    return config;
  }

  static Bytes DeviceMemory(const Case& c, const ModelSpec& model, const config::Config& config,
                            const comm::World& world) {
    if (c.room == Room::kAll) return 64_MiB;
    if (c.room == Room::kMinimum) return Engine::MinimumMemory(model, config, world).device_minimum;
    return DeviceNeed(model, MakeLayout(model, config, world), config,
                      {.shared_slots = 2, .gradient_buffers = 2})
        .total();
  }

  /// One rank's training. `step` computes a step of it.
  struct Rank {
    uint32_t ranks = 1;
    uint32_t rank = 0;
    std::unique_ptr<Session> session;
    device::Device* device = nullptr;
    Bytes host_memory;
  };
  using StepOf = std::function<Result<StepOutcome>(Rank& rank, uint64_t step)>;

  /// Runs `body` for every rank on a thread of its own, with a session that is filled. A rank whose
  /// body fails takes the others along, as a job would.
  std::vector<Status> ForEachRank(const Case& c, uint32_t ranks,
                                  const std::function<Status(Rank& rank)>& body) {
    const ModelSpec model = ToySpec(3, c.layer_elements);
    const config::Config config = ConfigOf(c, ranks);
    std::vector<std::unique_ptr<device::Device>> devices;
    std::vector<device::Device*> borrowed;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const comm::World world{.size = ranks, .rank = rank, .local_size = ranks, .local_rank = rank};
      devices.push_back(
          device::CreateCpuDevice({.memory = DeviceMemory(c, model, config, world)}).value());
      borrowed.push_back(devices.back().get());
    }
    // One rank needs no communicator.
    auto communicators = comm::CreateLocal(borrowed).value();
    listed_ = std::vector<Operations>(ranks);
    std::vector<Status> outcomes(ranks);
    std::vector<std::thread> threads;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank] {
        auto operators = kernels::CreateStateOperators(device::Kind::kCpu, 1).value();
        EngineOptions options{.model = model, .config = config};
        options.state_folders = {folder_};
        options.state_uuid = kUuid;
        ListingCommunicator listing(*communicators[rank], &listed_[rank]);
        if (ranks > 1) options.communicator = &listing;
        options.host_memory =
            c.room == Room::kMinimum && !(c.first_keeps_all && rank == 0)
                ? Engine::MinimumMemory(model, config, options.world()).host_minimum + c.more_host
                : 64_MiB;
        Rank mine{.ranks = ranks,
                  .rank = rank,
                  .device = borrowed[rank],
                  .host_memory = options.host_memory};
        auto session = Session::Create(std::move(options), LossReports::kEachStep, *borrowed[rank],
                                       *operators);
        outcomes[rank] = session.status();
        if (session.ok()) {
          mine.session = std::move(session).value();
          outcomes[rank] = mine.session->Initialize(ToyWeights);
          if (outcomes[rank].ok()) outcomes[rank] = body(mine);
        }
        if (!outcomes[rank].ok()) communicators[rank]->Abort(outcomes[rank].error());
        mine.session.reset();
      });
    }
    for (std::thread& thread : threads) thread.join();
    communicators.clear();
    return outcomes;
  }

  /// What is wrong with micro-batches: `scale_of(index)` scales the gradient, `loss_of(index,
  /// loss)` is the loss that is reported.
  struct Damage {
    std::function<float(uint64_t index)> scale_of = [](uint64_t) { return 1.0F; };
    std::function<double(uint64_t index, double loss)> loss_of = [](uint64_t, double loss) {
      return loss;
    };
  };
  /// A step's outcome, and the loss that this rank was told.
  struct Computed {
    StepOutcome step;
    double loss = 0;
  };
  /// Computes a step of the toy: forward over all modules, then back, each micro-batch by itself.
  static Result<Computed> Compute(Rank& rank, uint64_t number, const Damage& damage,
                                  uint64_t global_batch = kGlobalBatch) {
    Computed computed;  // outlives the step, which reports the loss
    const uint64_t batches = global_batch / rank.ranks;
    PENSTOCK_ASSIGN(Step step, rank.session->BeginStep(batches));
    const offload::ShardLayout& layout = step.layout();
    const auto index_of = [&](uint64_t batch) { return batch * rank.ranks + rank.rank; };
    const auto modules = static_cast<uint32_t>(layout.model.modules.size());
    const auto backward = [&](ModuleId module) -> Status {
      PENSTOCK_ASSIGN(const Use use, step.Acquire(module));
      for (uint64_t batch = 0; batch < batches; ++batch) {
        const uint64_t index = index_of(batch);
        PENSTOCK_ASSIGN(float* const sums, step.Gradients(module));
        ToyBatch(number, index, damage.scale_of(index))
            .AddGradient(step.compute_stream(), layout, module, use.weights(), sums);
        PENSTOCK_TRY(step.AddGradients(module));
      }
      return {};
    };
    for (uint32_t module = 0; module + 1 < modules; ++module) {
      PENSTOCK_TRY(step.Acquire(ModuleId{module}).status());
    }
    // "in" is used by the head, too: its gradient comes in two parts of each micro-batch.
    PENSTOCK_TRY(backward(ModuleId{modules - 1}));
    PENSTOCK_TRY(backward(ModuleId{0}));
    PENSTOCK_ASSIGN(double* const losses, step.Losses(batches));
    auto& cpu = static_cast<device::CpuStream&>(step.compute_stream());
    cpu.Launch([losses, batches, number, index_of, &damage] {
      for (uint64_t batch = 0; batch < batches; ++batch) {
        const uint64_t index = index_of(batch);
        losses[batch] += damage.loss_of(index, ToyBatch(number, index, 1).loss());
      }
    });
    PENSTOCK_TRY(
        step.ReportLosses(global_batch, [&computed](double loss) { computed.loss = loss; }));
    for (uint32_t module = modules - 1; module-- > 1;) {
      PENSTOCK_TRY(backward(ModuleId{module}));
      PENSTOCK_TRY(step.ReduceGradients(ModuleId{module}));
    }
    PENSTOCK_TRY(step.ReduceGradients(ModuleId{modules - 1}));
    PENSTOCK_TRY(backward(ModuleId{0}));
    PENSTOCK_TRY(step.ReduceGradients(ModuleId{0}));
    PENSTOCK_ASSIGN(computed.step, step.Finish({static_cast<double>(rank.rank)}));
    return computed;
  }

  /// Trains and commits with so many ranks; every rank must see the same losses and norms.
  Outcome Train(const Case& c, uint32_t ranks) {
    std::vector<Outcome> seen(ranks);
    const std::vector<Status> outcomes = ForEachRank(c, ranks, [&](Rank& rank) -> Status {
      Outcome& mine = seen[rank.rank];
      for (uint64_t step = 1; step <= kSteps; ++step) {
        Damage damage;
        // One micro-batch of one rank: all must skip the step.
        if (!c.with_gradients && step == kSkippedStep) {
          damage.scale_of = [](uint64_t index) {
            return index == 13 ? std::numeric_limits<float>::infinity() : 1.0F;
          };
        }
        PENSTOCK_ASSIGN(const Computed computed,
                        Compute(rank, step, damage, c.micro_batches[step - 1]));
        EXPECT_EQ(computed.step.skipped, !c.with_gradients && step == kSkippedStep);
        EXPECT_EQ(computed.step.notes.size(), rank.ranks);
        for (uint32_t other = 0; other < rank.ranks; ++other) {
          EXPECT_EQ(computed.step.notes[other].front(), other);
        }
        mine.losses.push_back(computed.loss);
        if (!computed.step.skipped) mine.norms.push_back(computed.step.grad_norm);
      }
      PENSTOCK_TRY(rank.session->Commit("{}"));
      mine.blocks = ReadBlocks(rank.session->state_paths());
      return {};
    });
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      EXPECT_TRUE(outcomes[rank].ok()) << c.name << ", rank " << rank << " of " << ranks << ": "
                                       << outcomes[rank].error().message;
      EXPECT_EQ(seen[rank].losses, seen[0].losses);
      EXPECT_EQ(seen[rank].norms, seen[0].norms);
      if (rank > 0) seen[0].blocks.merge(seen[rank].blocks);
      EXPECT_TRUE(rank == 0 || seen[rank].blocks.empty()) << "two ranks have the same block";
    }
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      std::filesystem::remove_all(entry);
    }
    return seen[0];
  }

  static constexpr offload::Uuid kUuid = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};
  std::filesystem::path folder_;
  std::vector<Operations> listed_;  ///< of each rank of the last training
};

}  // namespace penstock::zero
