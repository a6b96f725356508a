#include "comm/nccl_library.h"

#include <dlfcn.h>

namespace penstock::comm {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

template <typename Function>
Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function != nullptr) return {};
  return MakeError(ErrorCode::kUnavailable, "{} has no {}; install NCCL 2.18 or newer", kLibrary,
                   name);
}

}  // namespace

Result<NcclLibrary> LoadNccl() {
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return MakeError(ErrorCode::kUnavailable,
                     "several ranks on GPUs need NCCL: {}; install it, or name its folder in "
                     "LD_LIBRARY_PATH",
                     ::dlerror());
  }
  NcclLibrary nccl{};
  PENSTOCK_TRY(Find(library, "ncclGetUniqueId", nccl.get_unique_id));
  PENSTOCK_TRY(Find(library, "ncclCommInitRankConfig", nccl.comm_init_rank_config));
  PENSTOCK_TRY(Find(library, "ncclCommDestroy", nccl.comm_destroy));
  PENSTOCK_TRY(Find(library, "ncclCommGetAsyncError", nccl.comm_get_async_error));
  PENSTOCK_TRY(Find(library, "ncclAllGather", nccl.all_gather));
  PENSTOCK_TRY(Find(library, "ncclSend", nccl.send));
  PENSTOCK_TRY(Find(library, "ncclRecv", nccl.recv));
  PENSTOCK_TRY(Find(library, "ncclGroupStart", nccl.group_start));
  PENSTOCK_TRY(Find(library, "ncclGroupEnd", nccl.group_end));
  PENSTOCK_TRY(Find(library, "ncclGetErrorString", nccl.get_error_string));
  PENSTOCK_TRY(Find(library, "ncclGetLastError", nccl.get_last_error));
  return nccl;
}

}  // namespace penstock::comm
