#include "zero/engine/engine_options.h"

#include "comm/communicator.h"

namespace penstock::zero {

comm::World EngineOptions::world() const {
  return communicator == nullptr ? comm::World() : communicator->world();
}

}  // namespace penstock::zero
