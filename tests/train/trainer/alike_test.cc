#include "train/trainer/alike.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::train {
namespace {

std::string ValueOf(const NamedValues& values, const std::string& key) {
  const auto found = std::ranges::find(values, key, &NamedValues::value_type::first);
  return found == values.end() ? "not compared" : found->second;
}

TEST(ValuesToBeAlike, AreWhatChangesTheNumbersOrTheState) {
  config::Config config;
  config.aio.simulate.emplace();
  const NamedValues values = ValuesToBeAlike(R"({"seed": 5, "arithmetic": "AVX2"})", config, 12);
  EXPECT_EQ(ValueOf(values, "seed"), "5");
  EXPECT_EQ(ValueOf(values, "--steps"), "12");
  EXPECT_NE(ValueOf(values, "penstock.compute_threads"), "not compared");
  EXPECT_NE(ValueOf(values, "penstock.aio.simulate.read_gbps"), "not compared");
}

TEST(ValuesToBeAlike, LeaveToEachRankWhereAndHowItKeepsItsPart) {
  config::Config config;
  config.nvme_paths = {"/somewhere"};
  const NamedValues values = ValuesToBeAlike(R"({"arithmetic": "AVX2"})", config, 12);
  for (const char* key : {"arithmetic", "penstock.aio.engine", "penstock.device_memory",
                          "penstock.host_memory", "penstock.optimizer_threads", "aio.block_size",
                          "zero_optimization.offload_param.nvme_path"}) {
    EXPECT_EQ(ValueOf(values, key), "not compared") << key;
  }
}

TEST(RecogniseWeights, OtherWeightsAtEitherEndOfATensorHaveAnotherText) {
  const zero::ModelSpec model{
      .modules = {{.name = "a",
                   .tensors = {{.name = "w", .shape = {40, 5}}, {.name = "b", .shape = {3}}}}}};
  const auto text_with = [&](size_t changed_tensor, uint64_t changed_element) {
    return RecogniseWeights(
               model,
               [=](zero::ModuleId, size_t tensor, uint64_t begin, std::span<float> values) {
                 for (size_t i = 0; i < values.size(); ++i) {
                   const bool changed = tensor == changed_tensor && begin + i == changed_element;
                   values[i] = changed ? 1.0F : 0.0F;
                 }
                 return Status();
               })
        .value();
  };
  const std::string same = text_with(9, 0);
  EXPECT_EQ(text_with(9, 1), same);
  for (const auto& [tensor, element] : {std::pair{0, 0}, {0, 63}, {0, 199}, {1, 0}, {1, 2}}) {
    EXPECT_NE(text_with(tensor, element), same) << tensor << ", " << element;
  }
}

/// A job of three ranks as rank 0 sees it, of which another one has `other`.
class ThreeRanks final : public comm::Job {
 public:
  explicit ThreeRanks(std::vector<std::string> other_texts) : others_(std::move(other_texts)) {}

  const comm::World& world() const override { return world_; }
  const std::vector<std::string>& hosts() const override { return hosts_; }
  const std::string& address() const override { return hosts_.front(); }
  void SetTimeouts(const comm::Timeouts&) override {}
  Status Agree(const Status& mine) override { return mine; }
  Result<std::vector<std::string>> Gather(std::string mine) override {
    sent.push_back(mine);
    std::vector<std::string> all = {mine, mine, mine};
    if (sent.size() <= others_.size()) all[2] = others_[sent.size() - 1];
    return all;
  }
  Status Vote(uint64_t, uint64_t) override { return {}; }
  void Doing(std::string_view) override {}
  void Progressed() override {}
  void Entered(const comm::Operation&, comm::OperationState) override {}
  void Fail(const Error&) override {}
  Status status() const override { return {}; }
  bool ended_agreed() const override { return false; }
  Status Finish() override { return {}; }

  std::vector<std::string> sent;

 private:
  const comm::World world_{.size = 3, .rank = 0};
  const std::vector<std::string> hosts_ = {"a", "b", "c"};
  const std::vector<std::string> others_;
};

TEST(CheckAlike, SendsAHashWhereRanksAreAlikeAndTheValuesOnlyWhereTheyAreNot) {
  const NamedValues mine = {{"seed", std::string(5000, '1')}, {"--steps", "3"}};
  ThreeRanks alike({});
  EXPECT_TRUE(CheckAlike(alike, mine).ok());
  ASSERT_EQ(alike.sent.size(), 1U);
  EXPECT_EQ(alike.sent.front().size(), 16U);

  ThreeRanks different({"another hash", R"([["seed", "2"], ["--steps", "3"]])"});
  const Status status = CheckAlike(different, {{"seed", "1"}, {"--steps", "3"}});
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(status.error().message,
            "seed differs between ranks: 2 on rank 2 (host c), 1 on rank 0 (host a); start all "
            "ranks alike");
  EXPECT_EQ(different.sent.size(), 2U);
}

TEST(RecogniseWeights, AnErrorOfTheSourceIsReturned) {
  const zero::ModelSpec model{.modules = {{.name = "a", .tensors = {{.name = "w", .shape = {2}}}}}};
  const auto fails = [](zero::ModuleId, size_t, uint64_t, std::span<float>) {
    return Status(Error{ErrorCode::kIo, "unreadable"});
  };
  EXPECT_EQ(RecogniseWeights(model, fails).error().message, "unreadable");
}

}  // namespace
}  // namespace penstock::train
