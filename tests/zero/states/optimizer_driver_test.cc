// The optimizer's threads over a tile store on a file.
#include "zero/states/optimizer_driver.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/state/block_sums.h"
#include "offload/slab.h"
#include "offload/state_file.h"
#include "tests/deadline.h"
#include "tests/offload/support.h"
#include "zero/model.h"

namespace penstock::zero {
namespace {

using offload::TileId;
using ::testing::HasSubstr;

/// Module "a" has the tiles 0 to 2, module "b" tile 3.
class OptimizerDriverTest : public offload::FolderTest {
 protected:
  void SetUp() override {
    FolderTest::SetUp();
    for (const TileId tile : layout_.Tiles()) {
      std::vector<kernels::BFloat16>& values =
          values_.emplace_back(layout_.tile(tile).elements, kernels::RoundToBFloat16(0.5F));
      gradients_.push_back(std::as_writable_bytes(std::span(values)));
    }
    Begin(2);
  }
  void TearDown() override {
    End();
    FolderTest::TearDown();
  }

  /// A state whose weights and moments are zero, of version 0.
  void Begin(int threads) {
    End();
    io_ = aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value();
    aio::Engine* const engines[] = {io_.get()};
    file_ = offload::StateFile::Create(layout_, {.folders = {folder_}, .require_direct = false},
                                       engines)
                .value();
    slab_.emplace(offload::Slab::Create(4_MiB).value());
    store_ = std::make_unique<offload::TileStore>(
        layout_, schedule_, offload::TileStoreOptions{.weight_blocks = 8, .record_blocks = 4},
        *slab_, *file_);
    for (const TileId tile : layout_.Tiles()) {
      const auto zeros = [](std::span<std::byte>, std::span<std::byte>) { return Status(); };
      ASSERT_TRUE(store_->FillTile(tile, zeros).ok());
    }
    ASSERT_TRUE(store_->Drain().ok());
    ASSERT_TRUE(store_->PrepareUpdates().ok());
    store_->SetTime(0);
    norm_.emplace(layout_);
    figures_.emplace(layout_);
    driver_ =
        OptimizerDriver::Create(layout_, gradients_, *store_, *norm_, *figures_, threads, nullptr)
            .value();
    driver_->SetScalars(0, ScalarsOf(1e-2, 1));
  }
  void End() {
    driver_.reset();
    store_.reset();
    file_.reset();
  }

  static UpdateScalars ScalarsOf(double lr, uint64_t t) {
    return {ModelSpec().groups, config::OptimizerConfig(), /*seed=*/5, lr, t, /*grad_scale=*/1};
  }

  void SetGradient(uint32_t tile, size_t element, float value) {
    values_[tile][element] = kernels::RoundToBFloat16(value);
  }
  void GradientArrives(TileId tile) {
    const auto index = static_cast<uint32_t>(offload::Index(tile));
    driver_->GradientsArrived({index, index + 1});
  }
  void AllGradientsArrive() { driver_->GradientsArrived(layout_.Tiles()); }
  bool Finished(uint64_t updates) {
    return BecomesTrue([&] { return store_->updates_finished() == updates; });
  }

