#include "comm/gloo_exchanger.h"

#include <chrono>
#include <cstring>
#include <new>
#include <utility>

#include "base/exception_name.h"

namespace penstock::comm {
namespace {

// The numbers under which messages go. Those of data have the top bit.
constexpr uint64_t kCall = 1;
constexpr uint64_t kReceipt = 2;
constexpr uint64_t kFarewell = 3;

/// Gloo wants a time-out, and ends all connections when it passes. A rank may be late by hours.
constexpr auto kForEver = std::chrono::hours(24 * 365);
/// What a rank that ends gives the others to take its last words.
constexpr auto kFarewellTimeout = std::chrono::milliseconds(300);

constexpr Bytes kNoteSize{sizeof(GlooNote)};

/// Thrown where an abort ends a wait.
struct Aborted {};

constexpr const char* kConnectionEnded = "its connection ended";

void AwaitReceived(GlooMesh::Buffer& buffer) {
  if (!buffer.waitRecv(nullptr, kForEver)) throw Aborted();
}
void AwaitSent(GlooMesh::Buffer& buffer) { buffer.waitSend(nullptr, kForEver); }

/// Gloo's buffers are for both directions.
void* ToSend(const std::byte* data) { return const_cast<std::byte*>(data); }

}  // namespace

Result<std::unique_ptr<GlooExchanger>> GlooExchanger::Create(std::unique_ptr<GlooMesh> mesh) {
  std::unique_ptr<GlooExchanger> exchanger(new GlooExchanger(std::move(mesh)));
  PENSTOCK_TRY(exchanger->MakePeers());
  return exchanger;
}

Status GlooExchanger::MakePeers() {
  for (uint32_t rank = 0; rank < mesh_->size(); ++rank) {
    if (rank == mesh_->rank()) continue;
    auto peer = std::make_unique<Peer>();
    peer->rank = rank;
    peer->call_from = mesh_->NewBuffer(&peer->call, kNoteSize);
    peer->call_to = mesh_->NewBuffer(&call_, kNoteSize);
    peer->receipt_from = mesh_->NewBuffer(&peer->receipt, 1_B);
    peer->receipt_to = mesh_->NewBuffer(&peer->receipt, 1_B);
    peer->farewell_from = mesh_->NewBuffer(&peer->farewell, kNoteSize);
    peer->farewell_to = mesh_->NewBuffer(&farewell_, kNoteSize);
    try {
      peer->farewell_from->recv(static_cast<int>(rank), kFarewell);
    } catch (const std::exception&) {
      return MakeError(ErrorCode::kUnavailable, "gloo: rank {} has ended: {}", rank,
                       kConnectionEnded);
    }
    peers_.push_back(std::move(peer));
  }
  return {};
}

GlooExchanger::~GlooExchanger() {
  Abort(MakeError(ErrorCode::kCancelled, "its communicator was destroyed"));
}

Status GlooExchanger::Run(const Exchange& exchange) {
  {
    MutexLock lock(mutex_);
    if (ended_) return *ended_;
    running_ = true;
  }
  const Status attempt = TryAttempt(exchange);
  std::optional<Error> ended;
  {
    MutexLock lock(mutex_);
    running_ = false;
    if (!attempt.ok() && !ended_) ended_ = attempt.error();
    ended = ended_;
  }
  if (ended) Leave(*ended);
  for (const auto& peer : peers_) {
    peer->data_from.reset();
    peer->data_to.reset();
  }
  return attempt.ok() ? Status() : *ended;
}

void GlooExchanger::Abort(const Error& why) {
  {
    MutexLock lock(mutex_);
    if (ended_) return;
    ended_ = why;
    if (running_) {
      // Running operations end.
      for (const auto& peer : peers_) {
        peer->call_from->abortWaitRecv();
        peer->receipt_from->abortWaitRecv();
      }
      return;
    }
  }
  Leave(why);
}

Status GlooExchanger::TryAttempt(const Exchange& exchange) {
  try {
    return Attempt(exchange);
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "an exchange: the host has no memory left");
  } catch (const std::exception& exception) {
    return MakeError(ErrorCode::kUnavailable, "an exchange: unexpected failure in Gloo: {}",
                     ExceptionName(exception));
  }
}

