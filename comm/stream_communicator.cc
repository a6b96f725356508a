#include "comm/stream_communicator.h"

#include <utility>

#include "base/check.h"
#include "comm/job.h"

namespace penstock::comm {

Result<std::unique_ptr<Communicator>> StreamCommunicator::Create(
    device::Device& device, const World& world, std::unique_ptr<Exchanger> exchanger, Job* job,
    ActivityMeter* meter) {
  PENSTOCK_ASSIGN(std::unique_ptr<device::Stream> stream, device.CreateStream("comm"));
  auto* const cpu = dynamic_cast<device::CpuStream*>(stream.get());
  PENSTOCK_CHECK(cpu != nullptr, "a communicator of CPU devices is given {}", device.name());
  static_cast<void>(stream.release());
  return std::unique_ptr<Communicator>(new StreamCommunicator(
      world, std::move(exchanger), job, meter, std::unique_ptr<device::CpuStream>(cpu)));
}

StreamCommunicator::StreamCommunicator(const World& world, std::unique_ptr<Exchanger> exchanger,
                                       Job* job, ActivityMeter* meter,
                                       std::unique_ptr<device::CpuStream> stream)
    : world_(world),
      exchanger_(std::move(exchanger)),
      job_(job),
      meter_(meter),
      stream_(std::move(stream)) {}

StreamCommunicator::~StreamCommunicator() {
  exchanger_->Abort(MakeError(ErrorCode::kCancelled, "its communicator was destroyed"));
}

void StreamCommunicator::AllGather(std::byte* data, Bytes part, const Operation& operation) {
  Enqueue({.collective = Collective::kAllGather,
           .operation = operation,
           .part = part,
           .stride = 0_B,
           .from = data + (world_.rank * part).value,
           .to = data});
}

void StreamCommunicator::AllToAll(const std::byte* from, Bytes stride, std::byte* to, Bytes part,
                                  const Operation& operation) {
  PENSTOCK_CHECK(stride >= part, "{}: parts of {} bytes lie {} bytes apart", operation.what,
                 part.value, stride.value);
  Enqueue({.collective = Collective::kAllToAll,
           .operation = operation,
           .part = part,
           .stride = stride,
           .from = from,
           .to = to});
}

void StreamCommunicator::Enqueue(Exchange exchange) {
  if (job_ != nullptr) job_->Entered(exchange.operation, OperationState::kEnqueued);
  stream_->Name(exchange.operation.what);
  stream_->Transfer([this, exchange = std::move(exchange)] { return Run(exchange); });
}

Status StreamCommunicator::Run(const Exchange& exchange) {
  if (job_ != nullptr) job_->Entered(exchange.operation, OperationState::kBegun);
  const ActivityScope scope(meter_, Lane::kRanks);
  PENSTOCK_TRY(exchanger_->Run(exchange));
  if (job_ != nullptr) job_->Entered(exchange.operation, OperationState::kEnded);
  return {};
}

}  // namespace penstock::comm
