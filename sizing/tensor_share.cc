#include "sizing/tensor_share.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/check.h"

namespace penstock::train {
namespace {

uint64_t RoundedUp(uint64_t count, uint64_t parts) {
  return count / parts + (count % parts == 0 ? 0 : 1);
}

double InGigabytes(uint64_t parameters, uint64_t bytes) {
  return static_cast<double>(SaturatingMultiply(parameters, bytes)) / 1e9;
}

}  // namespace

TensorShare ShareOf(const ModelShape& shape, uint64_t tensor) {
  PENSTOCK_CHECK(tensor > 0);
  return {.tensor = tensor,
          .embedding = RoundedUp(CountParameters(shape).embedding, tensor),
          .layer = RoundedUp(LayerParameters(shape), tensor)};
}

std::string TensorShareText(const ModelShape& shape, std::span<const uint64_t> tensors,
                            uint64_t bytes) {
  std::string text = fmt::format(
      "Bytes per GPU at {} bytes a parameter, by tensor parallelism (GB: 10^9 bytes)\n"
      "  TP | embedding |     layer\n",
      bytes);
  for (const uint64_t tensor : tensors) {
    const TensorShare share = ShareOf(shape, tensor);
    text += fmt::format("{:4} | {:7.2f}GB | {:7.2f}GB\n", tensor,
                        InGigabytes(share.embedding, bytes), InGigabytes(share.layer, bytes));
  }
  return text;
}

nlohmann::json TensorShareJson(const ModelShape& shape, std::span<const uint64_t> tensors,
                               uint64_t bytes) {
  nlohmann::json list = nlohmann::json::array();
  for (const uint64_t tensor : tensors) {
    const TensorShare share = ShareOf(shape, tensor);
    list.push_back({{"tensor", tensor},
                    {"embedding_parameters", share.embedding},
                    {"layer_parameters", share.layer},
                    {"embedding_bytes", SaturatingMultiply(share.embedding, bytes)},
                    {"layer_bytes", SaturatingMultiply(share.layer, bytes)}});
  }
  return list;
}

}  // namespace penstock::train
