// A training of the C interface whose steps report their loss, in a run.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "tests/front/c_run.h"
#include "tests/front/c_training.h"

namespace penstock::front {

inline constexpr double kNotFinite = std::numeric_limits<double>::quiet_NaN();

inline std::vector<json> LinesOf(const std::string& path) {
  std::vector<json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

inline std::string TextOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

/// A training in a run, of which steps report their loss.
class RowTraining {
 public:
  RowTraining(const json& options, const Home& home, const std::string& drive,
              const json& more = json::object(), const json& changes = json::object())
      : run(options), training(run.Create(home, drive, more, changes), "bf16") {
    if (engine() == nullptr || training.engine().Describe()["step"] != 0) return;
    training.Fill();
  }
  penstock_engine* engine() { return training.engine().handle; }
  int End(penstock_outcome* outcome, double lr) {
    const penstock_group groups[] = {{lr, 0.9, 0.99, 1e-8, 0.1}, {3e-2, 0.8, 0.95, 1e-6, 0}};
    return penstock_end_step(engine(), groups, 2, 0, 1, outcome);
  }
  penstock_outcome Step(std::optional<double> loss, double lr = 1e-2) {
    penstock_outcome outcome{};
    training.ForwardAndBackward(0);
    if (loss) {
      EXPECT_EQ(penstock_report_loss(engine(), *loss), PENSTOCK_OK) << penstock_error();
    }
    EXPECT_EQ(End(&outcome, lr), PENSTOCK_OK) << penstock_error();
    return outcome;
  }
  void Commit() {
    ASSERT_EQ(front::CommitWith(engine(), json::object()), PENSTOCK_OK) << penstock_error();
  }
  void Snapshot(const std::string& name) {
    char* folder = nullptr;
    ASSERT_EQ(penstock_snapshot(engine(), name.c_str(), &folder), PENSTOCK_OK) << penstock_error();
    penstock_free(folder);
  }
  std::vector<std::string> Notices() { return training.engine().Text(penstock_step_notices); }

  CRun run;
  CTraining training;
};

}  // namespace penstock::front
