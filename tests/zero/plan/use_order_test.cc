#include "zero/plan/use_order.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/zero/toy_model.h"

namespace penstock::zero {
namespace {

std::vector<uint32_t> ModulesOf(const std::vector<ModuleUse>& uses) {
  std::vector<uint32_t> modules;
  for (const ModuleUse& use : uses) modules.push_back(offload::Index(use.module));
  return modules;
}

/// A step that uses and reduces these modules.
std::optional<StepOrder> Record(UseOrder& order, const std::vector<uint32_t>& uses,
                                const std::vector<uint32_t>& gradients) {
  order.BeginStep();
  for (const uint32_t module : uses) order.Used(ModuleId{module});
  for (const uint32_t module : gradients) order.Reduced(ModuleId{module});
  return order.EndStep();
}

TEST(UseOrderTest, AModelThatDeclaresNoneBeginsForwardsAndThenBackwards) {
  ModelSpec model = ToySpec(1, 10);
  model.step.clear();
  model.gradients.clear();
  model = WithOrder(std::move(model)).value();
  EXPECT_EQ(ModulesOf(model.step), (std::vector<uint32_t>{0, 1, 2, 2, 1, 0}));
  EXPECT_FALSE(model.step[2].backward);
  EXPECT_TRUE(model.step[3].backward);
  EXPECT_EQ(model.gradients, (std::vector{ModuleId{2}, ModuleId{1}, ModuleId{0}}));
}

TEST(UseOrderTest, AStepAsPlannedChangesNothing) {
  const ModelSpec model = ToySpec(1, 10);  // uses 0 1 2 0 1, gradients 1 2 0
  UseOrder order(model);
  EXPECT_FALSE(Record(order, {0, 1, 2, 0, 1}, {1, 2, 0}));
  EXPECT_EQ(order.late(), 0);
}

TEST(UseOrderTest, WhatAStepDoesOtherwiseIsCountedOnceAndPlannedFromThenOn) {
  UseOrder order(ToySpec(1, 10));
  const auto planned = Record(order, {1, 0, 2, 0, 1}, {2, 1, 0});
  ASSERT_TRUE(planned);
  EXPECT_EQ(ModulesOf(planned->uses), (std::vector<uint32_t>{1, 0, 2, 0, 1}));
  EXPECT_EQ(planned->gradients, (std::vector{ModuleId{2}, ModuleId{1}, ModuleId{0}}));
  EXPECT_TRUE(planned->uses[4].backward) << "the second use of a module";
  const uint64_t late = order.late();
  EXPECT_GT(late, 0);
  EXPECT_FALSE(Record(order, {1, 0, 2, 0, 1}, {2, 1, 0}));
  EXPECT_EQ(order.late(), late);
}

TEST(UseOrderTest, AnotherOrderOfGradientsAloneIsPlannedToo) {
  UseOrder order(ToySpec(1, 10));
  ASSERT_TRUE(Record(order, {0, 1, 2, 0, 1}, {2, 1, 0}));
  EXPECT_EQ(order.late(), 0);
}

TEST(UseOrderTest, AModuleWithoutAGradientKeepsAPlaceBehindTheOthers) {
  UseOrder order(ToySpec(1, 10));
  const auto planned = Record(order, {0, 1, 2, 0, 1}, {0, 2});
  ASSERT_TRUE(planned);
  EXPECT_EQ(planned->gradients, (std::vector{ModuleId{0}, ModuleId{2}, ModuleId{1}}));
}

TEST(UseOrderTest, AModuleThatIsLeftOutKeepsAPlaceBehindTheOthersAndNothingIsLate) {
  UseOrder order(ToySpec(1, 10));
  const auto planned = Record(order, {0, 2, 0}, {2, 0});
  ASSERT_TRUE(planned);
  EXPECT_EQ(ModulesOf(planned->uses), (std::vector<uint32_t>{0, 2, 0, 1}));
  const uint64_t late = order.late();
  EXPECT_FALSE(Record(order, {0, 2, 0}, {2, 0}));
  EXPECT_EQ(order.late(), late);
}

TEST(UseOrderTest, AnOrderThatIsNotOneOfTheModelIsRefused) {
  const auto refused = [](const std::function<void(ModelSpec&)>& change) {
    ModelSpec model = ToySpec(1, 10);
    change(model);
    const auto ordered = WithOrder(std::move(model));
    return !ordered.ok() && ordered.error().code == ErrorCode::kInvalidArgument;
  };
  EXPECT_FALSE(refused([](ModelSpec&) {}));
  EXPECT_TRUE(refused([](ModelSpec& model) { model.step.resize(1); }));
  EXPECT_TRUE(refused([](ModelSpec& model) { model.step.push_back({ModuleId{3}, true}); }));
  EXPECT_TRUE(refused([](ModelSpec& model) { model.gradients.pop_back(); }));
  EXPECT_TRUE(refused([](ModelSpec& model) { model.gradients.push_back(ModuleId{0}); }));
}

TEST(UseOrderTest, ATrainedGroupAfterAFrozenOneIsRefused) {
  ModelSpec model = ToySpec(1, 10);
  model.groups = {{.name = "adapter"}, {.name = "base", .frozen = true}};
  EXPECT_TRUE(WithOrder(model).ok());
  std::swap(model.groups[0], model.groups[1]);
  const auto ordered = WithOrder(model);
  ASSERT_FALSE(ordered.ok());
  EXPECT_EQ(ordered.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(ordered.error().message,
            "the group \"adapter\" is trained and comes after \"base\", which is frozen; name "
            "frozen groups last");
}

}  // namespace
}  // namespace penstock::zero
