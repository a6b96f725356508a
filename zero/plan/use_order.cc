#include "zero/plan/use_order.h"

#include <algorithm>
#include <utility>

#include "offload/layout.h"

namespace penstock::zero {

using offload::Index;

namespace {

Status CheckNamesAll(const ModelSpec& model, const std::vector<ModuleId>& order, const char* what) {
  std::vector<bool> named(model.modules.size(), false);
  for (const ModuleId module : order) {
    if (Index(module) >= named.size()) {
      return MakeError(ErrorCode::kInvalidArgument, "{} names module {}, and there are {}", what,
                       Index(module), named.size());
    }
    named[Index(module)] = true;
  }
  const auto missing = std::ranges::find(named, false);
  if (missing == named.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument, "{} leaves module {} out; name every module", what,
                   model.modules[static_cast<size_t>(missing - named.begin())].name);
}

/// The trained part of a module is the beginning of its flat index.
Status CheckFrozenLast(const std::vector<GroupSpec>& groups) {
  const auto frozen = std::ranges::find(groups, true, &GroupSpec::frozen);
  const auto trained =
      std::find_if(frozen, groups.end(), [](const GroupSpec& group) { return !group.frozen; });
  if (trained == groups.end()) return {};
  return MakeError(ErrorCode::kInvalidArgument,
                   "the group \"{}\" is trained and comes after \"{}\", which is frozen; name "
                   "frozen groups last",
                   trained->name, frozen->name);
}

}  // namespace

Result<ModelSpec> WithOrder(ModelSpec model) {
  PENSTOCK_TRY(CheckFrozenLast(model.groups));
  const size_t modules = model.modules.size();
  const auto backwards = [modules](size_t i) {
    return ModuleId{static_cast<uint32_t>(modules - 1 - i)};
  };
  if (model.step.empty()) {
    for (const ModuleId id : offload::Ids<ModuleId>(modules)) model.step.push_back({id, false});
    for (size_t i = 0; i < modules; ++i) model.step.push_back({backwards(i), true});
  }
  if (model.gradients.empty()) {
    for (size_t i = 0; i < modules; ++i) model.gradients.push_back(backwards(i));
  }
  std::vector<ModuleId> used;
  for (const ModuleUse& use : model.step) used.push_back(use.module);
  PENSTOCK_TRY(CheckNamesAll(model, used, "the order of uses"));
  PENSTOCK_TRY(CheckNamesAll(model, model.gradients, "the order of gradients"));
  if (model.gradients.size() != modules) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "the order of gradients names a module twice; name each once");
  }
  return model;
}

void UseOrder::BeginStep() {
  recorded_ = {};
  next_ = 0;
}

void UseOrder::Used(ModuleId module) {
  const auto same = [module](const ModuleUse& use) { return use.module == module; };
  const bool again = std::ranges::any_of(recorded_.uses, same);
  recorded_.uses.push_back({module, again});
  if (next_ < planned_.uses.size() && same(planned_.uses[next_])) {
    ++next_;
  } else {
    ++late_;
  }
}

std::optional<StepOrder> UseOrder::EndStep() {
  // Modules that were left out keep a place all the same, after the others.
  std::vector<bool> used(modules_, false);
  for (const ModuleUse& use : recorded_.uses) used[Index(use.module)] = true;
  for (const ModuleId module : offload::Ids<ModuleId>(modules_)) {
    if (!used[Index(module)]) recorded_.uses.push_back({module, false});
  }
  std::vector<bool> reduced(modules_, false);
  for (const ModuleId module : recorded_.gradients) reduced[Index(module)] = true;
  for (const ModuleId module : planned_.gradients) {
    if (!reduced[Index(module)]) recorded_.gradients.push_back(module);
  }
  const auto module_of = [](const ModuleUse& use) { return use.module; };
  const bool same_uses =
      std::ranges::equal(recorded_.uses, planned_.uses, {}, module_of, module_of);
  if (same_uses && recorded_.gradients == planned_.gradients) return std::nullopt;
  planned_ = std::move(recorded_);
  return planned_;
}

}  // namespace penstock::zero
