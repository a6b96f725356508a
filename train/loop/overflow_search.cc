#include "train/loop/overflow_search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

namespace penstock::train {

namespace {

using Finding = CheckedOperators::Finding;
using Role = CheckedOperators::Role;

/// The fields of a rank's finding, by index in the note.
enum NoteField : size_t {
  kFound,  ///< 1; 0: the other fields have no meaning
  kOrder,
  kMicroBatch,  ///< index in the global batch
  kRow,         ///< row of the data
  kBackward,
  kModule,
  kOperation,
  kRole,
  kParameter,  ///< -1: none
};
static_assert(kParameter < zero::kStepNoteSize);

/// A gradient from here on becomes infinite when it is rounded to the dtype.
float GradientLimit(DType dtype) {
  constexpr float kRoundsToInfinity = 65520;
  return dtype == DType::kFloat16 ? std::nextafter(kRoundsToInfinity, 0.0F)
                                  : std::numeric_limits<float>::max();
}

zero::StepNote NoteOf(const Finding& finding, const WrittenTensor& tensor, uint64_t micro_batch,
                      uint64_t row) {
  zero::StepNote note{};
  note[kFound] = 1;
  note[kOrder] = static_cast<double>(finding.order);
  note[kMicroBatch] = static_cast<double>(micro_batch);
  note[kRow] = static_cast<double>(row);
  note[kBackward] = tensor.backward ? 1 : 0;
  note[kModule] = static_cast<double>(offload::Index(tensor.module));
  note[kOperation] = static_cast<double>(tensor.operation);
  note[kRole] = static_cast<double>(tensor.role);
  note[kParameter] = tensor.parameter ? static_cast<double>(*tensor.parameter) : -1;
  return note;
}

WrittenTensor TensorOf(const zero::StepNote& note) {
  WrittenTensor tensor{
      .backward = note[kBackward] != 0,
      .module = zero::ModuleId{static_cast<uint32_t>(note[kModule])},
      .operation = static_cast<CheckedOperators::Operation>(static_cast<int>(note[kOperation])),
      .role = static_cast<Role>(static_cast<int>(note[kRole]))};
  if (note[kParameter] >= 0) tensor.parameter = static_cast<size_t>(note[kParameter]);
  return tensor;
}

/// The number of a module that is a layer; nothing for others.
std::optional<uint32_t> LayerOf(const zero::ModelSpec& model, zero::ModuleId module) {
  if (!model.modules[offload::Index(module)].repeated) return {};
  uint32_t layer = 0;
  for (uint32_t i = 0; i < offload::Index(module); ++i) layer += model.modules[i].repeated ? 1 : 0;
  return layer;
}

}  // namespace

Result<std::optional<Finding>> OverflowSearch::Compute(std::span<const int32_t> inputs,
                                                       std::span<const int32_t> targets) {
  PENSTOCK_ASSIGN(zero::Step step, parts_.session.RepeatStep());
  device::Stream& stream = step.compute_stream();
  parts_.operators.BeginSearch(
      stream, [this] { return parts_.model.place(); }, GradientLimit(dtype_));
  const Status computed = parts_.model.ForwardBackward(step, inputs, targets);
  Result<std::optional<Finding>> found = parts_.operators.EndSearch(stream);
  if (!computed.ok()) return computed.error();
  PENSTOCK_TRY(step.Drop());
  return found;
}

Result<zero::StepNote> OverflowSearch::FirstOfAll(const std::optional<Finding>& mine,
                                                  uint64_t row) {
  zero::StepNote note{};
  if (mine) {
    note = NoteOf(*mine, TensorOf(*mine, parts_.session.layout()),
                  mine->place.micro_batch * world_.size + world_.rank, row);
  }
  if (world_.size == 1) return note;
  PENSTOCK_ASSIGN(const std::vector<zero::StepNote> notes, parts_.exchange(note));
  const auto before = [](const zero::StepNote& a, const zero::StepNote& b) {
    if (a[kFound] != b[kFound]) return a[kFound] > b[kFound];
    return std::pair(a[kOrder], a[kMicroBatch]) < std::pair(b[kOrder], b[kMicroBatch]);
  };
  return *std::ranges::min_element(notes, before);
}

Result<std::optional<FirstNonFinite>> OverflowSearch::Run(
    std::span<const int32_t> inputs, std::span<const int32_t> targets, bool loss_is_finite,
    const std::function<uint64_t(uint64_t micro_batch, uint64_t i)>& row_of) {
  PENSTOCK_ASSIGN(const std::optional<Finding> mine, Compute(inputs, targets));
  const bool has_row = mine && mine->role != Role::kParameterGradient;
  const uint64_t row = has_row ? row_of(mine->place.micro_batch, mine->row / sequence_) : 0;
  PENSTOCK_ASSIGN(const zero::StepNote first, FirstOfAll(mine, row));
  if (first[kFound] == 0) return std::optional<FirstNonFinite>();
  const WrittenTensor tensor = TensorOf(first);
  // The head is one operator: if the loss is not finite, its logits are not.
  const bool logits = tensor.operation == CheckedOperators::Operation::kHead && !loss_is_finite;
  FirstNonFinite found{.pass = tensor.backward && !logits ? Pass::kBackward : Pass::kForward,
                       .tensor = logits ? "logits" : NameOf(tensor, parts_.session.layout().model),
                       .layer = LayerOf(parts_.session.model(), tensor.module),
                       .micro_batch = static_cast<uint64_t>(first[kMicroBatch])};
  if (!logits && tensor.role == Role::kInputGradient) found.tensor = "the input of " + found.tensor;
  if (tensor.role != Role::kParameterGradient) {
    found.rows.push_back(static_cast<uint64_t>(first[kRow]));
  }
  return std::optional(std::move(found));
}

}  // namespace penstock::train
