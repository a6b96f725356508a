// Replaces cudnn_library.cc in builds without cudnn-frontend.
#include "kernels/model/cudnn_library.h"

namespace penstock::kernels {

Result<std::unique_ptr<CudnnLibrary>> LoadCudnn() {
  return MakeError(ErrorCode::kUnavailable,
                   "attention by cuDNN: this build is without cudnn-frontend; run "
                   "scripts/cudnn-frontend and build again, {}",
                   kWithoutCudnn);
}

}  // namespace penstock::kernels
