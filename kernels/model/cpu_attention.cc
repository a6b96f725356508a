#include "kernels/model/cpu_attention.h"

#include "kernels/convert_elements.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// fp32 matrices that the backward of a converted head holds: four that come in, three that go out.
constexpr uint64_t kCopies = 7;

AttentionHeadSpec HeadSpec(const AttentionCall& call, bool converts) {
  const uint64_t width = call.width / call.heads;
  if (converts) {
    return {.sequence = call.sequence, .width = width, .qkv_stride = width, .out_stride = width};
  }
  return {.sequence = call.sequence,
          .width = width,
          .dtype = call.dtype,
          .qkv_stride = 3 * call.width,
          .out_stride = call.width};
}

}  // namespace

Attention::Attention(const AttentionCall& call, int threads, Bf16Arithmetic arithmetic)
    : call_(call), converts_(Converts(call.dtype, arithmetic)) {
  if (converts_) {
    copy_size_ = AlignUp(call_.sequence * (call_.width / call_.heads) * SizeOf(DType::kFloat32),
                         ScratchCursor::kAlignment);
  }
  for (int thread = 0; thread < threads; ++thread) {
    heads_.emplace_back(HeadSpec(call_, converts_));
  }
}

Bytes Attention::scratch() const {
  return (heads_.front().scratch() + kCopies * copy_size_) * heads_.size();
}

Attention::Place Attention::PlaceOf(uint64_t task) const {
  const uint64_t sequence = task / call_.heads;
  const uint64_t column = task % call_.heads * (call_.width / call_.heads);
  const uint64_t element = SizeOf(call_.dtype).value;
  const uint64_t qkv = sequence * call_.sequence * 3 * call_.width + column;
  return {.q = qkv * element,
          .k = (qkv + call_.width) * element,
          .v = (qkv + 2 * call_.width) * element,
          .out = (sequence * call_.sequence * call_.width + column) * element};
}

template <typename Body>
void Attention::ForEachHead(std::byte* scratch, Body&& body) {
  const auto threads = static_cast<int>(heads_.size());
  const Bytes each = heads_.front().scratch() + kCopies * copy_size_;
  ParallelParts(threads, [&](int part) {
    const ThreadCountScope single(1);
    const auto thread = static_cast<uint64_t>(part);
    const Range tasks = PartOf(call_.batch * call_.heads, part, threads);
    for (uint64_t task = tasks.begin; task < tasks.end; ++task) {
      body(heads_[thread], PlaceOf(task), scratch + thread * each.value);
    }
  });
}

void Attention::Forward(const std::byte* qkv, std::byte* out, std::byte* scratch) {
  ForEachHead(scratch, [&](AttentionHead& head, const Place& place, std::byte* own) {
    if (converts_) {
      ForwardConverted(head, qkv, out, place, own);
    } else {
      head.Forward({qkv + place.q, qkv + place.k, qkv + place.v}, out + place.out, own);
    }
  });
}

void Attention::Backward(const std::byte* qkv, const std::byte* d_out, std::byte* d_qkv,
                         std::byte* scratch) {
  ForEachHead(scratch, [&](AttentionHead& head, const Place& place, std::byte* own) {
    if (converts_) {
      BackwardConverted(head, qkv, d_out, d_qkv, place, own);
    } else {
      head.Backward({qkv + place.q, qkv + place.k, qkv + place.v}, d_out + place.out,
                    {d_qkv + place.q, d_qkv + place.k, d_qkv + place.v}, own);
    }
  });
}

void Attention::ForwardConverted(AttentionHead& head, const std::byte* qkv, std::byte* out,
                                 const Place& place, std::byte* scratch) const {
  const auto copy = [&](uint64_t index) { return scratch + index * copy_size_.value; };
  CopyIn(qkv + place.q, 3 * call_.width, copy(0));
  CopyIn(qkv + place.k, 3 * call_.width, copy(1));
  CopyIn(qkv + place.v, 3 * call_.width, copy(2));
  head.Forward({copy(0), copy(1), copy(2)}, copy(3), copy(kCopies));
  CopyOut(copy(3), out + place.out, call_.width);
}

void Attention::BackwardConverted(AttentionHead& head, const std::byte* qkv, const std::byte* d_out,
                                  std::byte* d_qkv, const Place& place, std::byte* scratch) const {
  const auto copy = [&](uint64_t index) { return scratch + index * copy_size_.value; };
  CopyIn(qkv + place.q, 3 * call_.width, copy(0));
  CopyIn(qkv + place.k, 3 * call_.width, copy(1));
  CopyIn(qkv + place.v, 3 * call_.width, copy(2));
  CopyIn(d_out + place.out, call_.width, copy(3));
  head.Backward({copy(0), copy(1), copy(2)}, copy(3), {copy(4), copy(5), copy(6)}, copy(kCopies));
  CopyOut(copy(4), d_qkv + place.q, 3 * call_.width);
  CopyOut(copy(5), d_qkv + place.k, 3 * call_.width);
  CopyOut(copy(6), d_qkv + place.v, 3 * call_.width);
}

void Attention::CopyIn(const std::byte* tensor, uint64_t stride, std::byte* copy) const {
  const uint64_t width = call_.width / call_.heads;
  for (uint64_t row = 0; row < call_.sequence; ++row) {
    ConvertElements(call_.dtype, tensor + row * stride * SizeOf(call_.dtype).value, DType::kFloat32,
                    copy + row * width * sizeof(float), width);
  }
}

void Attention::CopyOut(const std::byte* copy, std::byte* tensor, uint64_t stride) const {
  const uint64_t width = call_.width / call_.heads;
  for (uint64_t row = 0; row < call_.sequence; ++row) {
    ConvertElements(DType::kFloat32, copy + row * width * sizeof(float), call_.dtype,
                    tensor + row * stride * SizeOf(call_.dtype).value, width);
  }
}

}  // namespace penstock::kernels
