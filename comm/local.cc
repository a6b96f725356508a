// CreateLocal: the ranks of a process, which meet in its memory.
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/communicator.h"
#include "comm/meeting.h"
#include "comm/stream_communicator.h"

namespace penstock::comm {
namespace {

class LocalExchanger final : public Exchanger {
 public:
  LocalExchanger(std::shared_ptr<Meeting> meeting, uint32_t rank)
      : meeting_(std::move(meeting)), rank_(rank) {}

  Status Run(const Exchange& exchange) override { return meeting_->Run(rank_, exchange); }
  void Abort(const Error& why) override { meeting_->Leave(rank_, why); }

 private:
  const std::shared_ptr<Meeting> meeting_;
  const uint32_t rank_;
};

}  // namespace

Result<std::vector<std::unique_ptr<Communicator>>> CreateLocal(
    std::span<device::Device* const> devices, std::optional<LinkSpeed> link) {
  PENSTOCK_CHECK(!devices.empty(), "a world without ranks");
  const auto ranks = static_cast<uint32_t>(devices.size());
  const auto meeting = std::make_shared<Meeting>(ranks, link);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (uint32_t rank = 0; rank < ranks; ++rank) {
    const World world{.size = ranks, .rank = rank, .local_size = ranks, .local_rank = rank};
    PENSTOCK_ASSIGN(
        std::unique_ptr<Communicator> communicator,
        StreamCommunicator::Create(*devices[rank], world,
                                   std::make_unique<LocalExchanger>(meeting, rank), nullptr));
    communicators.push_back(std::move(communicator));
  }
  return communicators;
}

}  // namespace penstock::comm