Status GlooExchanger::Attempt(const Exchange& exchange) {
  call_.Set(Fingerprint(exchange), ToString(exchange));
  for (const auto& peer : peers_) {
    PENSTOCK_TRY(With(*peer, exchange, [&] {
      Begin(*peer, exchange);
      return Status();
    }));
  }
  const Bytes part = exchange.part;
  const std::byte* const own = exchange.from + (mesh_->rank() * exchange.stride).value;
  std::byte* const place = exchange.to + (mesh_->rank() * part).value;
  if (own != place && part > 0_B) std::memcpy(place, own, part.value);
  for (const auto& peer : peers_) {
    PENSTOCK_TRY(With(*peer, exchange, [&] { return AwaitCall(*peer, exchange); }));
  }
  for (const auto& peer : peers_) {
    PENSTOCK_TRY(With(*peer, exchange, [&] { return AwaitReceipt(*peer); }));
  }
  return {};
}

void GlooExchanger::Begin(Peer& peer, const Exchange& exchange) {
  const int rank = static_cast<int>(peer.rank);
  const Bytes part = exchange.part;
  if (part > 0_B) {
    peer.data_from = mesh_->NewBuffer(exchange.to + (peer.rank * part).value, part);
    peer.data_from->recv(rank, call_.fingerprint);
  }
  peer.call_from->recv(rank, kCall);
  peer.receipt_from->recv(rank, kReceipt);
  if (part > 0_B) {
    const std::byte* const from = exchange.from + (peer.rank * exchange.stride).value;
    peer.data_to = mesh_->NewBuffer(ToSend(from), part);
    peer.data_to->send(rank, call_.fingerprint);
  }
  peer.call_to->send(rank, kCall);
}

Status GlooExchanger::AwaitCall(Peer& peer, const Exchange& exchange) {
  AwaitReceived(*peer.call_from);
  if (peer.call.fingerprint != call_.fingerprint) {
    return DifferentCalls(mesh_->rank(), ToString(exchange), peer.rank, peer.call.Text());
  }
  // Nothing below waits: the data came before the note, or the rank would not be in this call.
  if (peer.data_from != nullptr) AwaitReceived(*peer.data_from);
  if (peer.receipt_sent) AwaitSent(*peer.receipt_to);
  peer.receipt_to->send(static_cast<int>(peer.rank), kReceipt);
  peer.receipt_sent = true;
  return {};
}

Status GlooExchanger::AwaitReceipt(Peer& peer) {
  AwaitReceived(*peer.receipt_from);
  // What has arrived there was sent.
  if (peer.data_to != nullptr) AwaitSent(*peer.data_to);
  AwaitSent(*peer.call_to);
  return {};
}

template <typename Work>
Status GlooExchanger::With(Peer& peer, const Exchange& exchange, Work work) {
  try {
    return work();
  } catch (const Aborted&) {
    return MakeError(ErrorCode::kCancelled, "{}: aborted", ToString(exchange));
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "{}: the host has no memory left",
                     ToString(exchange));
  } catch (const std::exception&) {
    return MakeError(ErrorCode::kUnavailable, "{}: rank {} has ended: {}", ToString(exchange),
                     peer.rank, WhyEnded(peer));
  }
}

std::string GlooExchanger::WhyEnded(Peer& peer) const {
  try {
    if (peer.farewell_from->waitRecv(nullptr, kFarewellTimeout)) return peer.farewell.Text();
  } catch (const std::exception&) {
    // The connection ended without it.
  }
  return kConnectionEnded;
}

void GlooExchanger::Leave(const Error& why) {
  farewell_.Set(0, why.message);
  std::vector<Peer*> reached;
  for (const auto& peer : peers_) {
    try {
      peer->farewell_to->send(static_cast<int>(peer->rank), kFarewell);
      reached.push_back(peer.get());
    } catch (const std::exception&) {
      // It has ended, and needs no reason any more.
    }
  }
  // What was sent before, receipts say, is on its way as well then.
  for (Peer* const peer : reached) {
    try {
      peer->farewell_to->waitSend(nullptr, kFarewellTimeout);
    } catch (const std::exception&) {
      // It does not take it. Gloo has closed all connections.
    }
  }
  mesh_->Close();
}

}  // namespace penstock::comm
