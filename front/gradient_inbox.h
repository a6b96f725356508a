// Takes the gradients of a step as a caller gives them, tensor by tensor and micro-batch by
// micro-batch, and puts each unit's into the engine once it is complete.
//
// With one micro-batch, and for fp32 weights, gradients go straight to where the update reads them.
// Otherwise sums are kept in fp32 beside it, and rounded once (nearest even).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/mapping.h"
#include "base/result.h"
#include "offload/layout.h"

namespace penstock::front {

class GradientInbox {
 public:
  /// Bytes of the sums that are kept beside the engine's gradients.
  static Bytes Need(const offload::ShardLayout& layout, uint64_t micro_batches);

  /// `place`: where a trained tile's gradient goes; those of consecutive tiles lie one behind the
  /// other. `complete` is called when all tiles of a module have theirs. The layout outlives the
  /// object. Errors: kOutOfMemory.
  static Result<GradientInbox> Create(const offload::ShardLayout& layout, uint64_t micro_batches,
                                      std::function<std::byte*(offload::TileId tile)> place,
                                      std::function<void(offload::ModuleId module)> complete);

  /// Adds a gradient, null: zeros. `module` and `tensor` exist. Errors: kInvalidArgument for a
  /// frozen tensor, a gradient of fp16 or bf16 for a weight of another dtype but fp32, and more
  /// gradients than micro-batches.
  Status Add(offload::ModuleId module, uint32_t tensor, const void* values, DType dtype);
  /// Completes the modules that got fewer gradients than there are micro-batches. Errors:
  /// kInvalidArgument, naming the tensors that got none.
  Status CompleteAll();
  /// Begins another step.
  void Clear();
  /// Returns the trained tiles whose gradients were completed in this step.
  size_t tiles() const { return tiles_; }
  bool empty() const { return empty_; }

 private:
  struct Tensor {
    bool trained = false;
    uint64_t count = 0;  ///< of gradients in this step
    uint64_t sum = 0;    ///< its first element in sums_, if it is added up there
    bool added_aside = false;
  };
  struct Module {
    std::vector<Tensor> tensors;
    size_t trained = 0;  ///< tensors
    size_t full = 0;     ///< of them, those with a gradient of each micro-batch
    bool complete = false;
  };

  GradientInbox(const offload::ShardLayout& layout, uint64_t micro_batches)
      : layout_(layout), micro_batches_(micro_batches) {}
  std::byte* PlaceOf(offload::ModuleId module, const offload::TensorLayout& tensor) const;
  Status CheckAdd(offload::ModuleId module, uint32_t tensor, DType dtype) const;
  void Put(offload::ModuleId module, uint32_t tensor, const void* values, DType dtype);
  void Complete(offload::ModuleId module);

  const offload::ShardLayout& layout_;
  uint64_t micro_batches_;
  std::function<std::byte*(offload::TileId)> place_;
  std::function<void(offload::ModuleId)> complete_;
  Mapping sums_;
  std::vector<Module> modules_;
  size_t tiles_ = 0;
  bool empty_ = true;
};

}  // namespace penstock::front
