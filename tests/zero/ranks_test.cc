// Engines of several ranks, as threads of one process: the number of ranks changes no bit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <functional>
#include <future>
#include <limits>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "tests/search_share.h"
#include "tests/zero/committed_blocks.h"
#include "tests/zero/toy_model.h"
#include "zero/memory_plan.h"
#include "zero/partitioner.h"

namespace penstock::zero {
namespace {

using ::testing::HasSubstr;

/// Micro-batches of a step, of all ranks together: 1, 2, 3, 4 and 8 ranks divide them.
constexpr uint64_t kGlobalBatch = 24;
constexpr uint64_t kSteps = 5;
constexpr uint64_t kSkippedStep = 3;

/// How much memory ranks have: on the device the least, or what two slots for layers take; or all
/// that they can use.
enum class Room { kLeast, kTwoSlots, kAll };

struct Case {
  std::string name;
  DType dtype = DType::kBFloat16;
  Tier parameters = Tier::kNvme;
  Tier optimizer = Tier::kNvme;
  bool with_gradients = false;  ///< nothing needs all gradients: updates begin with their own
  bool overlap = true;
  DType communication = DType::kFloat32;
  Room room = Room::kLeast;
  uint64_t layer_elements = 30000;
  uint64_t tile_elements = 8192;
  Bytes more_host;  ///< than the smallest
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
    config.optimizer.lr = 1e-2;
    config.optimizer.hyper = kernels::AdamHyperparameters{.weight_decay = 0.1};
    config.aio.kind = aio::EngineKind::kThreads;
    config.aio.block_size = 64_KiB;
    return config;
  }

