// `penstock inspect`: what a run has committed, and whether all of it is as it was written.
#include <fmt/format.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "train/cli_commands.h"
#include "train/metrics.h"
#include "train/run_folder.h"
#include "train/status_line.h"
#include "zero/engine.h"

namespace penstock::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Lines of a name and a value.
class Lines {
 public:
  template <typename T>
  void Add(const char* name, const T& value) {
    text_ += fmt::format("{:<18}{}\n", name, value);
  }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

Bytes SizeOfFile(const std::string& path) {
  std::error_code error;
  const uint64_t size = std::filesystem::file_size(path, error);
  return Bytes{error ? 0 : size};
}

void AddFiles(const RunInfo& info, const std::vector<double>& shares, Lines& lines) {
  for (size_t i = 0; i < shares.size(); ++i) {
    const std::string& path = info.state.paths[i];
    const std::string share =
        shares.size() == 1 ? "" : fmt::format(" ({:.1f} % of the state)", 100 * shares[i]);
    lines.Add("state file", path + share);
    lines.Add("size", ToString(SizeOfFile(path)));
  }
  for (const StateFiles& state : info.leftovers) {
    for (const std::string& path : state.paths) {
      lines.Add("left over", path + " (of a move that was cut off; --resume or clean removes it)");
    }
  }
}

void AddState(const zero::CommittedState& state, Lines& lines) {
  const zero::TrainState& train = state.train_state();
  const offload::Layout& layout = state.layout();
  lines.Add("committed step", train.step);
  lines.Add("optimizer steps", train.optimizer_steps);
  lines.Add("seed", train.seed);
  lines.Add("parameters", layout.parameters);
  lines.Add("weights", fmt::format("{}, {}", ToString(layout.dtype),
                                   ToString(layout.WeightBytes(layout.elements()))));
  lines.Add("optimizer states", ToString(layout.RecordBytes(layout.elements())));
  lines.Add("modules", layout.modules.size());
  lines.Add("tiles",
            fmt::format("{} of at most {} elements", layout.tiles.size(), layout.tile_elements));
  lines.Add("slots", state.durable() ? "2 (durable)" : "1 (not durable)");
}

/// "1.50 GiB/ 12.0 GiB" on a terminal, at most ten times a second.
offload::CheckProgress ShowProgress(StatusLine* line) {
  if (::isatty(STDERR_FILENO) == 0) return [](Bytes, Bytes) {};
  return [line, last = Clock::time_point()](Bytes done, Bytes total) mutable {
    if (Clock::now() - last < std::chrono::milliseconds(100)) return;
    last = Clock::now();
    line->Show(fmt::format("verified {} of {}", ToString(done), ToString(total)));
  };
}

Status Intact(const std::string& run, const std::vector<std::string>& damages) {
  if (damages.empty()) return {};
  return MakeError(ErrorCode::kCorruption,
                   "{}: {} of what its commit needs {} damaged; the first: {}", run, damages.size(),
                   damages.size() == 1 ? "is" : "are", damages.front());
}

}  // namespace

Result<InspectOutcome> RunInspect(const InspectCommand& command) {
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(command.run));
  PENSTOCK_ASSIGN(const std::unique_ptr<zero::CommittedState> state,
                  zero::CommittedState::Open(info.state.paths));
  StatusLine line(stderr, true);
  const Clock::time_point start = Clock::now();
  PENSTOCK_ASSIGN(const offload::StateCheck check, state->Check(ShowProgress(&line)));
  const double seconds = std::max(ToSeconds(Clock::now() - start), 1e-9);
  line.Finish();

  Lines lines;
  AddFiles(info, state->Shares(), lines);
  lines.Add("uuid", info.state.uuid);
  AddState(*state, lines);
  lines.Add("data", fmt::format("{} ({}, sequence length {})", info.data_path, info.data_order,
                                info.sequence_length));
  lines.Add("read", fmt::format("{} at {:.2f} GB/s", ToString(check.read),
                                static_cast<double>(check.read.value) / seconds / 1e9));
  for (const std::string& damage : check.damages) lines.Add("damaged", damage);
  if (check.damages.empty()) lines.Add("checksums", "all verified");
  return InspectOutcome{.text = lines.Take(), .intact = Intact(command.run, check.damages)};
}

}  // namespace penstock::train
