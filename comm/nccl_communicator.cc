#include "comm/nccl_communicator.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "comm/job.h"

namespace penstock::comm {
namespace {

/// What NCCL may occupy of the GPU's multiprocessors, and with them of its memory.
constexpr int kMaxBlocks = 16;
/// Parts of the operations that make NCCL take its memory: it chooses by size how it moves them.
constexpr Bytes kWarmUpParts[] = {256_B, 64_KiB, 4_MiB};

std::string BytesOf(const ncclUniqueId& id) { return {id.internal, sizeof(id.internal)}; }

}  // namespace

Result<std::unique_ptr<Communicator>> NcclCommunicator::Create(const NcclLibrary& nccl, Job& job,
                                                               device::Device& device,
                                                               ActivityMeter* meter) {
  PENSTOCK_ASSIGN(std::unique_ptr<device::Stream> made, device.CreateStream("comm"));
  auto* const cuda = dynamic_cast<device::CudaStream*>(made.get());
  PENSTOCK_CHECK(cuda != nullptr, "a communicator of CUDA devices is given {}", device.name());
  static_cast<void>(made.release());
  std::unique_ptr<NcclCommunicator> communicator(
      new NcclCommunicator(nccl, job, meter, std::unique_ptr<device::CudaStream>(cuda)));

  ncclUniqueId id{};
  Status status;
  if (job.world().rank == 0) {
    status = communicator->StatusOf(nccl.get_unique_id(&id), "making an id");
  }
  PENSTOCK_TRY(job.Agree(status));
  PENSTOCK_ASSIGN(const std::vector<std::string> ids, job.Gather(BytesOf(id)));
  PENSTOCK_ASSIGN(const Bytes free_before, device::FreeCudaMemory());
  status = communicator->Connect(ids[0]);
  if (status.ok()) status = communicator->WarmUp(device);
  if (!status.ok()) {
    job.Fail(status.error());
    return status.error();
  }
  PENSTOCK_ASSIGN(const Bytes free_after, device::FreeCudaMemory());
  communicator->device_bytes_ = free_before - std::min(free_after, free_before);
  return std::unique_ptr<Communicator>(std::move(communicator));
}

NcclCommunicator::NcclCommunicator(const NcclLibrary& nccl, Job& job, ActivityMeter* meter,
                                   std::unique_ptr<device::CudaStream> stream)
    : nccl_(nccl), job_(job), meter_(meter), world_(job.world()), stream_(std::move(stream)) {}

NcclCommunicator::~NcclCommunicator() {
  // Nothing may be enqueued on a communicator that is being destroyed.
  stream_.reset();
  if (communicator_ != nullptr) static_cast<void>(nccl_.comm_destroy(communicator_));
}

Status NcclCommunicator::Connect(const std::string& id) {
  ncclUniqueId unique{};
  PENSTOCK_CHECK(id.size() == sizeof(unique.internal), "an id of NCCL has {} bytes", id.size());
  std::copy(id.begin(), id.end(), unique.internal);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 1;
  config.maxCTAs = kMaxBlocks;
  return StatusOf(nccl_.comm_init_rank_config(&communicator_, static_cast<int>(world_.size), unique,
                                              static_cast<int>(world_.rank), &config),
                  "connecting the ranks");
}

Status NcclCommunicator::WarmUp(device::Device& device) {
  const Bytes free = device.limit() - device.used();
  // Max bytes for both sides of an exchange, which are rounded up.
  const Bytes most{free / (2 * world_.size * device::kDeviceAlignment) *
                   device::kDeviceAlignment.value};
  for (const Bytes wanted : kWarmUpParts) {
    const Bytes part = std::min(wanted, most);
    PENSTOCK_ASSIGN(const device::DeviceBuffer from,
                    device.Allocate(world_.size * part, "the first exchange"));
    PENSTOCK_ASSIGN(const device::DeviceBuffer to,
                    device.Allocate(world_.size * part, "the first exchange"));
    stream_->Zero(from.data(), from.size());
    stream_->Transfer([&](CUstream_st* stream) -> Status {
      PENSTOCK_TRY(GatherOn(stream, from.data(), part));
      return ExchangeOn(stream, from.data(), part, to.data(), part);
    });
    PENSTOCK_TRY(stream_->Synchronize());
  }
  return {};
}

void NcclCommunicator::Abort(const Error& why) {
  MutexLock lock(mutex_);
  if (!aborted_) aborted_ = why;
}

Status NcclCommunicator::Usable() {
  {
    MutexLock lock(mutex_);
    if (aborted_) return *aborted_;
  }
  ncclResult_t found = ncclSuccess;
  PENSTOCK_TRY(StatusOf(nccl_.comm_get_async_error(communicator_, &found), "asking for errors"));
  return StatusOf(found, "an operation");
}

Status NcclCommunicator::StatusOf(ncclResult_t result, const char* doing) {
  if (result == ncclSuccess) return {};
  return MakeError(ErrorCode::kUnavailable, "nccl: {}: {} ({})", doing,
                   nccl_.get_error_string(result), nccl_.get_last_error(communicator_));
}

template <typename Enqueue>
void NcclCommunicator::Transfer(const Operation& operation, Enqueue enqueue) {
  job_.Entered(operation, OperationState::kEnqueued);
  stream_->Name(operation.what);
  stream_->Call([this, operation] {
    job_.Entered(operation, OperationState::kBegun);
    if (meter_ != nullptr) meter_->Begin(Lane::kRanks);
  });
  bool enqueued = false;
  stream_->Transfer([&](CUstream_st* stream) -> Status {
    PENSTOCK_TRY(Usable());
    PENSTOCK_TRY(enqueue(stream));
    enqueued = true;
    return {};
  });
  stream_->Call([this, operation, enqueued] {
    if (meter_ != nullptr) meter_->End(Lane::kRanks);
    // What is not with NCCL does not end.
    if (enqueued) job_.Entered(operation, OperationState::kEnded);
  });
}

void NcclCommunicator::AllGather(std::byte* data, Bytes part, const Operation& operation) {
  Transfer(operation, [&](CUstream_st* stream) { return GatherOn(stream, data, part); });
}

void NcclCommunicator::AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                                const Operation& operation) {
  PENSTOCK_CHECK(stride >= part, "{}: parts of {} bytes lie {} bytes apart", operation.what,
                 part.value, stride.value);
  Transfer(operation,
           [&](CUstream_st* stream) { return ExchangeOn(stream, from, stride, to, part); });
}

Status NcclCommunicator::GatherOn(CUstream_st* stream, std::byte* data, Bytes part) {
  if (part == 0_B) return {};
  return StatusOf(nccl_.all_gather(data + (world_.rank * part).value, data, part.value, ncclUint8,
                                   communicator_, stream),
                  "an all-gather");
}

Status NcclCommunicator::ExchangeOn(CUstream_st* stream, const std::byte* from, Bytes stride,
                                    std::byte* to, Bytes part) {
  if (part == 0_B) return {};
  PENSTOCK_TRY(StatusOf(nccl_.group_start(), "beginning an exchange"));
  Status status;
  for (uint32_t rank = 0; rank < world_.size && status.ok(); ++rank) {
    const int peer = static_cast<int>(rank);
    status = StatusOf(nccl_.send(from + (rank * stride).value, part.value, ncclUint8, peer,
                                 communicator_, stream),
                      "a part of an exchange");
    if (!status.ok()) break;
    status = StatusOf(
        nccl_.recv(to + (rank * part).value, part.value, ncclUint8, peer, communicator_, stream),
        "a part of an exchange");
  }
  const Status ended = StatusOf(nccl_.group_end(), "an exchange");
  return status.ok() ? ended : status;
}

}  // namespace penstock::comm
