#include "sizing/quantization.h"

#include <fmt/format.h>

#include <cmath>

#include "sizing/step_work.h"

namespace penstock::train {
namespace {

constexpr double kTileRows = 256;
constexpr double kTileColumns = 128;

/// [rows, inner] · [inner, columns].
struct Gemm {
  double columns;
  double inner;
};

/// Columns and inner sizes are those of one GPU: the first matrix of a pair is split by columns,
/// the second one by rows.
std::vector<Gemm> LayerGemms(const ModelShape& shape, double tensor) {
  const auto width = static_cast<double>(shape.width);
  const double queries = static_cast<double>(AttentionWidth(shape)) / tensor;
  const double keys = shape.kv_heads == 0
                          ? queries
                          : static_cast<double>(shape.kv_heads * shape.head_width) / tensor;
  const double mlp = static_cast<double>(shape.inner) / tensor;
  return {{queries + 2 * keys, width},
          {width, queries},
          {shape.gated ? 2 * mlp : mlp, width},
          {width, mlp}};
}

}  // namespace

std::vector<std::string> QuantizationHints(const ModelShape& shape, uint64_t tensor) {
  std::vector<std::string> hints;
  const auto expect = [&](const std::string& name, uint64_t size, uint64_t multiple) {
    if (size % multiple == 0) return;
    hints.push_back(
        fmt::format("{} = {} is no multiple of {} ({} left): matrix products are slower", name,
                    size, multiple, size % multiple));
  };
  expect("h", shape.width, 128);
  if (shape.width % tensor == 0) expect("h/TP", shape.width / tensor, 64);
  if (shape.head_width % 8 != 0) {
    hints.push_back(fmt::format(
        "a head's width, {}, is no multiple of 8: attention was measured to make a step 33 to 42 % "
        "longer (h = 13824 with 128 heads)",
        shape.head_width));
  }
  return hints;
}

double WaveEfficiency(const ModelShape& shape, const WaveSetting& setting) {
  const double rows =
      static_cast<double>(setting.micro_batch) * static_cast<double>(setting.sequence);
  const auto units = static_cast<double>(setting.multiprocessors);
  double done = 0;
  double possible = 0;
  for (const Gemm& gemm : LayerGemms(shape, static_cast<double>(setting.tensor))) {
    const double tiles = std::ceil(rows / kTileRows) * std::ceil(gemm.columns / kTileColumns);
    done += rows * gemm.columns * gemm.inner;
    possible += std::ceil(tiles / units) * units * kTileRows * kTileColumns * gemm.inner;
  }
  return done / possible;
}

}  // namespace penstock::train
