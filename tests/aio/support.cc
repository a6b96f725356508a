#include "tests/aio/support.h"

#include "aio/fault_drive.h"
#include "aio/request_engine.h"
#include "aio/uring_drive.h"

namespace penstock::aio {
namespace {

/// The ring as kernels before 6.1 give it, which CreateEngine has no option for.
Result<std::unique_ptr<Engine>> MakePlainRing(const EngineOptions& options) {
  return RequestEngine::Create(options, [&](Mutex&) -> Result<std::unique_ptr<Drive>> {
    PENSTOCK_ASSIGN(std::unique_ptr<UringDrive> ring,
                    UringDrive::Create({.queue_depth = options.queue_depth,
                                        .single_submit = options.single_submit,
                                        .plain_ring = true}));
    if (!options.faults) return std::unique_ptr<Drive>(std::move(ring));
    return std::unique_ptr<Drive>(
        std::make_unique<FaultDrive>(std::move(ring), *options.faults, options.queue_depth));
  });
}

FaultPlan HarmlessFaults() {
  FaultPlan plan;
  plan.seed = 7;
  plan.transient_chance = 0.2;
  plan.short_chance = 0.3;
  plan.reorder = true;
  plan.faults.push_back({.kind = Fault::Kind::kDelay, .first_block = 3, .count = 5});
  return plan;
}

RegisteredArena* current_arena = nullptr;

}  // namespace

RegisteredArena::RegisteredArena() : mapping_(Mapping::Create(Bytes{kSize})) {
  current_arena = this;
}
RegisteredArena::~RegisteredArena() { current_arena = nullptr; }
RegisteredArena* RegisteredArena::current() { return current_arena; }

std::array<std::span<std::byte>, 2> RegisteredArena::parts() {
  constexpr size_t kFirst = 10 << 12;
  return {std::span(mapping_->data(), kFirst),
          std::span(mapping_->data() + kFirst, kSize - kFirst)};
}

std::byte* RegisteredArena::Take(size_t size) {
  const size_t rounded = AlignUp(Bytes{size}, 4_KiB).value;
  const size_t begin = taken_.fetch_add(rounded);
  return begin + rounded <= kSize ? mapping_->data() + begin : nullptr;
}

std::vector<EngineCase> EveryEngine() {
  return {
      {"io_uring",
       [](EngineOptions options) {
         options.kind = EngineKind::kUring;
         return CreateEngine(options);
       }},
      {"io_uring_plain", MakePlainRing},
      {"io_uring_registered",
       [](EngineOptions options) {
         options.kind = EngineKind::kUring;
         options.registered_buffers = Registration::kOn;
         return CreateEngine(options);
       },
       true},
      {"io_uring_sqpoll",
       [](EngineOptions options) {
         options.sqpoll = true;
         return CreateEngine(options);
       }},
      {"libaio",
       [](EngineOptions options) {
         options.kind = EngineKind::kLibaio;
         return CreateEngine(options);
       }},
      {"threads",
       [](EngineOptions options) {
         options.kind = EngineKind::kThreads;
         options.thread_count = 3;
         return CreateEngine(options);
       }},
      {"simulated",
       [](EngineOptions options) {
         options.simulate =
             SimulatedDrive{.read_gbps = 8, .write_gbps = 4, .shared = false, .latency_us = 5};
         return CreateEngine(options);
       }},
  };
}

std::vector<EngineCase> EveryEngineWithHarmlessFaults() {
  std::vector<EngineCase> cases;
  for (const EngineCase& engine : EveryEngine()) {
    cases.push_back({engine.name + "_faulty",
                     [make = engine.make](EngineOptions options) {
                       if (!options.faults) options.faults = HarmlessFaults();
                       return make(options);
                     },
                     engine.registered});
  }
  return cases;
}

}  // namespace penstock::aio