  const offload::ShardLayout layout_ = offload::SmallLayout(DType::kBFloat16);
  const offload::Schedule schedule_ = offload::EachModuleOnce(layout_);
  std::vector<std::vector<kernels::BFloat16>> values_;
  std::vector<std::span<std::byte>> gradients_;
  std::unique_ptr<aio::Engine> io_;
  std::optional<offload::Slab> slab_;
  std::unique_ptr<offload::StateFile> file_;
  std::unique_ptr<offload::TileStore> store_;
  std::optional<GradientNorm> norm_;
  std::optional<TensorFigures> figures_;
  std::unique_ptr<OptimizerDriver> driver_;
};

TEST_F(OptimizerDriverTest, TheNormIsThatOfTheGradientsForAnyOrderOfArrivalAndAnySummingThread) {
  std::mt19937_64 random(1);
  for (size_t tile = 0; tile < values_.size(); ++tile) {
    for (size_t i = 0; i < values_[tile].size(); ++i) {
      SetGradient(tile, i, static_cast<float>(random() % 1000) * 0.001F);
    }
  }
  GradientNorm expected(layout_);
  for (const TileId tile : layout_.Tiles()) {
    expected.Arrived(kernels::BlockSumsReference(gradients_[offload::Index(tile)].data(),
                                                 DType::kBFloat16, layout_.tile(tile).elements,
                                                 expected.Sums(tile)));
  }
  const double norm = expected.Wait().norm;
  for (const int threads : {1, 3}) {
    Begin(threads);
    std::vector<TileId> order;
    for (const TileId tile : layout_.Tiles()) order.push_back(tile);
    for (int step = 0; step < 10; ++step) {
      std::ranges::shuffle(order, random);
      std::thread half([&] {
        for (size_t i = 0; i < order.size(); i += 2) GradientArrives(order[i]);
      });
      for (size_t i = 1; i < order.size(); i += 2) GradientArrives(order[i]);
      half.join();
      const GradientNorm::Value found = norm_->Wait();
      EXPECT_EQ(found.norm, norm);
      EXPECT_TRUE(found.finite);
      driver_->EndStep();
    }
  }
}

TEST_F(OptimizerDriverTest, NoUpdateBeginsBeforeForwardAndStateBothAllowIt) {
  for (const bool forward_first : {true, false}) {
    Begin(2);
    AllGradientsArrive();
    norm_->Wait();
    forward_first ? driver_->AllowUpdates() : driver_->PrepareUpdates();
    EXPECT_EQ(driver_->updates_allowed(), forward_first);
    EXPECT_FALSE(store_->TryTakeUpdate().has_value());
    forward_first ? driver_->PrepareUpdates() : driver_->AllowUpdates();
    EXPECT_TRUE(Finished(layout_.tiles.size()));
    EXPECT_TRUE(driver_->StopUpdates()) << "some have begun";
  }
}

TEST_F(OptimizerDriverTest, WhereUpdatesMayBeginATileIsUpdatedWithItsOwnGradientAlone) {
  driver_->AllowUpdates();
  driver_->PrepareUpdates();
  EXPECT_FALSE(driver_->StopUpdates()) << "none has begun";
  driver_->AllowUpdates();
  driver_->PrepareUpdates();
  for (uint64_t done = 0; done < layout_.tiles.size(); ++done) {
    GradientArrives(TileId{static_cast<uint32_t>(done)});
    EXPECT_TRUE(Finished(done + 1));
  }
}

TEST_F(OptimizerDriverTest, ATileWhoseGradientIsNotFiniteIsNotUpdatedWithIt) {
  SetGradient(1, 7, std::numeric_limits<float>::infinity());
  driver_->AllowUpdates();
  driver_->PrepareUpdates();
  AllGradientsArrive();
  EXPECT_FALSE(norm_->Wait().finite);
  EXPECT_TRUE(Finished(layout_.tiles.size() - 1));
  EXPECT_FALSE(store_->TryTakeUpdate().has_value());
}

TEST_F(OptimizerDriverTest, AfterAStopGradientsAreSummedAndNothingIsUpdated) {
  driver_->AllowUpdates();
  driver_->PrepareUpdates();
  EXPECT_FALSE(driver_->StopUpdates());
  AllGradientsArrive();
  norm_->Wait();
  EXPECT_FALSE(driver_->StopUpdates());
  EXPECT_FALSE(store_->TryTakeUpdate().has_value());
  EXPECT_EQ(store_->updates_finished(), 0U);
}

TEST_F(OptimizerDriverTest, TheNextStepUpdatesNothingWithGradientsOfTheLast) {
  AllGradientsArrive();
  norm_->Wait();
  driver_->EndStep();
  driver_->AllowUpdates();
  driver_->PrepareUpdates();
  EXPECT_FALSE(store_->TryTakeUpdate().has_value());
  EXPECT_FALSE(driver_->StopUpdates());
}

TEST_F(OptimizerDriverTest, AnUpdateTakesTheScalarsOfItsVersionThoughThoseOfTheNextAreThere) {
  driver_->SetScalars(1, ScalarsOf(1, 2));
  store_->BeginUpdates();
  ASSERT_TRUE(store_->Drain().ok());
  const offload::IdRange<TileId> tile0 = {0, 1};
  const auto weights = store_->PinWeights(tile0, 0_B);
  ASSERT_TRUE(weights.ok());
  const auto* const first =
      reinterpret_cast<const kernels::BFloat16*>(weights->weights().front().data());
  EXPECT_NEAR(kernels::ToFloat(*first), -1e-2, 1e-4) << "AdamW's first step is as long as its rate";
}

TEST_F(OptimizerDriverTest, OfWeightsThatAreNotFiniteTheFirstTilesModuleIsNamed) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const bool both : {false, true}) {
    Begin(3);
    SetGradient(3, 100, nan);
    if (both) SetGradient(2, 4000, nan);
    store_->BeginUpdates();
    ASSERT_TRUE(store_->Drain().ok());
    const Status weights = driver_->CheckWeights();
    ASSERT_FALSE(weights.ok());
    EXPECT_EQ(weights.error().code, ErrorCode::kNumeric);
    EXPECT_THAT(weights.error().message, HasSubstr(both ? "module a " : "module b "));
  }
}

TEST_F(OptimizerDriverTest, WeightsThatAreFiniteAreGood) {
  store_->BeginUpdates();
  ASSERT_TRUE(store_->Drain().ok());
  EXPECT_TRUE(driver_->CheckWeights().ok());
}

}  // namespace
}  // namespace penstock::zero
