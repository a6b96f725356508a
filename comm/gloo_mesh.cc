#include "comm/gloo_mesh.h"

#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <csignal>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/for_each_index.h"

namespace penstock::comm {
namespace {

/// Gloo waits five times as long for a connection.
constexpr auto kConnectTimeout = std::chrono::seconds(12);

bool PipeSignalIsIgnored() {
  struct sigaction action {};
  return ::sigaction(SIGPIPE, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Result<std::unique_ptr<GlooMesh>> GlooMesh::Connect(Job& job) {
  const World& world = job.world();
  std::unique_ptr<GlooMesh> mesh(new GlooMesh(world.size, world.rank));
  if (world.size == 1) return mesh;
  PENSTOCK_CHECK(PipeSignalIsIgnored(), "SIGPIPE would end the process");
  Result<std::string> mine = mesh->Listen(job.address());
  PENSTOCK_TRY(job.Agree(mine.status()));
  PENSTOCK_ASSIGN(const std::vector<std::string> addresses, job.Gather(std::move(*mine)));
  PENSTOCK_TRY(job.Agree(mesh->ConnectToAll(addresses)));
  return mesh;
}

Result<std::string> GlooMesh::Listen(const std::string& address) {
  try {
    const auto device = gloo::transport::tcp::CreateDevice(address.c_str());
    context_ = device->createContext(static_cast<int>(rank_), static_cast<int>(size_));
    context_->setTimeout(kConnectTimeout);
    std::string addresses;
    for (uint32_t rank = 0; rank < size_; ++rank) {
      if (rank == rank_) continue;
      const auto bytes = context_->createPair(static_cast<int>(rank))->address().bytes();
      addresses.append(bytes.data(), bytes.size());
    }
    return addresses;
  } catch (const std::exception&) {
    return MakeError(ErrorCode::kUnavailable,
                     "gloo: nothing can listen on {}; check that it is an address of this host",
                     address);
  }
}

/// A call waits for the other rank and for a tick of Gloo's thread, so all are made at once. With
/// fewer threads they begin in the order of ranks, on all ranks alike: the first connection that is
/// missing is then waited for on both sides.
Status GlooMesh::ConnectToAll(const std::vector<std::string>& addresses) {
  const uint32_t others = size_ - 1;
  return ForEachIndex(others, static_cast<int>(others), [&](size_t i) {
    const uint32_t rank = static_cast<uint32_t>(i) + (i < rank_ ? 0 : 1);
    return ConnectTo(rank, addresses[rank]);
  });
}

Status GlooMesh::ConnectTo(uint32_t rank, const std::string& addresses) {
  // All are of one size, and there is none for the rank itself.
  const size_t size = addresses.size() / (size_ - 1);
  const std::string mine = addresses.substr((rank_ < rank ? rank_ : rank_ - 1) * size, size);
  try {
    context_->getPair(static_cast<int>(rank))->connect({mine.begin(), mine.end()});
    return {};
  } catch (const std::exception&) {
    return MakeError(ErrorCode::kUnavailable,
                     "gloo: rank {} cannot be reached; check that it runs and that no firewall is "
                     "between",
                     rank);
  }
}

std::unique_ptr<GlooMesh::Buffer> GlooMesh::NewBuffer(void* data, Bytes size) {
  return context_->createUnboundBuffer(data, size.value);
}

void GlooMesh::Close() {
  for (uint32_t rank = 0; rank < size_; ++rank) {
    if (rank != rank_) context_->getPair(static_cast<int>(rank)).reset();
  }
}

}  // namespace penstock::comm
