// Carries out exchanges over Gloo's connections.
//
// For each other rank, both sides post their receives, send their data, and then a note that names
// their call. A rank that has the note has the data, and answers with a receipt; an exchange ends
// when all receipts have arrived. Only notes and receipts are waited for: when a connection ends,
// Gloo does not wake waits for data that has begun to move, but it does wake waits for the small
// messages after it. The tag of data depends on the call, so that ranks in different calls receive
// only each other's notes, and both are named.
//
// A rank that ends says why in a last note, which the others pass on.
//
// The data goes from and to the device's memory without copies in between.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "comm/exchanger.h"
#include "comm/gloo_mesh.h"
#include "comm/gloo_note.h"

namespace penstock::comm {

class GlooExchanger final : public Exchanger {
 public:
  /// Owns the mesh. Collective: the other ranks' exchangers may begin when all are made. Errors:
  /// kUnavailable, naming the rank, if a connection has ended.
  static Result<std::unique_ptr<GlooExchanger>> Create(std::unique_ptr<GlooMesh> mesh);
  ~GlooExchanger() override;
  GlooExchanger(const GlooExchanger&) = delete;
  GlooExchanger& operator=(const GlooExchanger&) = delete;

  Status Run(const Exchange& exchange) override EXCLUDES(mutex_);
  void Abort(const Error& why) override EXCLUDES(mutex_);

 private:
  using Buffer = std::unique_ptr<GlooMesh::Buffer>;

  /// Another rank, with the buffers of the messages to and from it.
  struct Peer {
    uint32_t rank;
    GlooNote call;
    GlooNote farewell;
    std::byte receipt{};
    bool receipt_sent = false;  ///< and not known to have arrived
    Buffer call_from, call_to;
    Buffer receipt_from, receipt_to;
    Buffer farewell_from, farewell_to;
    Buffer data_from, data_to;  ///< buffers of the running exchange
  };

  explicit GlooExchanger(std::unique_ptr<GlooMesh> mesh) : mesh_(std::move(mesh)) {}
  Status MakePeers();
  Status Attempt(const Exchange& exchange);
  /// The same; memory that is missing before anything is sent is an error like others.
  Status TryAttempt(const Exchange& exchange);
  /// Posts and sends everything but the receipt. Throws what Gloo throws, as the next two do.
  void Begin(Peer& peer, const Exchange& exchange);
  Status AwaitCall(Peer& peer, const Exchange& exchange);
  Status AwaitReceipt(Peer& peer);
  /// Calls `work`; if it throws, the error says that the rank has ended.
  template <typename Work>
  Status With(Peer& peer, const Exchange& exchange, Work work);
  /// Why a rank has ended, in its own words if it left any.
  std::string WhyEnded(Peer& peer) const;
  /// Tells the others why, and closes the connections. Once, while no exchange runs.
  void Leave(const Error& why);

  const std::unique_ptr<GlooMesh> mesh_;
  std::vector<std::unique_ptr<Peer>> peers_;  ///< they do not move: Gloo knows where they are
  GlooNote call_;                             ///< note of this rank's call
  GlooNote farewell_;

  Mutex mutex_;
  bool running_ GUARDED_BY(mutex_) = false;
  std::optional<Error> ended_ GUARDED_BY(mutex_);
};

}  // namespace penstock::comm
