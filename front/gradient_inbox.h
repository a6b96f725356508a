// Takes the gradients of a step from a caller, tensor by tensor and micro-batch by micro-batch, and
// puts each unit's gradient into the engine once it is complete.
//
// With one micro-batch, and for fp32 weights, gradients go straight to where the update reads them.
// Otherwise sums are kept in fp32 beside it, and rounded once (nearest even): with the last
// micro-batch, or at the end of the step if there are fewer.
//
// A gradient that is on its way from a device is counted when it is announced, and added when it
// has arrived.
//
// Threads: one at a time; Put and Arrived from another one, for announced gradients. The thread
// that announces gradients waits for them before all calls except Announce.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/dtype.h"
#include "base/mapping.h"
#include "base/result.h"
#include "front/call_team.h"
#include "offload/layout.h"

namespace penstock::front {

class GradientInbox {
 public:
  /// Bytes of the sums that are kept beside the engine's gradients.
  static Bytes Need(const offload::ShardLayout& layout, uint64_t micro_batches);
  /// Bytes of the fp32 sums of all trained tensors, for a caller that keeps them on its device.
  static Bytes DeviceNeed(const offload::ShardLayout& layout);

  /// The functions that an inbox calls.
  struct Callbacks {
    /// Where a trained tile's gradient goes; gradients of consecutive tiles are contiguous.
    std::function<std::byte*(offload::TileId tile)> place;
    /// A module has been given its last gradient, or it was announced.
    std::function<void(offload::ModuleId module)> last;
    /// All tiles of a module have their gradients. Called by Arrived, after `last`.
    std::function<void(offload::ModuleId module)> complete;
    /// Rounds the sum of a tensor whose last micro-batches are missing; called before `complete`.
    /// If it is set, the owner has the sums: it adds gradients where Announced says, and calls
    /// neither Put nor Add.
    std::function<void(offload::ModuleId module, uint32_t tensor, uint64_t sum, std::byte* place)>
        round = nullptr;
  };
  /// A gradient that was announced.
  struct Announced {
    offload::ModuleId module{};
    uint32_t tensor = 0;
    uint64_t elements = 0;
    DType dtype{};
    bool first = false;           ///< first of its tensor in this step
    bool rounds = false;          ///< the last of its tensor
    bool last = false;            ///< last of its module
    std::byte* place = nullptr;   ///< where the update reads the tensor's gradient
    std::optional<uint64_t> sum;  ///< its first element in the sums, if it is added up there
    std::byte* direct = nullptr;  ///< where its bytes may be written instead of Put
  };

  /// The layout outlives the object. Errors: kOutOfMemory.
  /// `holds`: no module is complete before CompleteAll, so that its gradients can be replaced.
  static Result<GradientInbox> Create(const offload::ShardLayout& layout, uint64_t micro_batches,
                                      bool holds, Callbacks callbacks);

  /// Adds a gradient, null: zeros, with up to `threads` threads. `module` and `tensor` exist.
  /// Errors: kInvalidArgument for a frozen tensor, a gradient of fp16 or bf16 for a weight of
  /// another dtype but fp32, and more gradients than micro-batches.
  Status Add(offload::ModuleId module, uint32_t tensor, const void* values, DType dtype,
             int threads);
  /// The parts of Add. Errors: as Add's.
  Result<Announced> Announce(offload::ModuleId module, uint32_t tensor, DType dtype);
  /// Adds elements [begin, begin + count) of the gradient, with up to `threads` threads. Null:
  /// zeros. Gradients of a tensor are put in the order in which they were announced.
  void Put(const Announced& gradient, uint64_t begin, uint64_t count, const void* values,
           int threads);
  /// The same for a share of the elements; shares are disjoint. Shares of a tensor are the same in
  /// each gradient: a thread that puts the same share of each gradient in order need not wait for
  /// other shares.
  void PutShare(const Announced& gradient, uint64_t begin, uint64_t count, const void* values,
                const CallTeam::Share& share);
  /// Says that all elements of this gradient and of all earlier announced ones have arrived.
  void Arrived(const Announced& gradient);
  /// Copies what a tensor's gradients add up to so far, as fp32, with up to `threads` threads.
  /// Errors: kInvalidArgument if it has none in this step.
  Status Read(offload::ModuleId module, uint32_t tensor, float* to, int threads) const;
  /// Puts another gradient in the place of that. Errors: as Read's and Add's, and if the module is
  /// complete.
  Status Replace(offload::ModuleId module, uint32_t tensor, const void* values, DType dtype,
                 int threads);
  /// Completes the modules that got fewer gradients than there are micro-batches, with up to
  /// `threads` threads. Errors: kInvalidArgument, naming the tensors that got none.
  Status CompleteAll(int threads);
  /// Begins another step.
  void Clear();

 private:
  struct Tensor {
    bool trained = false;
    uint64_t count = 0;  ///< gradients in this step
    uint64_t sum = 0;    ///< its first element in sums_, if it is added up there
    bool added_aside = false;
  };
  struct Module {
    std::vector<Tensor> tensors;
    size_t trained = 0;   ///< trained tensors
    size_t full = 0;      ///< trained tensors with a gradient of each micro-batch
    bool closed = false;  ///< it takes no more in this step
  };

  GradientInbox(const offload::ShardLayout& layout, uint64_t micro_batches, bool holds)
      : layout_(layout), micro_batches_(micro_batches), holds_(holds) {}
  std::byte* PlaceOf(offload::ModuleId module, const offload::TensorLayout& tensor) const;
  Status CheckDType(offload::ModuleId module, uint32_t tensor, DType dtype) const;
  Status CheckAdd(offload::ModuleId module, uint32_t tensor, DType dtype) const;
  Status CheckHas(offload::ModuleId module, uint32_t tensor) const;
  /// Whether what a tensor has in this step is a sum that is not rounded yet.
  bool IsSum(const Tensor& tensor) const {
    return tensor.added_aside && tensor.count < micro_batches_;
  }
  std::byte* DirectPlace(const Announced& gradient) const;
  void PutPart(const Announced& gradient, uint64_t begin, uint64_t count, const void* values);
  void CloseModule(offload::ModuleId module);
  void RoundRest(offload::ModuleId module, int threads);

  const offload::ShardLayout& layout_;
  uint64_t micro_batches_;
  bool holds_;
  Callbacks callbacks_;
  Mapping sums_;
  std::vector<Module> modules_;
};

}  // namespace penstock::front
