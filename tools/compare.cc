#include "tools/compare.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>

namespace penstock::train {
namespace {

using zero::StateKind;

constexpr uint64_t kChunkElements = uint64_t{256} << 10;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

const char* StateName(StateKind kind) {
  switch (kind) {
    case StateKind::kMaster:
      return "weight";
    case StateKind::kExpAvg:
      return "exp_avg";
    case StateKind::kExpAvgSq:
      return "exp_avg_sq";
  }
  return "?";
}

/// "weight, exp_avg and exp_avg_sq".
std::string StateNames(std::span<const StateKind> kinds) {
  std::string text = StateName(kinds.front());
  for (const StateKind kind : kinds.subspan(1)) {
    text += fmt::format("{}{}", kind == kinds.back() ? " and " : ", ", StateName(kind));
  }
  return text;
}

/// How a side stores the moments of its tensors: "fp32", or "bf16 and fp32" where they differ.
std::string MomentEncodings(const ComparedModel& side) {
  std::set<std::string> names;
  for (const ComparedTensor& tensor : side.tensors()) {
    if (tensor.moments) names.insert(ToString(*tensor.moments));
  }
  return fmt::format("{}", fmt::join(names, " and "));
}

/// A tensor that both sides have, by index.
struct Pair {
  size_t a;
  size_t b;
};

class Comparer {
 public:
  Comparer(ComparedModel& a, ComparedModel& b) : a_(a), b_(b) {}

  Result<Comparison> Run() {
    if (a_.train_state() != nullptr && b_.train_state() != nullptr) {
      CompareSteps();
      CompareStates();
    }
    std::ranges::copy_if(a_.states(), std::back_inserter(result_.states), [this](StateKind kind) {
      return std::ranges::find(b_.states(), kind) != b_.states().end();
    });
    for (const Pair pair : Match()) PENSTOCK_TRY(CompareTensor(pair));
    return std::move(result_);
  }

 private:
  void CompareSteps();
  void CompareStates();
  std::vector<Pair> Match();
  void NoteMissing(const ComparedTensor& tensor, const char* side);
  std::vector<StateKind> StatesOf(Pair pair) const;
  bool SameShapeAndGroup(const ComparedTensor& a, const ComparedTensor& b);
  Status CompareTensor(Pair pair);
  void Note(Pair pair, std::span<const StateKind> kinds,
            std::span<const ValueDifference> differences);
  Status CompareChunk(Pair pair, StateKind kind, uint64_t begin, uint64_t count,
                      ValueDifference* difference);

