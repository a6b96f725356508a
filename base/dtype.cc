#include "base/dtype.h"

namespace penstock {

const char* ToString(DType dtype) {
  switch (dtype) {
    case DType::kFloat32:
      return "fp32";
    case DType::kBFloat16:
      return "bf16";
    case DType::kFloat16:
      return "fp16";
  }
  return "?";
}

const char* ToString(Encoding encoding) {
  switch (encoding) {
    case Encoding::kFloat32:
    case Encoding::kBFloat16:
    case Encoding::kFloat16:
      return ToString(static_cast<DType>(encoding));
    case Encoding::kInt16:
      return "int16";
    case Encoding::kBlockwise8:
      return "blockwise8";
  }
  return "?";
}

}  // namespace penstock
