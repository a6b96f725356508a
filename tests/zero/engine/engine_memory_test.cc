// Every byte is planned: what an engine takes of host memory while it is made, filled, trains and
// commits is charged to its ledger, or is in the list of docs/architecture.md ("Memory").
#include <algorithm>

#include "tests/zero/engine/allocations.h"
#include "tests/zero/engine_support.h"

namespace penstock::zero {
namespace {

constexpr Bytes kDevice = 128_MiB;
/// The moments of the activity meter, and what is alike for every model.
constexpr Bytes kUncounted = 2_MiB + 512_KiB;

/// Whose allocations may be large, by a part of the names of their callers, and what counts them.
constexpr struct {
  const char* name;
  const char* counted_as;
} kOwners[] = {
    {"CreateCpuDevice", "device memory"},
    {"Slab6Create", "the slab"},
    {"12AllocateHost", "bookkeeping: block sums and flags that arrive from the device"},
    {"12GradientNormC", "bookkeeping: block sums"},
    {"9MakeShard", "bookkeeping: tiles"},
    {"13BuildSchedule", "bookkeeping: orders of tiles"},
    {"9StateFile", "bookkeeping: descriptors, a head or a commit on its way"},
    {"9TileStore", "bookkeeping: tiles"},
    {"11StateEngine", "bookkeeping: gradients of tiles"},
    {"14ResidentEngine", "bookkeeping: tiles"},
    {"13ActivityMeter", "not counted"},
};

bool HasOwner(const Allocations::Large& large) {
  return std::ranges::any_of(kOwners, [&](const auto& owner) {
    return large.callers.find(owner.name) != std::string::npos;
  });
}

class EngineMemoryTest : public EngineTest {
 protected:
  void SetUp() override {
    if (!Allocations::CanBeCounted()) GTEST_SKIP() << "a sanitizer has an allocator of its own";
    EngineTest::SetUp();
  }

  /// A training of 1,200 tiles.
  void ExpectPlanned(const Placement& placement) {
    EngineOptions options = Options(placement);
    options.model = ToySpec(kLayers, 300 * kBlockElements);
    options.host_memory = Engine::MinimumMemory(options.model, options.config).host_minimum;
    const Bytes limit = options.host_memory;
    Bytes charged;
    Allocations::Begin();
    {
      ToyRun run(std::move(options), kDevice);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      for (uint64_t t = 1; t <= 3; ++t) {
        ASSERT_TRUE(run.Step(t, 1.0F).ok());
        Commit(run, t, t);
      }
      charged = run.session().host_peak();
    }
    EXPECT_LE(charged, limit);
    EXPECT_LE(Allocations::heap_peak() + Allocations::mapping_peak(),
              kDevice + charged + kUncounted);
    for (const Allocations::Large& large : Allocations::TakeLarge()) {
      EXPECT_TRUE(HasOwner(large)) << large.size.value << " bytes: " << large.callers;
    }
  }
};

TEST_F(EngineMemoryTest, OnTheDeviceAllThatIsTakenOfTheHostIsCharged) {
  ExpectPlanned({.name = "device",
                 .parameters = Tier::kDevice,
                 .optimizer = Tier::kDevice,
                 .tile_elements = kBlockElements});
}

TEST_F(EngineMemoryTest, OnTheHostAllThatIsTakenOfItIsCharged) {
  ExpectPlanned({.name = "host",
                 .parameters = Tier::kHost,
                 .optimizer = Tier::kHost,
                 .tile_elements = kBlockElements});
}

TEST_F(EngineMemoryTest, OnNvmeAllThatIsTakenOfTheHostIsCharged) {
  ExpectPlanned({.name = "nvme", .tile_elements = kBlockElements});
  ExpectPlanned({.name = "nvme, updates with gradients",
                 .tile_elements = kBlockElements,
                 .with_gradients = true});
}

TEST_F(EngineMemoryTest, TheSumsOfAFirstPassAreCharged) {
  ExpectPlanned({.name = "host",
                 .parameters = Tier::kHost,
                 .optimizer = Tier::kHost,
                 .rule = {.hyper = kernels::LambHyperparameters{}},
                 .tile_elements = kBlockElements});
}

TEST_F(EngineMemoryTest, OnTwoDrivesAllThatIsTakenOfTheHostIsCharged) {
  ExpectPlanned({.name = "two drives", .tile_elements = kBlockElements, .drives = {2, 1}});
}

}  // namespace
}  // namespace penstock::zero