  static Bytes DeviceMemory(const Case& c, const ModelSpec& model, const config::Config& config,
                            const comm::World& world) {
    if (c.room == Room::kAll) return 64_MiB;
    if (c.room == Room::kLeast) return Engine::MinimumMemory(model, config, world).device_minimum;
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
            c.room == Room::kLeast
                ? Engine::MinimumMemory(model, config, options.world()).host_minimum + c.more_host
                : 64_MiB;
        Rank mine{.ranks = ranks,
                  .rank = rank,
                  .device = borrowed[rank],
                  .host_memory = options.host_memory};
        auto session = Session::Create(std::move(options), true, *borrowed[rank], *operators);
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

  /// A step of the toy: forward over all modules, then back, each micro-batch by itself.
  /// `scale_of(index)` scales the gradient, `loss_of(index, loss)` is the loss that is reported.
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
  static Result<Computed> Compute(Rank& rank, uint64_t number, const Damage& damage) {
    Computed computed;  // outlives the step, which reports the loss
    PENSTOCK_ASSIGN(Step step, rank.session->BeginStep());
    const offload::ShardLayout& layout = step.layout();
    const uint64_t batches = kGlobalBatch / rank.ranks;
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
        step.ReportLosses(kGlobalBatch, [&computed](double loss) { computed.loss = loss; }));
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
        PENSTOCK_ASSIGN(const Computed computed, Compute(rank, step, damage));
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

void ExpectSame(const Outcome& one, const Outcome& several, const std::string& name) {
  EXPECT_EQ(one.losses, several.losses) << name;
  EXPECT_EQ(one.norms, several.norms) << name;
  ASSERT_EQ(one.blocks.size(), several.blocks.size()) << name;
  for (const auto& [place, values] : one.blocks) {
    ASSERT_TRUE(several.blocks.contains(place)) << name;
    EXPECT_EQ(values, several.blocks.at(place))
        << name << ": module " << place.first << ", element " << place.second;
  }
}

TEST_F(RanksTest, AnyNumberOfRanksHasTheLossesNormsAndWeightsOfOneInEveryPlacement) {
  const Case cases[] = {
      {.name = "nvme"},
      {.name = "nvme, fp32", .dtype = DType::kFloat32},
      {.name = "nvme, room", .room = Room::kAll},
      {.name = "nvme, two slots", .room = Room::kTwoSlots},
      {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
      {.name = "states on nvme", .parameters = Tier::kDevice, .optimizer = Tier::kNvme},
      {.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
      {.name = "device, fp32",
       .dtype = DType::kFloat32,
       .parameters = Tier::kDevice,
       .optimizer = Tier::kDevice},
      {.name = "no overlap", .overlap = false},
      {.name = "small tiles", .tile_elements = 4096},
  };
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Outcome one = Train({.name = "one", .dtype = dtype}, 1);
    ASSERT_EQ(one.losses.size(), kSteps);
    for (const Case& c : cases) {
      if (c.dtype != dtype) continue;
      for (const uint32_t ranks : {2U, 3U, 4U, 8U}) {
        if (tried++ % kTrainingStride != 0) continue;
        ExpectSame(one, Train(c, ranks), fmt::format("{}, {} ranks", c.name, ranks));
      }
    }
  }
}

TEST_F(RanksTest, GradientsThatAreRoundedOnTheirWayHaveTheBitsOfOneRankThatRoundsThem) {
  uint64_t tried = 0;
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
    const Case nvme{.name = "nvme", .dtype = dtype, .communication = DType::kBFloat16};
    const Outcome one = Train(nvme, 1);
    EXPECT_NE(one.norms, Train({.name = "exact", .dtype = dtype}, 1).norms);
    Case device = nvme;
    device.name = "device";
    device.parameters = device.optimizer = Tier::kDevice;
    device.room = Room::kAll;
    ExpectSame(one, Train(device, 1), "device, one rank");
    for (const Case& c : {nvme, device}) {
      for (const uint32_t ranks : {2U, 3U, 4U, 8U}) {
        if (tried++ % kTrainingStride != 0) continue;
        ExpectSame(one, Train(c, ranks), fmt::format("{}, {} ranks", c.name, ranks));
      }
    }
  }
}

TEST_F(RanksTest, GradientsThatAreRoundedTakeHalfTheBytesOnTheirWay) {
  const auto exchanged = [this](DType dtype) {
    const Case c{.name = "nvme", .communication = dtype};
    const auto outcomes =
        ForEachRank(c, 2, [&](Rank& rank) { return Compute(rank, 1, {}).status(); });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
    return listed_[0].exchanged;
  };
  const Bytes exact = exchanged(DType::kFloat32);
  EXPECT_GT(exact, 0_B);
  EXPECT_EQ(exchanged(DType::kBFloat16) * 2, exact);
}

/// Bytes of a rank's share of the state, and of what lies around it in its file.
struct FileBytes {
  uint64_t share = 0;
  uint64_t around = 0;
};

FileBytes FileBytesOf(Session& session) {
  const offload::ShardLayout& layout = session.layout();
  const uint64_t share = (layout.weight_bytes() + layout.record_bytes()).value;
  uint64_t size = 0;
  for (const std::string& path : session.state_paths()) size += std::filesystem::file_size(path);
  EXPECT_GE(size, 2 * share) << "two slots";
  return {.share = share, .around = size - 2 * share};
}

TEST_F(RanksTest, ARankKeepsAndMovesItsShareAndStaysWithinItsBudgets) {
  constexpr uint64_t kMeasured = 8;
  constexpr double kElements = 5000 + 3 * (60000 + 37) + 64;
  FileBytes whole;
  for (const uint32_t ranks : {1U, 3U, 4U}) {
    // Gradients and a few blocks: not enough to keep the states.
    const Case c{
        .name = "nvme", .with_gradients = true, .layer_elements = 60000, .more_host = 400_KiB};
    std::vector<FileBytes> files(ranks);
    const auto outcomes = ForEachRank(c, ranks, [&](Rank& rank) -> Status {
      files[rank.rank] = FileBytesOf(*rank.session);
      EngineCounters before;
      for (uint64_t step = 1; step <= kMeasured + 2; ++step) {
        PENSTOCK_TRY(Compute(rank, step, {}).status());
        PENSTOCK_TRY(rank.session->Drain());
        if (step == 2) before = rank.session->counters();
      }
      const EngineCounters after = rank.session->counters();
      // A rank has up to a block more than its part of each module.
      const double mine = static_cast<double>(rank.session->layout().shard_elements());
      EXPECT_LE(mine, kElements / rank.ranks + 6 * kBlockElements);
      const auto read = static_cast<double>(after.nvme_read_bytes - before.nvme_read_bytes);
      const auto written = static_cast<double>(after.nvme_write_bytes - before.nvme_write_bytes);
      EXPECT_LE(read / mine / kMeasured, 14.2) << rank.rank << " of " << rank.ranks;
      EXPECT_LE(written / mine / kMeasured, 12.2) << rank.rank << " of " << rank.ranks;
      EXPECT_LE(rank.device->peak(), rank.device->limit());
      EXPECT_LE(rank.session->host_peak(), rank.host_memory);
      return {};
    });
    uint64_t together = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      ASSERT_TRUE(outcomes[rank].ok()) << outcomes[rank].error().message;
      together += files[rank].share;
    }
    if (ranks == 1) whole = files[0];
    EXPECT_EQ(together, whole.share) << ranks;
    for (const FileBytes& file : files) EXPECT_LE(file.around, whole.around) << ranks;
  }
}

TEST_F(RanksTest, UpdatesThatBeginWithTheirGradientsHaveTheBitsOfOneRank) {
  const Case nvme{.name = "nvme", .with_gradients = true};
  const Outcome one = Train(nvme, 1);
  for (const uint32_t ranks : {2U, 3U, 8U}) ExpectSame(one, Train(nvme, ranks), "nvme");
  const Case two_slots{.name = "two slots", .with_gradients = true, .room = Room::kTwoSlots};
  ExpectSame(one, Train(two_slots, 3), "two slots");
  const Case device{.name = "device",
                    .parameters = Tier::kDevice,
                    .optimizer = Tier::kDevice,
                    .with_gradients = true};
  ExpectSame(one, Train(device, 4), "device");
}

TEST_F(RanksTest, BackwardGathersTheNextModuleBeforeItExchangesTheGradientOfThisOne) {
  const Case c{.name = "two slots", .room = Room::kTwoSlots};
  const auto outcomes =
      ForEachRank(c, 3, [](Rank& rank) -> Status { return Compute(rank, 1, {}).status(); });
  for (const Status& outcome : outcomes) ASSERT_TRUE(outcome.ok()) << outcome.error().message;
  for (const Operations& rank : listed_) EXPECT_EQ(rank.enqueued, listed_[0].enqueued);
  // Of three layers the first has gone when the step comes back to it.
  const std::vector<std::string>& operations = listed_[0].enqueued;
  const auto weights =
      std::ranges::find(operations.rbegin(), operations.rend(), "weights of layer.0");
  const auto before = std::ranges::find(operations, "gradient of layer.2");
  const auto behind = std::ranges::find(operations, "gradient of layer.1");
  ASSERT_TRUE(weights != operations.rend() && before != operations.end() &&
              behind != operations.end());
  EXPECT_LT(before, weights.base() - 1);
  EXPECT_LT(weights.base() - 1, behind);
}

TEST_F(RanksTest, AModuleIsGatheredWhileTheKernelsOfTheOneBeforeRun) {
  for (const Tier home : {Tier::kNvme, Tier::kDevice}) {
    const Case c{.name = "gather", .parameters = home, .optimizer = home, .room = Room::kAll};
    const auto outcomes = ForEachRank(c, 2, [this, home](Rank& rank) -> Status {
      PENSTOCK_TRY(Compute(rank, 1, {}).status());
      std::promise<void> gathered;
      std::atomic<bool> in_time = false;
      listed_[rank.rank].ended = [&](const std::string& what) {
        if (what == "weights of layer.0") gathered.set_value();
      };
      {
        PENSTOCK_ASSIGN(Step step, rank.session->BeginStep());
        PENSTOCK_TRY(step.Acquire(ModuleId{0}).status());
        auto& cpu = static_cast<device::CpuStream&>(step.compute_stream());
        cpu.Launch([&] {
          in_time =
              gathered.get_future().wait_for(std::chrono::seconds(60)) == std::future_status::ready;
        });
        PENSTOCK_TRY(step.Acquire(ModuleId{1}).status());
        PENSTOCK_TRY(step.Drop());
      }
      listed_[rank.rank].ended = [](const std::string&) {};
      EXPECT_TRUE(in_time) << ToString(home);
      return {};
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }
}

TEST_F(RanksTest, RanksThatHaveNothingTrainWithTheOthers) {
  for (const Tier home : {Tier::kNvme, Tier::kHost, Tier::kDevice}) {
    const Case tiny{.name = "tiny", .parameters = home, .optimizer = home, .layer_elements = 100};
    const Outcome one = Train(tiny, 1);
    ExpectSame(one, Train(tiny, 8), ToString(home));
  }
}

TEST_F(RanksTest, ALossThatIsNotFiniteOnOneRankSkipsTheStepOnAll) {
  for (const bool with_gradients : {false, true}) {
    const Case c{.name = "nvme", .with_gradients = with_gradients};
    const auto outcomes = ForEachRank(c, 3, [](Rank& rank) -> Status {
      for (uint64_t step = 1; step <= 3; ++step) {
        Damage damage;
        if (step == 2) {
          damage.loss_of = [](uint64_t index, double loss) { return index == 7 ? kNaN : loss; };
        }
        PENSTOCK_ASSIGN(const Computed computed, Compute(rank, step, damage));
        EXPECT_EQ(computed.step.skipped, step == 2);
        EXPECT_EQ(std::isnan(computed.loss), step == 2);
      }
      return {};
    });
    for (const Status& outcome : outcomes) EXPECT_TRUE(outcome.ok()) << outcome.error().message;
  }
}

TEST_F(RanksTest, ARankThatFailsEndsTheOthers) {
  for (const Tier home : {Tier::kNvme, Tier::kDevice}) {
    const Case c{.name = "fails", .parameters = home, .optimizer = home};
    const auto outcomes = ForEachRank(c, 3, [](Rank& rank) -> Status {
      for (uint64_t step = 1; step <= 4; ++step) {
        if (rank.rank == 1 && step == 3) return MakeError(ErrorCode::kIo, "the drive has gone");
        PENSTOCK_TRY(Compute(rank, step, {}).status());
      }
      return {};
    });
    for (const Status& outcome : outcomes) {
      ASSERT_FALSE(outcome.ok());
      EXPECT_THAT(outcome.error().message, HasSubstr("the drive has gone"));
    }
  }
}

TEST_F(RanksTest, ALossOfARanksOwnDecidesNothing) {
  const auto outcomes = ForEachRank({.name = "own"}, 2, [](Rank& rank) -> Status {
    PENSTOCK_ASSIGN(Step step, rank.session->BeginStep());
    for (uint32_t i = 0; i < step.layout().model.modules.size(); ++i) {
      PENSTOCK_ASSIGN(const Use use, step.Acquire(ModuleId{i}));
      PENSTOCK_TRY(step.Gradients(ModuleId{i}).status());
      PENSTOCK_TRY(step.ReduceGradients(ModuleId{i}));
    }
    step.ReportLoss(1);
    return step.Finish().status();
  });
  for (const Status& outcome : outcomes) {
    ASSERT_FALSE(outcome.ok());
    EXPECT_THAT(outcome.error().message, HasSubstr("ReportLosses"));
  }
}

}  // namespace
}  // namespace penstock::zero
