#include "offload/tile_store.h"

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "tests/aio/wrapped_engine.h"
#include "tests/offload/support.h"

namespace penstock::offload {
namespace {

/// An engine whose drive takes no reads any more once `stuck` is set: they wait to be cancelled.
class StuckEngine final : public aio::WrappedEngine {
 public:
  StuckEngine() : WrappedEngine(aio::CreateEngine({.kind = aio::EngineKind::kThreads}).value()) {}

  aio::Ticket Submit(aio::Request request) override {
    {
      const std::lock_guard lock(mutex_);
      if (stuck_ && request.operation == aio::Operation::kRead) {
        waiting_.push_back(std::move(request));
        return {};
      }
    }
    return WrappedEngine::Submit(std::move(request));
  }
  void Cancel() override {
    std::vector<aio::Request> cancelled;
    {
      const std::lock_guard lock(mutex_);
      cancelled.swap(waiting_);
    }
    for (const aio::Request& request : cancelled) {
      request.on_complete(Error{ErrorCode::kCancelled, "cancelled"});
    }
    WrappedEngine::Cancel();
  }

  void GetStuck() {
    const std::lock_guard lock(mutex_);
    stuck_ = true;
  }
  size_t waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_.size();
  }

 private:
  std::mutex mutex_;
  bool stuck_ = false;
  std::vector<aio::Request> waiting_;
};

class TileStoreTest : public FolderTest {};

TEST_F(TileStoreTest, EndsWithoutTheReadsThatTheDriveHasNotBegun) {
  const ShardLayout layout = SmallLayout(DType::kBFloat16);
  const Schedule schedule = EachModuleOnce(layout);
  StuckEngine engine;
  aio::Engine* const engines[] = {&engine};
  auto file =
      StateFile::Create(layout, {.folders = {folder_}, .require_direct = false}, engines).value();
  auto slab = Slab::Create(4_MiB).value();
  TileStoreOptions options{.weight_blocks = 4, .record_blocks = 2};
  auto store = std::make_unique<TileStore>(layout, schedule, options, slab, *file);
  for (uint32_t tile = 0; tile < layout.tiles.size(); ++tile) {
    const auto nothing = [](std::span<std::byte>, std::span<std::byte>) { return Status(); };
    ASSERT_TRUE(store->FillTile(TileId{tile}, nothing).ok());
  }
  ASSERT_TRUE(store->Drain().ok());
  engine.GetStuck();
  store->SetTime(0);
  ASSERT_GT(engine.waiting(), 0U) << "records are read ahead";
  store.reset();  // would wait for ever
  EXPECT_EQ(engine.waiting(), 0U);
}

}  // namespace
}  // namespace penstock::offload
