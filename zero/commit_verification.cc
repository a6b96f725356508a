#include "zero/commit_verification.h"

#include <fmt/format.h>

#include <algorithm>

namespace penstock::zero {
namespace {

using config::Config;
using config::VerifyCommits;

/// Bytes of all ranks that every update changes.
struct TrainedBytes {
  double weights = 0;
  double records = 0;

  double total() const { return weights + records; }
};

TrainedBytes TrainedBytesOf(const offload::ModelLayout& model) {
  TrainedBytes bytes;
  for (const offload::ModuleLayout& module : model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const offload::GroupLayout& group = model.group(tensor.group);
      if (group.frozen) continue;
      const double blocks = static_cast<double>(tensor.elements) / kBlockElements;
      for (const offload::Plane& plane : group.planes.all()) {
        const bool weight = plane.role == offload::PlaneRole::kWeight;
        (weight ? bytes.weights : bytes.records) += blocks * static_cast<double>(plane.block.value);
      }
    }
  }
  return bytes;
}

/// Of what steps and commits move on the drive between two commits. A step reads and writes every
/// part that lives there; a commit writes the others. None: no step moves anything.
std::optional<double> ShareOfBytes(const TrainedBytes& bytes, const Config& config) {
  const double on_drive = (config.parameter_home == Tier::kNvme ? bytes.weights : 0) +
                          (config.optimizer_home == Tier::kNvme ? bytes.records : 0);
  if (on_drive == 0) return std::nullopt;
  const double steps = static_cast<double>(config.commit_every_steps);
  return bytes.total() / (2 * on_drive * steps + bytes.total() - on_drive);
}

/// Bytes a second of all drives of a rank. Zero: they take no time.
double ReadSpeed(const Config& config) {
  const auto paths = static_cast<double>(std::max<size_t>(config.nvme_paths.size(), 1));
  if (config.aio.simulate) return 1e9 * config.aio.simulate->read_gbps * paths;
  return config.drive ? 1e9 * config.drive->read_gbps : kAssumedReadSpeed * paths;
}

/// As if the ranks shared a node and its drives.
double ShareOfSeconds(const TrainedBytes& bytes, const Config& config) {
  const double speed = ReadSpeed(config);
  return speed > 0 ? bytes.total() / speed / config.commit_every_seconds : 0;
}

struct Cost {
  bool is_known = true;
  double share = 0;
};

Cost CostOf(const offload::ModelLayout& model, const Config& config) {
  const TrainedBytes bytes = TrainedBytesOf(model);
  Cost cost;
  if (config.commit_every_steps > 0) {
    const std::optional<double> of_bytes = ShareOfBytes(bytes, config);
    cost.is_known = of_bytes.has_value();
    cost.share = of_bytes.value_or(0);
  }
  if (config.commit_every_seconds > 0) {
    cost.share = std::max(cost.share, ShareOfSeconds(bytes, config));
  }
  return cost;
}

constexpr const char* kWhatIsLost =
    "a write that a drive loses is then found when it is read next, when the commit before may be "
    "overwritten already; set penstock.verify_commits to true to have each commit read back";

std::string AutoNotice(const Config& config, const Cost& cost) {
  if (!config.durable) return {};
  const std::string why =
      cost.is_known ? fmt::format(
                          "reading commits back would cost {:.3g} % of the steps between "
                          "two commits, and \"auto\" spends {:.0f} %",
                          100 * cost.share, 100 * kMaxVerificationShare)
                    : "steps move nothing on the drive, so that what reading back would cost of "
                      "them is not known";
  return fmt::format("commits are not verified: {}; {}", why, kWhatIsLost);
}

Bytes ReadOf(const offload::ShardLayout& layout) {
  Bytes read;
  for (const offload::TileId tile : layout.Tiles()) {
    if (!layout.frozen(tile)) read += layout.WeightBytes(tile) + layout.RecordBytes(tile);
  }
  return read;
}

}  // namespace

CommitVerification PlanCommitVerification(const offload::ShardLayout& layout,
                                          const Config& config) {
  CommitVerification plan{.read = ReadOf(layout)};
  const Cost cost = CostOf(layout.model, config);
  if (cost.is_known && cost.share > 0) plan.share = cost.share;
  if (config.verify_commits == VerifyCommits::kAuto) {
    plan.on = config.durable && cost.is_known && cost.share <= kMaxVerificationShare;
    if (!plan.on) plan.notice = AutoNotice(config, cost);
    return plan;
  }
  plan.on = config.verify_commits == VerifyCommits::kOn;
  if (plan.on && !config.durable) {
    plan.notice =
        "penstock.verify_commits with one slot (penstock.durable is false): a damaged commit is "
        "reported when it is made, and there is no commit before it to go back to";
  }
  return plan;
}

}  // namespace penstock::zero