  ComparedModel& a_;
  ComparedModel& b_;
  Comparison result_;
  bool states_alike_ = false;  ///< of two runs, as far as one line can say
  std::vector<float> buffer_a_;
  std::vector<float> buffer_b_;
};

void Comparer::CompareSteps() {
  const zero::TrainState& a = *a_.train_state();
  const zero::TrainState& b = *b_.train_state();
  const auto compare = [this](const char* name, uint64_t of_a, uint64_t of_b) {
    if (of_a == of_b) return;
    result_.mismatches.push_back(fmt::format("{}: {} in A, {} in B", name, of_a, of_b));
  };
  compare("step", a.step, b.step);
  compare("optimizer steps", a.optimizer_steps, b.optimizer_steps);
  compare("steps skipped in a row", a.skipped_in_a_row, b.skipped_in_a_row);
}

void Comparer::CompareStates() {
  const auto text = [](const ComparedModel& side) {
    return fmt::format("{} in {}", StateNames(std::span(side.states()).subspan(1)),
                       MomentEncodings(side));
  };
  states_alike_ = text(a_) == text(b_);
  if (states_alike_) return;
  result_.mismatches.push_back(
      fmt::format("optimizer states: A has {}, B has {}", text(a_), text(b_)));
}

/// The tensors to compare, in the order of a side that is a run: files can be read in any.
std::vector<Pair> Comparer::Match() {
  std::map<std::string_view, size_t> of_a;
  std::map<std::string_view, size_t> of_b;
  for (size_t i = 0; i < a_.tensors().size(); ++i) of_a.emplace(a_.tensors()[i].name, i);
  for (size_t i = 0; i < b_.tensors().size(); ++i) of_b.emplace(b_.tensors()[i].name, i);
  for (const ComparedTensor& tensor : a_.tensors()) {
    if (!of_b.contains(tensor.name)) NoteMissing(tensor, "A");
  }
  for (const ComparedTensor& tensor : b_.tensors()) {
    if (!of_a.contains(tensor.name)) NoteMissing(tensor, "B");
  }
  std::vector<Pair> pairs;
  const ComparedModel& first = a_.train_state() != nullptr ? a_ : b_;
  for (const ComparedTensor& tensor : first.tensors()) {
    const auto a = of_a.find(tensor.name);
    const auto b = of_b.find(tensor.name);
    if (a == of_a.end() || b == of_b.end()) continue;
    if (SameShapeAndGroup(a_.tensors()[a->second], b_.tensors()[b->second])) {
      pairs.push_back({a->second, b->second});
    }
  }
  return pairs;
}

void Comparer::NoteMissing(const ComparedTensor& tensor, const char* side) {
  if (tensor.copy) return;
  result_.mismatches.push_back(
      fmt::format("{} {} is only in {}", tensor.name, ShapeText(tensor.shape), side));
}

/// Notes what is not the same. Returns whether the values can be compared.
bool Comparer::SameShapeAndGroup(const ComparedTensor& a, const ComparedTensor& b) {
  if (a.group && b.group && a.group != b.group) {
    result_.mismatches.push_back(fmt::format("{}: {} in A, {} in B", a.name, *a.group, *b.group));
  } else if (a.group && b.group && a.lacks != b.lacks) {
    result_.mismatches.push_back(fmt::format("{}: {} of its moments are not kept in A, {} in B",
                                             a.name, a.lacks.size(), b.lacks.size()));
  } else if (states_alike_ && a.moments && b.moments && a.moments != b.moments) {
    result_.mismatches.push_back(fmt::format("{}: moments in {} in A, in {} in B", a.name,
                                             ToString(*a.moments), ToString(*b.moments)));
  }
  if (a.shape == b.shape) return true;
  result_.mismatches.push_back(
      fmt::format("{}: shape {} in A, {} in B", a.name, ShapeText(a.shape), ShapeText(b.shape)));
  return false;
}

/// What both sides keep of a tensor.
std::vector<StateKind> Comparer::StatesOf(Pair pair) const {
  const auto lacks = [](const ComparedTensor& tensor, StateKind kind) {
    return std::ranges::find(tensor.lacks, kind) != tensor.lacks.end();
  };
  std::vector<StateKind> kinds = result_.states;
  std::erase_if(kinds, [&](StateKind kind) {
    return lacks(a_.tensors()[pair.a], kind) || lacks(b_.tensors()[pair.b], kind);
  });
  return kinds;
}

Status Comparer::CompareTensor(Pair pair) {
  const ComparedTensor& tensor = a_.tensors()[pair.a];
  const std::vector<StateKind> kinds = StatesOf(pair);
  std::vector<ValueDifference> differences(kinds.size());
  for (uint64_t begin = 0; begin < tensor.elements;) {
    const uint64_t count = std::min(
        {kChunkElements, a_.ReadableAtOnce(pair.a, begin), b_.ReadableAtOnce(pair.b, begin)});
    for (size_t i = 0; i < kinds.size(); ++i) {
      PENSTOCK_TRY(CompareChunk(pair, kinds[i], begin, count, &differences[i]));
    }
    begin += count;
  }
  Note(pair, kinds, differences);
  return {};
}

void Comparer::Note(Pair pair, std::span<const StateKind> kinds,
                    std::span<const ValueDifference> differences) {
  const ComparedTensor& a = a_.tensors()[pair.a];
  const DType dtype_b = b_.tensors()[pair.b].dtype;
  ++result_.tensors;
  result_.elements += a.elements;
  if (a.dtype != dtype_b) ++result_.widened;
  const size_t before = result_.differences.size();
  for (size_t i = 0; i < differences.size(); ++i) {
    if (differences[i].differing() == 0) continue;
    result_.differences.push_back({a.name, kinds[i], a.dtype, dtype_b, a.shape, differences[i]});
  }
  if (result_.differences.size() > before) ++result_.different_tensors;
}

Status Comparer::CompareChunk(Pair pair, StateKind kind, uint64_t begin, uint64_t count,
                              ValueDifference* difference) {
  buffer_a_.resize(count);
  buffer_b_.resize(count);
  PENSTOCK_TRY(a_.Read(kind, pair.a, begin, buffer_a_));
  PENSTOCK_TRY(b_.Read(kind, pair.b, begin, buffer_b_));
  difference->Add(buffer_a_, buffer_b_);
  return {};
}

/// "exp_avg", or "weight (fp32, bf16)" if the two sides store it differently.
std::string StateText(const TensorDifference& difference) {
  const char* name = StateName(difference.state);
  if (difference.dtype_a == difference.dtype_b) return name;
  return fmt::format("{} ({}, {})", name, ToString(difference.dtype_a),
                     ToString(difference.dtype_b));
}

/// "[3, 17]": where the element `at` of the flat order is in a tensor.
std::string Coordinates(uint64_t at, const std::vector<uint64_t>& shape) {
  std::vector<uint64_t> indices(shape.size());
  for (size_t i = shape.size(); i-- > 0;) {
    indices[i] = at % shape[i];
    at /= shape[i];
  }
  return ShapeText(indices);
}

using TableRow = std::array<std::string, 9>;

TableRow MakeRow(const TensorDifference& difference) {
  const ValueDifference& values = difference.values;
  const std::optional<uint64_t> at = values.largest_at();
  const auto or_dash = [&at](std::string text) { return at ? std::move(text) : "-"; };
  return {difference.name,
          StateText(difference),
          fmt::format("{} of {}", values.differing(), values.elements()),
          Coordinates(values.first(), difference.shape),
          or_dash(fmt::format("{:.3g}", values.largest())),
          or_dash(Coordinates(at.value_or(0), difference.shape)),
          or_dash(fmt::format("{:.3g}", values.largest_relative())),
          or_dash(fmt::format("{}", values.largest_ulps())),
          fmt::format("{}, {}", values.not_finite_a(), values.not_finite_b())};
}

std::string Align(const std::vector<TableRow>& rows) {
  std::array<size_t, std::tuple_size_v<TableRow>> widths{};
  for (const TableRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const TableRow& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths[i]);
    text += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return text;
}

std::string SummaryLine(const Comparison& comparison) {
  std::string text =
      fmt::format("{} tensors, {} elements{}: ", comparison.tensors, comparison.elements,
                  comparison.states.size() > 1
                      ? fmt::format(", each with its {}", StateNames(comparison.states))
                      : "");
  if (!comparison.equal()) {
    text += fmt::format("{} different", comparison.different_tensors);
    const size_t others = comparison.mismatches.size();
    if (others != 0) text += fmt::format(", {} other differences", others);
  } else {
    text += comparison.widened == 0 ? "equal bits" : "equal values";
  }
  if (comparison.widened != 0) {
    text += fmt::format("; {} tensors are stored in another dtype in B and were compared as fp32",
                        comparison.widened);
  }
  return text + "\n";
}

}  // namespace

Result<Comparison> Compare(ComparedModel& a, ComparedModel& b) { return Comparer(a, b).Run(); }

std::string ToTable(const Comparison& comparison) {
  std::string text;
  for (const std::string& mismatch : comparison.mismatches) text += mismatch + "\n";
  if (!comparison.differences.empty()) {
    std::vector<TableRow> rows = {{"tensor", "state", "differ", "first", "largest |A-B|", "at",
                                   "relative", "ULP", "not finite in A, B"}};
    for (const TensorDifference& difference : comparison.differences) {
      rows.push_back(MakeRow(difference));
    }
    text += Align(rows);
  }
  return text + SummaryLine(comparison);
}

}  // namespace penstock::train
