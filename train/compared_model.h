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
#include "zero/engine.h"

namespace penstock::train {

struct ComparedTensor {
  std::string name;  ///< Hugging Face's, without "transformer."
  std::vector<uint64_t> shape;
  uint64_t elements = 0;
  DType dtype = DType::kFloat32;     ///< as stored; a run keeps fp32 masters
  std::optional<std::string> group;  ///< of a run, by name
};

class ComparedModel {
 public:
  /// `path`: the folder of a run, a folder with *.safetensors, or a safetensors file. Errors:
  /// kNotFound (nothing there that could be compared), kInvalidArgument (a tensor that is not
  /// stored as F32, BF16 or F16), those of CommittedState and of TensorCatalog.
  static Result<std::unique_ptr<ComparedModel>> Open(const std::string& path);
  virtual ~ComparedModel() = default;

  /// In the order in which reading them reads everything once.
  const std::vector<ComparedTensor>& tensors() const { return tensors_; }
  /// What it holds of every element: of safetensors the weights, of a run what its optimizer keeps.
  const std::vector<zero::StateKind>& states() const { return states_; }
  Encoding moments() const { return moments_; }
  /// What a run committed beside its tensors; null for safetensors.
  virtual const zero::TrainState* train_state() const = 0;
  /// How many elements of tensor `index` from `begin` on can be read, in every state, without
  /// reading anything twice later: to the end of a tile.
  virtual uint64_t ReadableAtOnce(size_t index, uint64_t begin) const = 0;
  /// Elements [begin, begin + values.size()) of tensor `index`, exactly.
  virtual Status Read(zero::StateKind kind, size_t index, uint64_t begin,
                      std::span<float> values) = 0;

 protected:
  std::vector<ComparedTensor> tensors_;
  std::vector<zero::StateKind> states_ = {zero::StateKind::kMaster};
  Encoding moments_ = Encoding::kFloat32;
};

}  // namespace penstock::train
