// The communicator of a CUDA device: NCCL's operations, enqueued on a stream of the device.
//
// NCCL does not compare calls between ranks, does not notice that a rank has ended, and cannot be
// interrupted: its own abort is known to hang. So Abort ends later operations, and running ones
// wait until the job ends the process.
#pragma once

#include <memory>
#include <optional>

#include "base/mutex.h"
#include "comm/communicator.h"
#include "comm/nccl_library.h"

namespace penstock::comm {

class NcclCommunicator final : public Communicator {
 public:
  /// Collective. Runs both operations, so that all memory that NCCL wants is taken. Errors:
  /// kUnavailable if NCCL fails. Ranks that have begun with NCCL wait then until the job ends them.
  static Result<std::unique_ptr<Communicator>> Create(const NcclLibrary& nccl, Job& job,
                                                      device::Device& device,
                                                      ActivityMeter* meter = nullptr);
  ~NcclCommunicator() override;
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  const World& world() const override { return world_; }
  device::Stream& stream() override { return *stream_; }
  void AllGather(std::byte* data, Bytes part, const Operation& operation) override;
  void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                const Operation& operation) override;
  void Abort(const Error& why) override EXCLUDES(mutex_);
  Bytes device_bytes() const override { return device_bytes_; }

 private:
  NcclCommunicator(const NcclLibrary& nccl, Job& job, ActivityMeter* meter,
                   std::unique_ptr<device::CudaStream> stream);
  Status Connect(const std::string& id);
  Status WarmUp(device::Device& device);
  /// Calls `enqueue` with the stream, unless the communicator has failed. Notifies job and meter.
  template <typename Enqueue>
  void Transfer(const Operation& operation, Enqueue enqueue) EXCLUDES(mutex_);
  Status GatherOn(CUstream_st* stream, std::byte* data, Bytes part);
  Status ExchangeOn(CUstream_st* stream, const std::byte* from, Bytes stride, std::byte* to,
                    Bytes part);
  Status StatusOf(ncclResult_t result, const char* doing);
  /// Ok, or why nothing may be enqueued: an abort, or a failure that NCCL found meanwhile.
  Status Usable() EXCLUDES(mutex_);

  const NcclLibrary nccl_;
  Job& job_;
  ActivityMeter* const meter_;
  const World world_;
  ncclComm_t communicator_ = nullptr;
  Bytes device_bytes_;

  Mutex mutex_;
  std::optional<Error> aborted_ GUARDED_BY(mutex_);

  std::unique_ptr<device::CudaStream> stream_;  ///< last: its work uses the others
};

}  // namespace penstock::comm
