// The part of NCCL that penstock calls, on the CPU: in place of the library that it loads. Ranks
// are threads or processes of one machine, which meet in shared memory; its name is the id. Each
// operation runs on its emulated stream, in the order of that stream. The program ends where the
// ranks' operations do not fit: another kind, size or type, other peers, memory that is not the
// device's. Where NCCL waits for a rank for ever, this does too.
#include <fcntl.h>
#include <nccl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "comm/nccl_library.h"
#include "tests/emulated_cuda/cudart.h"

namespace {

constexpr int kMaxRanks = 16;
/// Bytes that a rank sends to another at a time.
constexpr size_t kPiece = size_t{64} << 10;
/// What is taken of the device, so that it can be missed: by a communicator, and by the first
/// operation of each kind.
constexpr size_t kDeviceMemory = size_t{2} << 20;

enum class OperationKind : uint64_t { kNone, kAllGather, kExchange };

/// What a rank says of its operation before it moves anything.
struct Post {
  OperationKind kind;
  uint64_t type;
  uint64_t sent[kMaxRanks];      ///< bytes to each rank
  uint64_t received[kMaxRanks];  ///< bytes from each
};

/// What ranks share; zero at first.
struct Segment {
  pthread_mutex_t mutex;
  pthread_barrier_t barrier;
  int ranks;  ///< 0: no rank has joined
  bool joined[kMaxRanks];
  Post posts[kMaxRanks];
  std::byte mail[kMaxRanks][kMaxRanks][kPiece];  ///< by sender and receiver
};

Segment* Map(const char* name, int flags) {
  const int file = shm_open(name, O_RDWR | flags, 0600);
  PENSTOCK_CHECK(file >= 0, "no shared memory {}", name);
  PENSTOCK_CHECK(ftruncate(file, sizeof(Segment)) == 0);
  void* const mapped = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  PENSTOCK_CHECK(mapped != MAP_FAILED, "no memory for {}", name);
  close(file);
  return static_cast<Segment*>(mapped);
}

/// A send, or a receipt.
struct Part {
  bool sends;
  int peer;
  std::byte* data;
  size_t size;
};

struct WholeOperation {
  OperationKind kind = OperationKind::kNone;
  ncclDataType_t type = ncclInt8;
  std::vector<Part> parts;
};

void Meet(Segment& segment) { pthread_barrier_wait(&segment.barrier); }

Post PostOf(const WholeOperation& operation) {
  Post post{.kind = operation.kind, .type = static_cast<uint64_t>(operation.type)};
  for (const Part& part : operation.parts) {
    uint64_t& size = (part.sends ? post.sent : post.received)[part.peer];
    PENSTOCK_CHECK(size == 0, "nccl: two parts between the same ranks");
    PENSTOCK_CHECK(penstock::emulated_cuda::IsOnDevice(part.data, part.size),
                   "nccl: not device memory");
    size = part.size;
  }
  return post;
}

/// Ends the program if the others' operations do not fit; returns the bytes of the largest part.
uint64_t CheckPosts(const Segment& segment, int rank) {
  const Post& mine = segment.posts[rank];
  uint64_t largest = 0;
  for (int other = 0; other < segment.ranks; ++other) {
    const Post& theirs = segment.posts[other];
    PENSTOCK_CHECK(theirs.kind == mine.kind, "nccl: ranks {} and {} are in other operations", rank,
                   other);
    PENSTOCK_CHECK(theirs.type == mine.type, "nccl: ranks {} and {} have other types", rank, other);
    PENSTOCK_CHECK(theirs.sent[rank] == mine.received[other],
                   "nccl: rank {} sends {} bytes, of which rank {} receives {}", other,
                   theirs.sent[rank], rank, mine.received[other]);
    largest = std::max(largest, *std::max_element(theirs.sent, theirs.sent + kMaxRanks));
  }
  return largest;
}

void RunOperation(Segment& segment, int rank, const WholeOperation& operation) {
  segment.posts[rank] = PostOf(operation);
  Meet(segment);
  const uint64_t largest = CheckPosts(segment, rank);
  for (uint64_t at = 0; at < largest; at += kPiece) {
    for (const bool sends : {true, false}) {
      for (const Part& part : operation.parts) {
        if (part.sends != sends || part.size <= at) continue;
        const size_t size = std::min(kPiece, part.size - at);
        if (sends) {
          std::memcpy(segment.mail[rank][part.peer], part.data + at, size);
        } else {
          std::memcpy(part.data + at, segment.mail[part.peer][rank], size);
        }
      }
      Meet(segment);
    }
  }
}

}  // namespace

struct ncclComm {
  Segment* segment;
  int rank;
  int ranks;
  std::vector<void*> memory;
  bool used[3] = {};  ///< by OperationKind

  void TakeMemory() {
    void* taken = nullptr;
    PENSTOCK_CHECK(cudaMalloc(&taken, kDeviceMemory) == cudaSuccess);
    memory.push_back(taken);
  }
  void Enqueue(WholeOperation operation, cudaStream_t stream) {
    bool& known = used[static_cast<size_t>(operation.kind)];
    if (!known) TakeMemory();
    known = true;
    penstock::emulated_cuda::Enqueue(stream, [this, operation = std::move(operation)] {
      RunOperation(*segment, rank, operation);
    });
  }
};

