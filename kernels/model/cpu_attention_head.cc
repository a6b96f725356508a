#include "kernels/model/cpu_attention_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/convert_elements.h"

namespace penstock::kernels {
namespace {

/// Queries in a block: few for short sequences, as less of the masked half is computed; more for
/// long ones, as the gradients of keys and values are read and written once a block.
constexpr uint64_t kShortSequence = 1024;
constexpr uint64_t kShortBlock = 64;
constexpr uint64_t kLongBlock = 128;
/// Rows of the strips are at least this many elements longer than the sequence, so that they do not
/// all fall into the same few sets of the first cache.
constexpr uint64_t kRowPadding = 16;

uint64_t BlockRows(uint64_t sequence) {
  return std::min(sequence, sequence <= kShortSequence ? kShortBlock : kLongBlock);
}

}  // namespace

AttentionHead::AttentionHead(const AttentionHeadSpec& spec)
    : spec_(spec), strip_stride_((spec.sequence + 15) / 16 * 16 + kRowPadding) {
  const uint64_t block_rows = BlockRows(spec.sequence);
  for (uint64_t first = 0; first < spec.sequence; first += block_rows) {
    blocks_.push_back(MakeBlock(first, std::min(block_rows, spec.sequence - first)));
  }
  const uint64_t strip = block_rows * strip_stride_;
  const Bytes floats = strip * SizeOf(DType::kFloat32);
  scores_ = cursor_.Take(floats);
  d_p_ = cursor_.Take(floats);
  const bool in_place = spec.dtype == DType::kFloat32;
  probabilities_ = in_place ? scores_ : cursor_.Take(strip * SizeOf(spec.dtype));
  d_scores_ = in_place ? d_p_ : cursor_.Take(strip * SizeOf(spec.dtype));
  const Bytes gradient = spec.sequence * spec.width * SizeOf(DType::kFloat32);
  d_key_ = cursor_.Take(gradient);
  d_value_ = cursor_.Take(gradient);
  inner_ = cursor_.Take(LargestProductScratch());
}

AttentionHead::Block AttentionHead::MakeBlock(uint64_t first, uint64_t rows) const {
  const uint64_t keys = first + rows;
  const uint64_t width = spec_.width;
  const Operand qkv{.dtype = spec_.dtype, .stride = spec_.qkv_stride};
  const Operand out{.dtype = spec_.dtype, .stride = spec_.out_stride};
  const Operand strip{.dtype = spec_.dtype, .stride = strip_stride_};
  const Operand float_strip{.dtype = DType::kFloat32, .stride = strip_stride_};
  const Operand sums{.dtype = DType::kFloat32, .stride = width};
  const auto transposed = [](Operand operand) {
    operand.transposed = true;
    return operand;
  };
  const auto make = [](uint64_t m, uint64_t n, uint64_t k, Operand a, Operand b, Operand c,
                       Epilogue epilogue) {
    return MakeProduct(
        {.m = m, .n = n, .k = k, .a = a, .b = b, .c = c, .epilogue = epilogue, .threads = 1},
        Bf16Arithmetic::kNative);
  };
  const auto store = Epilogue::kStore;
  const auto add = Epilogue::kAddInPlace;
  return {.first = first,
          .rows = rows,
          .keys = keys,
          .scores = make(rows, keys, width, qkv, transposed(qkv), float_strip, store),
          .context = make(rows, width, keys, strip, qkv, out, store),
          .d_p = make(rows, keys, width, out, transposed(qkv), float_strip, store),
          .d_query = make(rows, width, keys, strip, qkv, qkv, store),
          .d_key = make(keys, width, rows, transposed(strip), qkv, sums, add),
          .d_value = make(keys, width, rows, transposed(strip), out, sums, add)};
}

Bytes AttentionHead::LargestProductScratch() const {
  Bytes largest;
  for (const Block& block : blocks_) {
    for (const auto* product : {&block.scores, &block.context, &block.d_p, &block.d_query,
                                &block.d_key, &block.d_value}) {
      largest = std::max(largest, (*product)->scratch());
    }
  }
  return largest;
}

CausalStrip AttentionHead::Strip(const Block& block) const {
  return {.rows = block.rows,
          .columns = block.keys,
          .first_visible = block.first + 1,
          .stride = strip_stride_,
          .scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(spec_.width)))};
}

void AttentionHead::Forward(const HeadMatrices<const std::byte>& in, std::byte* out,
                            std::byte* scratch) {
  const uint64_t qkv_row = spec_.qkv_stride * SizeOf(spec_.dtype).value;
  const uint64_t out_row = spec_.out_stride * SizeOf(spec_.dtype).value;
  std::byte* const scores = scratch + scores_;
  std::byte* const probabilities = scratch + probabilities_;
  for (const Block& block : blocks_) {
    block.scores->Run({.a = in.q + block.first * qkv_row, .b = in.k, .c = scores},
                      scratch + inner_);
    CausalSoftmaxRows(Strip(block), reinterpret_cast<float*>(scores), spec_.dtype, probabilities);
    block.context->Run({.a = probabilities, .b = in.v, .c = out + block.first * out_row},
                       scratch + inner_);
  }
}

void AttentionHead::Backward(const HeadMatrices<const std::byte>& in, const std::byte* d_out,
                             const HeadMatrices<std::byte>& d_in, std::byte* scratch) {
  const uint64_t qkv_row = spec_.qkv_stride * SizeOf(spec_.dtype).value;
  const uint64_t out_row = spec_.out_stride * SizeOf(spec_.dtype).value;
  std::byte* const scores = scratch + scores_;
  std::byte* const d_p = scratch + d_p_;
  std::byte* const probabilities = scratch + probabilities_;
  std::byte* const d_scores = scratch + d_scores_;
  std::byte* const inner = scratch + inner_;
  const uint64_t sums = spec_.sequence * spec_.width * sizeof(float);
  std::memset(scratch + d_key_, 0, sums);
  std::memset(scratch + d_value_, 0, sums);
  for (const Block& block : blocks_) {
    const std::byte* q = in.q + block.first * qkv_row;
    const std::byte* d_o = d_out + block.first * out_row;
    block.scores->Run({.a = q, .b = in.k, .c = scores}, inner);
    block.d_p->Run({.a = d_o, .b = in.v, .c = d_p}, inner);
    CausalSoftmaxBackwardRows(Strip(block), reinterpret_cast<float*>(scores),
                              reinterpret_cast<const float*>(d_p), spec_.dtype, probabilities,
                              d_scores);
    block.d_query->Run({.a = d_scores, .b = in.k, .c = d_in.q + block.first * qkv_row}, inner);
    block.d_key->Run({.a = d_scores, .b = q, .c = scratch + d_key_}, inner);
    block.d_value->Run({.a = probabilities, .b = d_o, .c = scratch + d_value_}, inner);
  }
  StoreGradient(scratch + d_key_, d_in.k);
  StoreGradient(scratch + d_value_, d_in.v);
}

void AttentionHead::StoreGradient(const std::byte* sums, std::byte* to) const {
  for (uint64_t row = 0; row < spec_.sequence; ++row) {
    ConvertElements(DType::kFloat32, sums + row * spec_.width * sizeof(float), spec_.dtype,
                    to + row * spec_.qkv_stride * SizeOf(spec_.dtype).value, spec_.width);
  }
}

}  // namespace penstock::kernels
