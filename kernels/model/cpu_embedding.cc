#include "kernels/model/cpu_embedding.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "base/check.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// Columns in the smallest slice of the tables that a thread adds to.
constexpr uint64_t kColumnGrain = 16;
/// Columns that are summed at once: their sums stay in the first cache.
constexpr uint64_t kColumnsAtOnce = 1024;

/// Fills `order` with all rows: by token, and those of one token as they follow each other.
void OrderByToken(const int32_t* tokens, std::span<uint64_t> order) {
  std::iota(order.begin(), order.end(), uint64_t{0});
  std::ranges::sort(order, [tokens](uint64_t a, uint64_t b) {
    return tokens[a] != tokens[b] ? tokens[a] < tokens[b] : a < b;
  });
}

}  // namespace

void EmbeddingGradient::Run(const EmbeddingGradientData& data, std::byte* scratch) const {
  const std::span<uint64_t> order(reinterpret_cast<uint64_t*>(scratch), call_.rows);
  OrderByToken(data.tokens.data, order);
  // Threads take columns, so that every sum is in the order of the rows.
  ParallelRanges(threads_, call_.width, kColumnGrain, [&](Range columns) {
    for (uint64_t begin = columns.begin; begin < columns.end; begin += kColumnsAtOnce) {
      const Range at_once{begin, std::min(begin + kColumnsAtOnce, columns.end)};
      AddTokens(data, order, at_once);
      AddPositions(data, at_once);
    }
  });
}

void EmbeddingGradient::AddTokens(const EmbeddingGradientData& data,
                                  std::span<const uint64_t> order, Range columns) const {
  const int32_t* const tokens = data.tokens.data;
  for (uint64_t first = 0, end = 0; first < order.size(); first = end) {
    const auto token = static_cast<uint64_t>(tokens[order[first]]);
    PENSTOCK_CHECK(token < data.vocabulary);
    while (end < order.size() && tokens[order[end]] == tokens[order[first]]) ++end;
    AddRows(
        data, end - first, [&](uint64_t i) { return order[first + i]; }, columns,
        data.d_token_table + token * call_.width);
  }
}

void EmbeddingGradient::AddPositions(const EmbeddingGradientData& data, Range columns) const {
  const uint64_t sequence = data.tokens.sequence;
  for (uint64_t position = 0; position < sequence; ++position) {
    AddRows(
        data, data.tokens.batch, [&](uint64_t i) { return i * sequence + position; }, columns,
        data.d_position_table + position * call_.width);
  }
}

template <typename RowOf>
void EmbeddingGradient::AddRows(const EmbeddingGradientData& data, uint64_t count,
                                const RowOf& row_of, Range columns, float* row) const {
  std::array<float, kColumnsAtOnce> sums;
  float* const to = row + columns.begin;
  if (data.adds_once) {
    std::fill_n(sums.begin(), columns.size(), 0.0F);
  } else {
    std::copy_n(to, columns.size(), sums.begin());
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t element = row_of(i) * call_.width + columns.begin;
    AddToFloats(call_.dtype, data.d_out + element * SizeOf(call_.dtype).value, sums.data(),
                columns.size());
  }
  if (data.adds_once) {
    AddToFloats(DType::kFloat32, sums.data(), to, columns.size());
  } else {
    std::copy_n(sums.begin(), columns.size(), to);
  }
}

}  // namespace penstock::kernels