namespace {

/// What this thread has begun as a group.
struct Group {
  int depth = 0;
  ncclComm_t communicator = nullptr;
  cudaStream_t stream = nullptr;
  WholeOperation operation;
};
thread_local Group group;

ncclResult_t AddPart(const Part& part, ncclDataType_t type, ncclComm_t communicator,
                     cudaStream_t stream) {
  PENSTOCK_CHECK(type == ncclInt8 || type == ncclUint8, "nccl: a type that is not emulated");
  PENSTOCK_CHECK(part.peer >= 0 && part.peer < communicator->ranks, "nccl: no such rank");
  PENSTOCK_CHECK(group.depth > 0, "nccl: a send or a receipt alone waits for ever");
  const bool first = group.operation.parts.empty();
  PENSTOCK_CHECK(first || (group.communicator == communicator && group.stream == stream &&
                           group.operation.type == type),
                 "nccl: a group of several communicators, streams or types");
  group.communicator = communicator;
  group.stream = stream;
  group.operation.kind = OperationKind::kExchange;
  group.operation.type = type;
  group.operation.parts.push_back(part);
  return ncclSuccess;
}

ncclResult_t EmulatedGetUniqueId(ncclUniqueId* id) {
  static std::atomic<int> made = 0;
  *id = {};
  std::snprintf(id->internal, sizeof(id->internal), "/penstock-nccl-%d-%d", getpid(), made++);
  Segment* const segment = Map(id->internal, O_CREAT | O_EXCL);
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(&segment->mutex, &attributes);
  munmap(segment, sizeof(Segment));
  return ncclSuccess;
}

ncclResult_t EmulatedCommInitRankConfig(ncclComm_t* communicator, int ranks, ncclUniqueId id,
                                        int rank, ncclConfig_t* config) {
  const ncclConfig_t expected = NCCL_CONFIG_INITIALIZER;
  PENSTOCK_CHECK(config->magic == expected.magic && config->size == expected.size);
  PENSTOCK_CHECK(ranks <= kMaxRanks && rank >= 0 && rank < ranks, "nccl: no such rank");
  Segment* const segment = Map(id.internal, 0);
  pthread_mutex_lock(&segment->mutex);
  if (segment->ranks == 0) {
    pthread_barrierattr_t attributes;
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&segment->barrier, &attributes, static_cast<unsigned>(ranks));
    segment->ranks = ranks;
  }
  PENSTOCK_CHECK(segment->ranks == ranks, "nccl: ranks of other worlds");
  PENSTOCK_CHECK(!segment->joined[rank], "nccl: rank {} twice", rank);
  segment->joined[rank] = true;
  pthread_mutex_unlock(&segment->mutex);
  Meet(*segment);
  if (rank == 0) shm_unlink(id.internal);
  *communicator = new ncclComm{.segment = segment, .rank = rank, .ranks = ranks};
  (*communicator)->TakeMemory();
  return ncclSuccess;
}

ncclResult_t EmulatedCommDestroy(ncclComm_t communicator) {
  for (void* const taken : communicator->memory) {
    PENSTOCK_CHECK(cudaFree(taken) == cudaSuccess);
  }
  munmap(communicator->segment, sizeof(Segment));
  delete communicator;
  return ncclSuccess;
}

ncclResult_t EmulatedCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

ncclResult_t EmulatedAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                               ncclComm_t communicator, cudaStream_t stream) {
  PENSTOCK_CHECK(group.depth == 0, "nccl: an all-gather in a group is not emulated");
  PENSTOCK_CHECK(type == ncclInt8 || type == ncclUint8, "nccl: a type that is not emulated");
  auto* const place = static_cast<std::byte*>(to);
  auto* const own = static_cast<std::byte*>(const_cast<void*>(from));
  const auto rank = static_cast<size_t>(communicator->rank);
  PENSTOCK_CHECK(own == place + rank * count, "nccl: an all-gather that is not in place");
  WholeOperation operation{.kind = OperationKind::kAllGather, .type = type};
  for (int peer = 0; peer < communicator->ranks; ++peer) {
    if (peer == communicator->rank) continue;
    operation.parts.push_back({true, peer, own, count});
    operation.parts.push_back({false, peer, place + static_cast<size_t>(peer) * count, count});
  }
  communicator->Enqueue(std::move(operation), stream);
  return ncclSuccess;
}

ncclResult_t EmulatedSend(const void* from, size_t count, ncclDataType_t type, int peer,
                          ncclComm_t communicator, cudaStream_t stream) {
  auto* const data = static_cast<std::byte*>(const_cast<void*>(from));
  return AddPart({true, peer, data, count}, type, communicator, stream);
}

ncclResult_t EmulatedRecv(void* to, size_t count, ncclDataType_t type, int peer,
                          ncclComm_t communicator, cudaStream_t stream) {
  return AddPart({false, peer, static_cast<std::byte*>(to), count}, type, communicator, stream);
}

ncclResult_t EmulatedGroupStart() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t EmulatedGroupEnd() {
  PENSTOCK_CHECK(group.depth == 1, "nccl: groups in groups are not emulated");
  Group ended = std::move(group);
  group = Group();
  if (!ended.operation.parts.empty()) {
    ended.communicator->Enqueue(std::move(ended.operation), ended.stream);
  }
  return ncclSuccess;
}

const char* EmulatedGetErrorString(ncclResult_t) { return "an error of the emulation"; }
const char* EmulatedGetLastError(ncclComm_t) { return ""; }

}  // namespace

namespace penstock::comm {

Result<NcclLibrary> LoadNccl() {
  return NcclLibrary{.get_unique_id = EmulatedGetUniqueId,
                     .comm_init_rank_config = EmulatedCommInitRankConfig,
                     .comm_destroy = EmulatedCommDestroy,
                     .comm_get_async_error = EmulatedCommGetAsyncError,
                     .all_gather = EmulatedAllGather,
                     .send = EmulatedSend,
                     .recv = EmulatedRecv,
                     .group_start = EmulatedGroupStart,
                     .group_end = EmulatedGroupEnd,
                     .get_error_string = EmulatedGetErrorString,
                     .get_last_error = EmulatedGetLastError};
}

}  // namespace penstock::comm
