#include "offload/tile_leases.h"

#include "offload/tile_store.h"

namespace penstock::offload {

PinnedWeights& PinnedWeights::operator=(PinnedWeights&& other) noexcept {
  PinnedWeights taken(std::move(other));
  std::swap(store_, taken.store_);
  std::swap(tiles_, taken.tiles_);
  std::swap(weights_, taken.weights_);
  return *this;
}

void PinnedWeights::Release() {
  if (TileStore* const store = std::exchange(store_, nullptr)) store->Unpin(tiles_);
  weights_.clear();
}

UpdateLease& UpdateLease::operator=(UpdateLease&& other) noexcept {
  UpdateLease taken(std::move(other));
  std::swap(store_, taken.store_);
  std::swap(tile_, taken.tile_);
  return *this;
}

void UpdateLease::GiveBack() {
  if (TileStore* const store = std::exchange(store_, nullptr)) store->GiveBack(tile_);
}

}  // namespace penstock::offload
