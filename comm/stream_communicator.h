// The communicator of a CPU device: a stream of the device, on whose thread an exchanger executes
// one operation after the other.
#pragma once

#include <memory>

#include "comm/communicator.h"
#include "comm/exchanger.h"

namespace penstock::comm {

class StreamCommunicator final : public Communicator {
 public:
  /// Owns the exchanger. `job` and `meter`, if any, are notified of every operation. Errors:
  /// kUnavailable if there is no thread for the stream.
  static Result<std::unique_ptr<Communicator>> Create(device::Device& device, const World& world,
                                                      std::unique_ptr<Exchanger> exchanger,
                                                      Job* job, ActivityMeter* meter = nullptr);
  ~StreamCommunicator() override;
  StreamCommunicator(const StreamCommunicator&) = delete;
  StreamCommunicator& operator=(const StreamCommunicator&) = delete;

  const World& world() const override { return world_; }
  device::Stream& stream() override { return *stream_; }
  void AllGather(std::byte* data, Bytes part, const Operation& operation) override;
  void AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                const Operation& operation) override;
  void Abort(const Error& why) override { exchanger_->Abort(why); }
  Bytes device_bytes() const override { return 0_B; }

 private:
  StreamCommunicator(const World& world, std::unique_ptr<Exchanger> exchanger, Job* job,
                     ActivityMeter* meter, std::unique_ptr<device::CpuStream> stream);
  void Enqueue(Exchange exchange);
  Status Run(const Exchange& exchange);

  const World world_;
  const std::unique_ptr<Exchanger> exchanger_;
  Job* const job_;
  ActivityMeter* const meter_;
  const std::unique_ptr<device::CpuStream> stream_;  ///< last: its work uses the others
};

}  // namespace penstock::comm
