#include "zero/plan/commit_verification.h"

#include <fmt/format.h>

#include <algorithm>

#include "offload/tile_spread.h"

namespace penstock::zero {
namespace {

using config::Config;
using config::VerifyCommits;
using offload::TileStoreOptions;

/// Bytes of this rank that every update changes.
struct TrainedBytes {
  Bytes all;
  Bytes on_drive;  ///< the part of these that lives on the drive, so that steps read and write it
};

TrainedBytes TrainedBytesOf(const offload::ShardLayout& layout, const TileStoreOptions& store) {
  TrainedBytes bytes;
  const std::vector<offload::TileId> tiles = offload::HostTileOrder(layout);
  for (size_t i = 0; i < tiles.size(); ++i) {
    if (layout.frozen(tiles[i])) continue;
    const Bytes weight = layout.WeightBytes(tiles[i]);
    const Bytes record = layout.RecordBytes(tiles[i]);
    bytes.all += weight + record;
    if (i < store.host_tiles) continue;
    if (store.weight_home == Tier::kNvme) bytes.on_drive += weight;
    if (store.record_home == Tier::kNvme) bytes.on_drive += record;
  }
  return bytes;
}

/// Of what steps and commits move on the drive between two commits. A step reads and writes every
/// part that lives there; a commit writes the others.
double ShareOfBytes(const TrainedBytes& bytes, const Config& config) {
  if (bytes.all == 0_B) return 0;
  if (bytes.on_drive == 0_B) return kUnknownCost;
  const auto all = static_cast<double>(bytes.all.value);
  const auto on_drive = static_cast<double>(bytes.on_drive.value);
  return all / (2 * on_drive * static_cast<double>(config.commit_every_steps) + all - on_drive);
}

/// Bytes of all ranks that every update changes.
double TrainedBytesOfModel(const offload::ModelLayout& model) {
  double bytes = 0;
  for (const offload::ModuleLayout& module : model.modules) {
    for (const offload::TensorLayout& tensor : module.tensors) {
      const offload::GroupLayout& group = model.group(tensor.group);
      if (group.frozen) continue;
      const double blocks = static_cast<double>(tensor.elements) / kBlockElements;
      for (const offload::Plane& plane : group.planes.all()) {
        bytes += blocks * static_cast<double>(plane.block.value);
      }
    }
  }
  return bytes;
}

/// Bytes a second of all drives of a rank. Zero: they take no time.
double ReadSpeed(const Config& config) {
  const auto paths = static_cast<double>(std::max<size_t>(config.nvme_paths.size(), 1));
  if (config.aio.simulate) return 1e9 * config.aio.simulate->read_gbps * paths;
  return config.drive ? 1e9 * config.drive->read_gbps : kAssumedReadSpeed * paths;
}

/// As if the ranks shared a node and its drives.
double ShareOfSeconds(const offload::ModelLayout& model, const Config& config) {
  const double speed = ReadSpeed(config);
  return speed > 0 ? TrainedBytesOfModel(model) / speed / config.commit_every_seconds : 0;
}

double CostOf(const offload::ShardLayout& layout, const Config& config, const TrainedBytes& bytes) {
  double cost = 0;
  if (config.commit_every_steps > 0) cost = ShareOfBytes(bytes, config);
  if (config.commit_every_seconds > 0) cost = std::max(cost, ShareOfSeconds(layout.model, config));
  return cost;
}

constexpr const char* kWhatIsLost =
    "a write that a drive loses is then found when it is read next, when the commit before may be "
    "overwritten already; set penstock.verify_commits to true to have each commit read back";

std::string AutoNotice(double cost) {
  const std::string why =
      cost == kUnknownCost
          ? "steps move nothing on the drive, so that what reading back would cost of them is not "
            "known"
          : fmt::format(
                "reading commits back would cost {:.3g} % of the steps between two commits, and "
                "\"auto\" spends {:.0f} %",
                100 * cost, 100 * kMaxVerificationShare);
  return fmt::format("commits are not verified: {}; {}", why, kWhatIsLost);
}

}  // namespace

void DecideByCost(double cost, const Config& config, CommitVerification& plan) {
  plan.cost = cost;
  plan.notice.clear();
  if (config.verify_commits == VerifyCommits::kAuto) {
    plan.on = config.durable && cost <= kMaxVerificationShare;
    if (config.durable && !plan.on) plan.notice = AutoNotice(cost);
    return;
  }
  plan.on = config.verify_commits == VerifyCommits::kOn;
  if (plan.on && !config.durable) {
    plan.notice =
        "penstock.verify_commits with one slot (penstock.durable is false): a damaged commit is "
        "reported when it is made, and there is no commit before it to go back to";
  }
}

CommitVerification PlanCommitVerification(const offload::ShardLayout& layout, const Config& config,
                                          const TileStoreOptions& store) {
  const TrainedBytes bytes = TrainedBytesOf(layout, store);
  CommitVerification plan{.read = bytes.all};
  DecideByCost(CostOf(layout, config, bytes), config, plan);
  return plan;
}

}  // namespace penstock::zero
