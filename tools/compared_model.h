// One side of a comparison: the last commit of a run, or safetensors.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "zero/states/committed_state.h"

namespace penstock::train {

struct ComparedTensor {
  std::string name;  ///< Hugging Face's, without the family's prefix
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;     ///< as stored; a run keeps fp32 masters
  std::optional<std::string> group;  ///< of a run, by name
  /// The model's states that this tensor lacks: the moments, if it is frozen.
  std::vector<zero::StateKind> lacks = {};
  std::optional<Encoding> moments = {};  ///< how a run stores those that it keeps
  bool copy = false;  ///< a tied output layer beside the embedding: a side may leave it out
};

class ComparedModel {
 public:
  /// `path`: the folder of a run, a folder with *.safetensors, or a safetensors file. Errors:
  /// kNotFound (nothing that could be compared), kInvalidArgument (a tensor that is not stored as
  /// F32, BF16 or F16), those of CommittedState and of TensorCatalog.
  static Result<std::unique_ptr<ComparedModel>> Open(const std::string& path);
  virtual ~ComparedModel() = default;

  /// In an order in which reading them reads everything once.
  const std::vector<ComparedTensor>& tensors() const { return tensors_; }
  /// The states of a tensor, unless it lacks one: the weights for safetensors, everything that the
  /// optimizer keeps for a run.
  const std::vector<zero::StateKind>& states() const { return states_; }
  /// What a run committed beside its tensors; null for safetensors.
  virtual const zero::TrainState* train_state() const = 0;
  /// Returns how many elements of tensor `index` from `begin` on can be read, in every state,
  /// without reading anything twice later: to the end of a tile.
  virtual uint64_t ReadableAtOnce(size_t index, uint64_t begin) const = 0;
  /// Reads elements [begin, begin + values.size()) of tensor `index`, exactly.
  virtual Status Read(zero::StateKind kind, size_t index, uint64_t begin,
                      std::span<float> values) = 0;
  /// Has a run read the newest of its commits that is whole (offload/whole_commit.h). Returns the
  /// notice for the user if it is another one than before; an empty text otherwise, and for
  /// safetensors. Errors: kCorruption if none is whole; of reading.
  virtual Result<std::string> UseWholeCommit() = 0;

 protected:
  std::vector<ComparedTensor> tensors_;
  std::vector<zero::StateKind> states_ = {zero::StateKind::kMaster};
};

}  // namespace penstock::train
