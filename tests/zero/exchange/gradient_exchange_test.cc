// The sums that an exchange leaves on their owners, over ranks that are threads.
#include "zero/exchange/gradient_exchange.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "kernels/dtype.h"
#include "kernels/state/state_operators.h"
#include "tests/zero/toy_model.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

using config::GradientOrder;

constexpr uint32_t kRanks = 3;
constexpr uint64_t kBatches = 4;  ///< micro-batches of a rank
constexpr ModuleId kLayer{1};

/// Not two of these have a sum that does not depend on the order of a third.
float GradientAt(uint64_t batch, uint32_t rank, uint64_t element) {
  const uint64_t mixed = (element * 2654435761 + batch * 40503 + rank * 977) % 100003;
  return static_cast<float>(mixed) * 1e-5F - 0.5F;
}

/// Counts what the engine of a rank sends.
class CountingCommunicator final : public comm::Communicator {
 public:
  explicit CountingCommunicator(comm::Communicator& to) : to_(to) {}
  uint64_t exchanges() const { return exchanges_; }

  const comm::World& world() const override { return to_.world(); }
  device::Stream& stream() override { return to_.stream(); }
  void AllGather(std::byte* data, Bytes part, const comm::Operation& operation) override {
    to_.AllGather(data, part, operation);
  }
  void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                const comm::Operation& operation) override {
    ++exchanges_;
    to_.AllToAll(from, stride, to, part, operation);
  }
  void Abort(const Error& why) override { to_.Abort(why); }
  Bytes device_bytes() const override { return to_.device_bytes(); }

 private:
  comm::Communicator& to_;
  uint64_t exchanges_ = 0;
};

struct Exchanged {
  std::vector<float> sums;  ///< of the layer, whole
  uint64_t exchanges = 0;   ///< that rank 0 enqueued
};

/// What the owners have when every rank has computed its micro-batches.
Exchanged ExchangeAll(const ExchangeOptions& options) {
  const ModelSpec model = ToySpec(2, 30000);
  std::vector<std::unique_ptr<device::Device>> devices;
  std::vector<device::Device*> borrowed;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    devices.push_back(device::CreateCpuDevice({.memory = 8_MiB}).value());
    borrowed.push_back(devices.back().get());
  }
  auto communicators = comm::CreateLocal(borrowed).value();
  const uint64_t elements = MakeModelLayout(model, DType::kFloat32).TrainedElements(kLayer);
  const auto operators = kernels::CreateStateOperators(device::Kind::kCpu, 1).value();
  Exchanged whole{.sums = std::vector<float>(elements, std::numeric_limits<float>::quiet_NaN())};
  const auto run = [&](uint32_t rank) {
    const comm::World world{.size = kRanks, .rank = rank, .local_size = kRanks, .local_rank = rank};
    const offload::ShardLayout layout = MakeLayout(model, DType::kFloat32, 8192, {}, world);
    const auto compute = devices[rank]->CreateStream("compute").value();
    CountingCommunicator counting(*communicators[rank]);
    RankLink link(counting);
    const auto exchange =
        GradientExchange::Create(model, layout, options, *devices[rank], *operators, link).value();
    for (uint64_t batch = 0; batch < kBatches; ++batch) {
      float* const buffer = exchange->Buffer(kLayer, *compute).value();
      static_cast<device::CpuStream&>(*compute).Launch([buffer, elements, batch, rank] {
        for (uint64_t i = 0; i < elements; ++i) buffer[i] += GradientAt(batch, rank, i);
      });
      EXPECT_TRUE(exchange->Add(kLayer, *compute).ok());
    }
    const auto finished = exchange->Finish(kLayer, *compute);
    ASSERT_TRUE(finished.ok()) << finished.error().message;
    ASSERT_TRUE(finished->stream->Synchronize().ok());
    const float* mine = finished->sums;
    for (const SharedSection& section : SharedSectionsOf(layout, kLayer)) {
      const uint64_t begin = section.section.begin + rank * section.share;
      std::copy_n(mine, section.mine, whole.sums.data() + begin);
      mine += section.mine;
    }
    if (rank == 0) whole.exchanges = counting.exchanges();
  };
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < kRanks; ++rank) threads.emplace_back(run, rank);
  for (std::thread& thread : threads) thread.join();
  return whole;
}

float Sent(DType dtype, float value) {
  return dtype == DType::kFloat32 ? value : kernels::ToFloat(kernels::RoundToBFloat16(value));
}

/// ((0 + g_0) + g_1) + …, each rounded.
float InGlobalOrder(uint64_t element, DType dtype) {
  float sum = 0;
  for (uint64_t batch = 0; batch < kBatches; ++batch) {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      sum += Sent(dtype, GradientAt(batch, rank, element));
    }
  }
  return sum;
}

/// The same of the sums of the ranks.
float InRankOrder(uint64_t element, DType dtype) {
  float sum = 0;
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    float own = 0;
    for (uint64_t batch = 0; batch < kBatches; ++batch) own += GradientAt(batch, rank, element);
    sum += Sent(dtype, own);
  }
  return sum;
}

TEST(GradientExchangeTest, SumsAreInTheOrderOfTheGlobalBatchOrOfTheRanksBitForBit) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    for (const uint32_t buffers : {1U, 2U}) {
      ExchangeOptions options{.repeated_buffers = buffers, .dtype = dtype};
      const Exchanged global = ExchangeAll(options);
      options.order = GradientOrder::kRank;
      const Exchanged by_rank = ExchangeAll(options);
      const uint64_t elements = global.sums.size();
      uint64_t differ = 0;
      for (uint64_t i = 0; i < elements; ++i) {
        ASSERT_EQ(global.sums[i], InGlobalOrder(i, dtype)) << i;
        ASSERT_EQ(by_rank.sums[i], InRankOrder(i, dtype)) << i;
        differ += global.sums[i] != by_rank.sums[i] ? 1 : 0;
      }
      EXPECT_GT(differ, elements / 10) << "the order does not matter for these gradients";
      EXPECT_EQ(global.exchanges, kBatches * by_rank.exchanges);
      EXPECT_GT(by_rank.exchanges, 0U);
    }
  }
}

}  // namespace
}  // namespace penstock::zero
