// Changes of a run's numbers: `penstock train … --resume --change KEY=VALUE`.
//
// A resumed run has the identity of its commit (run/identity/run_identity.h), except for the keys
// that the user asks to change. run.json keeps each change with the step after which it holds. A
// commit records what it was computed with, so a change is permanent once a later step is
// committed; until then a resume without it forgets it.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace penstock::train {

/// What --change asks for.
struct RequestedChange {
  std::string key;    ///< "optimizer.params.lr"
  std::string value;  ///< JSON
};

/// Reads "KEY=VALUE" of each --change. Errors: kInvalidArgument for a text without "=", a value
/// that is not JSON, a key that no run can change (see CanChange) or that another one covers.
Result<std::vector<RequestedChange>> ParseChanges(const std::vector<std::string>& texts);

/// Whether a key is one of the three that set the batch.
bool IsOfBatch(std::string_view key);

/// Whether a run can resume with another value of a key of its configuration: its optimizer's
/// parameters, the scheduler, clipping, a static loss scale or the window of a dynamic one, and the
/// batch. Any other change would make another training, with other weights, moments or rows.
bool CanChange(std::string_view key);

/// Whether `key` is `whole` or lies below it.
bool Covers(std::string_view whole, std::string_view key);

/// Returns the text of a configuration that says what is asked for and nothing else. A value that
/// is an object takes the place of the one before, key by key.
std::vector<std::string> ConfigTexts(const std::vector<RequestedChange>& changes);

/// A change as run.json keeps it.
struct RunChange {
  uint64_t step = 0;  ///< the last step before it
  std::string key;
  std::string before;  ///< JSON; null where the key was not there
  std::string after;

  bool operator==(const RunChange&) const = default;
};

/// Returns what `changes` make of the identity that was committed at `step`, with the other keys of
/// the batch that follow from one of them. Errors: kInvalidArgument for the batch of a run whose
/// batch grows; if the two identities differ in another key, which names all of them, and those
/// of `earlier` that explain it, or if they do not differ in a key of `changes`.
Result<std::vector<RunChange>> AcceptChanges(const std::string& committed, const std::string& now,
                                             std::vector<RequestedChange> changes, uint64_t step,
                                             const std::vector<RunChange>& earlier = {});

/// Returns those of `changes` that the commit of `step` was computed with.
std::vector<RunChange> CommittedChanges(std::vector<RunChange> changes, uint64_t step);

/// "optimizer.params.lr: 0.003 -> 0.0001".
std::string ToText(const RunChange& change);

nlohmann::ordered_json ToJson(const RunChange& change);

}  // namespace penstock::train
