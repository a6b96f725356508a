// NCCL's functions, looked up when the first communicator is created.
//
// The library is loaded then and not linked: it is large, a run of one rank does not need it, and a
// machine with one GPU may not have it.
#pragma once

#include <nccl.h>

#include "base/result.h"

namespace penstock::comm {

/// What is called of NCCL, by the names of its manual.
struct NcclLibrary {
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) comm_init_rank_config;
  decltype(&ncclCommDestroy) comm_destroy;
  decltype(&ncclCommGetAsyncError) comm_get_async_error;
  decltype(&ncclAllGather) all_gather;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) recv;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclGetErrorString) get_error_string;
  decltype(&ncclGetLastError) get_last_error;
};

/// Loads libnccl.so.2 from where the program's libraries are; it stays. Errors: kUnavailable if it
/// is not there, or too old. Any thread.
Result<NcclLibrary> LoadNccl();

}  // namespace penstock::comm
