#include "comm/nccl_library.h"

#include "base/shared_library.h"

namespace penstock::comm {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

constexpr const char* kNewer = "install NCCL 2.18 or newer";

}  // namespace

Result<NcclLibrary> LoadNccl() {
  PENSTOCK_ASSIGN(const SharedLibrary library,
                  SharedLibrary::Load(kLibrary, "several ranks on GPUs need NCCL",
                                      "install it, or name its folder in LD_LIBRARY_PATH"));
  NcclLibrary nccl{};
  PENSTOCK_TRY(library.Find("ncclGetUniqueId", kNewer, nccl.get_unique_id));
  PENSTOCK_TRY(library.Find("ncclCommInitRankConfig", kNewer, nccl.comm_init_rank_config));
  PENSTOCK_TRY(library.Find("ncclCommDestroy", kNewer, nccl.comm_destroy));
  PENSTOCK_TRY(library.Find("ncclCommGetAsyncError", kNewer, nccl.comm_get_async_error));
  PENSTOCK_TRY(library.Find("ncclAllGather", kNewer, nccl.all_gather));
  PENSTOCK_TRY(library.Find("ncclSend", kNewer, nccl.send));
  PENSTOCK_TRY(library.Find("ncclRecv", kNewer, nccl.recv));
  PENSTOCK_TRY(library.Find("ncclGroupStart", kNewer, nccl.group_start));
  PENSTOCK_TRY(library.Find("ncclGroupEnd", kNewer, nccl.group_end));
  PENSTOCK_TRY(library.Find("ncclGetErrorString", kNewer, nccl.get_error_string));
  PENSTOCK_TRY(library.Find("ncclGetLastError", kNewer, nccl.get_last_error));
  return nccl;
}

}  // namespace penstock::comm
