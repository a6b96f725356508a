// Causal self-attention of the CPU operators: the heads of a micro-batch, spread over the threads.
//
// Queries, keys and values are read where they lie in qkv; without bf16 instructions they are
// converted to fp32 scratch, one head at a time. The result of a head depends on no other head, and
// not on the number of threads.
//
// Threads: run by one thread at a time; uses OpenMP's pool of that thread.
#pragma once

#include <cstdint>
#include <vector>

#include "base/units.h"
#include "kernels/model/cpu_attention_head.h"
#include "kernels/model/cpu_matmul.h"
#include "kernels/model/operator_calls.h"

namespace penstock::kernels {

class Attention {
 public:
  Attention(const AttentionCall& call, int threads, Bf16Arithmetic arithmetic);

  Bytes scratch() const;
  void Forward(const std::byte* qkv, std::byte* out, std::byte* scratch);
  void Backward(const std::byte* qkv, const std::byte* d_out, std::byte* d_qkv, std::byte* scratch);

 private:
  /// The place of a head in tensors of the storage dtype: bytes from their start.
  struct Place {
    uint64_t q;
    uint64_t k;
    uint64_t v;
    uint64_t out;
  };

  Place PlaceOf(uint64_t task) const;
  /// Calls body(head, task, scratch of the thread) for every (sequence, head).
  template <typename Body>
  void ForEachHead(std::byte* scratch, Body&& body);
  void ForwardConverted(AttentionHead& head, const std::byte* qkv, std::byte* out,
                        const Place& place, std::byte* scratch) const;
  void BackwardConverted(AttentionHead& head, const std::byte* qkv, const std::byte* d_out,
                         std::byte* d_qkv, const Place& place, std::byte* scratch) const;
  void CopyIn(const std::byte* tensor, uint64_t stride, std::byte* copy) const;
  void CopyOut(const std::byte* copy, std::byte* tensor, uint64_t stride) const;

  const AttentionCall call_;
  const bool converts_;
  Bytes copy_size_;                   ///< one fp32 matrix of a head; 0 if nothing is converted
  std::vector<AttentionHead> heads_;  ///< one for each thread
};

}  // namespace penstock::kernels
