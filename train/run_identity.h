// What a run's numbers depend on, so that a resumed run is the same run or says why it is not.
//
// Budgets, placement, tile size, paths, engine, queue depth and the number of steps are not in it:
// they change no bit.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/data.h"
#include "train/model_config.h"
#include "zero/config.h"

namespace penstock::train {

struct RunIdentity {
  Gpt2Config model;
  uint64_t data_fingerprint = 0;
  DataOrder data_order = DataOrder::kShuffle;
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
  zero::Config config;     ///< batch, dtype, clipping, optimizer, scheduler, compute threads
  std::string arithmetic;  ///< of the operators: device and instruction set
};

/// A JSON object, for the commits.
std::string ToJson(const RunIdentity& identity);

/// Whether a value can be such an object; a commit is a file that anything may have been put into.
bool IsIdentity(const nlohmann::json& value);

/// What differs between two such objects, one phrase a key: "optimizer.params.lr is 0.002, was
/// 0.001". Without the arithmetic, which another machine cannot help.
std::vector<std::string> Differences(const std::string& committed, const std::string& now);
/// The part of an identity that run.json says too, as text where that may be anything.
struct RunDescription {
  Gpt2Config model;
  std::string data_order;
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
};
/// The same for what run.json says now.
std::vector<std::string> DifferencesFromRun(const std::string& committed,
                                            const RunDescription& now);
/// The arithmetic of one.
std::string ArithmeticOf(const std::string& identity);

}  // namespace penstock::train
