// The identity of a run is everything on which its numbers depend. A resumed run has the same
// identity, or is refused with the differences.
//
// Budgets, placement, tile size, paths, engine, queue depth and the number of steps are not part of
// it, because they change no bit.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "config/config.h"

namespace penstock::train {

struct RunIdentity {
  std::string model = "{}";  ///< ModelDescription::Identity
  uint64_t data_fingerprint = 0;
  std::string data_order;  ///< "shuffle", "sequential"
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
  config::Config config;   ///< batch, dtype, clipping, optimizer, scheduler, compute threads
  uint64_t ranks = 1;      ///< share the global batch; any number gives the same results
  std::string arithmetic;  ///< of the operators: device and instruction set
};

/// Returns the identity as a JSON object, for commits.
std::string ToJson(const RunIdentity& identity);

/// Whether a value can be such an object. A commit comes from a file, which may hold anything.
bool IsIdentity(const nlohmann::json& value);

/// Whether the batch of that run grows (penstock.rampup_batch_size). `identity`: see IsIdentity.
bool HasRampup(const nlohmann::json& identity);

/// A key in which two such objects differ.
struct KeyDifference {
  std::string key;     ///< "optimizer.params.lr"
  std::string before;  ///< JSON; empty where the key is not there
  std::string after;
};
/// "optimizer.params.lr is 0.002, was 0.001".
std::string ToText(const KeyDifference& difference);

/// Returns what differs between two such objects. The arithmetic is left out, because another
/// machine cannot have the same.
std::vector<KeyDifference> KeyDifferences(const std::string& committed, const std::string& now);
/// The same as texts.
std::vector<std::string> Differences(const std::string& committed, const std::string& now);
/// The part of an identity that run.json has as well, as text where run.json may hold anything.
struct RunDescription {
  std::string model = "{}";  ///< ModelDescription::Identity
  std::string data_order;
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
};
/// The same for the current run.json.
std::vector<std::string> DifferencesFromRun(const std::string& committed,
                                            const RunDescription& now);
/// Returns the global batch of an identity, in samples; of a batch that grows, the last one.
uint64_t BatchOf(const std::string& identity);
/// Returns the arithmetic of an identity.
std::string ArithmeticOf(const std::string& identity);

}  // namespace penstock::train
