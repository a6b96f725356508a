#include "zero/engine/engine.h"

#include "zero/engine/memory_plan.h"
#include "zero/engine/offload_engine.h"
#include "zero/engine/resident_engine.h"

namespace penstock::zero {

Result<std::unique_ptr<Engine>> Engine::Create(EngineOptions options, device::Device& device,
                                               kernels::StateOperators& operators) {
  if (IsResident(options.config)) {
    return ResidentEngine::Create(std::move(options), device, operators);
  }
  return OffloadEngine::Create(std::move(options), device, operators);
}

}  // namespace penstock::zero
