// Attention by cuDNN on the CPU: in place of the library that penstock loads. It computes by the
// formulas, in double, from the output and the statistics that forward has left. It ends the
// program at addresses that are not aligned or not the device's, and overwrites all of its
// workspace.
#include "tests/emulated_cuda/cudnn.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda_grid.h"
#include "kernels/model/cudnn_library.h"
#include "tests/emulated_cuda/cudart.h"

namespace penstock {
namespace {

using kernels::CudnnAttentionData;
using kernels::CudnnAttentionSpec;
using kernels::DType;

std::atomic<bool> there = true;
std::atomic<uint64_t> more_bytes = 0;

double Read(DType dtype, const std::byte* data, uint64_t at) {
  uint16_t bits;
  std::memcpy(&bits, data + 2 * at, sizeof(bits));
  return dtype == DType::kFloat16 ? ToFloat(kernels::Float16{bits})
                                  : ToFloat(kernels::BFloat16{bits});
}
void Write(DType dtype, std::byte* data, uint64_t at, double value) {
  const auto single = static_cast<float>(value);
  const uint16_t bits = dtype == DType::kFloat16 ? kernels::RoundToFloat16(single)
                                                 : kernels::RoundToBFloat16(single).bits;
  std::memcpy(data + 2 * at, &bits, sizeof(bits));
}

/// One head of one sequence.
class Head {
 public:
  Head(const CudnnAttentionSpec& spec, const CudnnAttentionData& data, uint64_t batch,
       uint64_t head)
      : spec_(spec),
        data_(data),
        first_row_(batch * spec.sequence),
        column_(head * spec.head_size),
        statistics_(data.statistics + (batch * spec.heads + head) * spec.sequence) {}

  void Forward() const {
    std::vector<double> p(spec_.sequence);
    for (uint64_t row = 0; row < spec_.sequence; ++row) {
      double sum = 0;
      for (uint64_t key = 0; key <= row; ++key) sum += p[key] = std::exp(Score(row, key));
      statistics_[row] = static_cast<float>(std::log(sum));
      for (uint64_t c = 0; c < spec_.head_size; ++c) {
        double out = 0;
        for (uint64_t key = 0; key <= row; ++key) out += p[key] * Qkv(key, 2, c);
        Write(spec_.dtype, data_.out, InOut(row, c), out / sum);
      }
    }
  }

  void Backward() const {
    const uint64_t size = spec_.sequence * spec_.head_size;
    std::vector<double> d_qkv(3 * size);
    for (uint64_t row = 0; row < spec_.sequence; ++row) {
      double delta = 0;
      for (uint64_t c = 0; c < spec_.head_size; ++c) {
        delta += DOut(row, c) * Read(spec_.dtype, data_.out, InOut(row, c));
      }
      for (uint64_t key = 0; key <= row; ++key) {
        const double p = std::exp(Score(row, key) - static_cast<double>(statistics_[row]));
        double d_p = 0;
        for (uint64_t c = 0; c < spec_.head_size; ++c) d_p += DOut(row, c) * Qkv(key, 2, c);
        const double d_score = p * (d_p - delta) * Scale();
        for (uint64_t c = 0; c < spec_.head_size; ++c) {
          d_qkv[row * spec_.head_size + c] += d_score * Qkv(key, 1, c);
          d_qkv[size + key * spec_.head_size + c] += d_score * Qkv(row, 0, c);
          d_qkv[2 * size + key * spec_.head_size + c] += p * DOut(row, c);
        }
      }
    }
    for (uint64_t part = 0; part < 3; ++part) {
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t at = InQkv(i / spec_.head_size, part, i % spec_.head_size);
        Write(spec_.dtype, data_.d_qkv, at, d_qkv[part * size + i]);
      }
    }
  }

 private:
  uint64_t InQkv(uint64_t row, uint64_t part, uint64_t c) const {
    return ((first_row_ + row) * 3 + part) * spec_.width + column_ + c;
  }
  uint64_t InOut(uint64_t row, uint64_t c) const {
    return (first_row_ + row) * spec_.width + column_ + c;
  }
  double Qkv(uint64_t row, uint64_t part, uint64_t c) const {
    return Read(spec_.dtype, data_.qkv, InQkv(row, part, c));
  }
  double DOut(uint64_t row, uint64_t c) const {
    return Read(spec_.dtype, data_.d_out, InOut(row, c));
  }
  double Scale() const { return 1 / std::sqrt(static_cast<double>(spec_.head_size)); }
  double Score(uint64_t row, uint64_t key) const {
    double score = 0;
    for (uint64_t c = 0; c < spec_.head_size; ++c) score += Qkv(row, 0, c) * Qkv(key, 1, c);
    return score * Scale();
  }

  const CudnnAttentionSpec& spec_;
  const CudnnAttentionData& data_;
  const uint64_t first_row_;
  const uint64_t column_;
  float* const statistics_;
};

void CheckOperand(const void* data, Bytes size) {
  PENSTOCK_CHECK(reinterpret_cast<uintptr_t>(data) % 16 == 0, "cuDNN: an odd address");
  PENSTOCK_CHECK(emulated_cuda::IsOnDevice(data, size.value), "cuDNN: not the device's memory");
}

class Graph final : public kernels::CudnnAttentionGraph {
 public:
  explicit Graph(const CudnnAttentionSpec& spec) : spec_(spec) {
    PENSTOCK_CHECK(spec.dtype != DType::kFloat32 && spec.batch > 0 && spec.heads > 0 &&
                   spec.sequence > 0 && spec.head_size % 8 == 0 && spec.head_size <= 256 &&
                   spec.heads * spec.head_size <= spec.width);
    if (!spec.backward) return;
    // As 9.19 on an H100.
    const uint64_t of_head = kernels::DivideUp(spec.sequence, 64) * 64 *
                                 kernels::DivideUp(spec.sequence, 128) * 128 * 2 +
                             spec.sequence * 4;
    workspace_ = Bytes{spec.batch * spec.heads * of_head + more_bytes.load()};
  }

  Bytes workspace() const override { return workspace_; }

  Status Run(cudaStream_t stream, const CudnnAttentionData& data) override {
    const uint64_t rows = (spec_.batch - 1) * spec_.sequence + spec_.sequence - 1;
    const Bytes out{2 * (rows * spec_.width + spec_.heads * spec_.head_size)};
    const Bytes qkv = out + Bytes{2 * 2 * (rows + 1) * spec_.width};
    CheckOperand(data.qkv, qkv);
    CheckOperand(data.out, out);
    if (spec_.backward) {
      CheckOperand(data.d_out, out);
      CheckOperand(data.d_qkv, qkv);
      CheckOperand(data.workspace, workspace_);
    }
    PENSTOCK_CHECK(
        emulated_cuda::IsOnDevice(data.statistics, 4 * spec_.batch * spec_.heads * spec_.sequence));
    emulated_cuda::Enqueue(stream, [spec = spec_, data, workspace = workspace_] {
      if (workspace.value > 0) std::memset(data.workspace, 0xff, workspace.value);
      for (uint64_t batch = 0; batch < spec.batch; ++batch) {
        for (uint64_t head = 0; head < spec.heads; ++head) {
          const Head one(spec, data, batch, head);
          spec.backward ? one.Backward() : one.Forward();
        }
      }
    });
    return {};
  }

 private:
  const CudnnAttentionSpec spec_;
  Bytes workspace_;
};

class Library final : public kernels::CudnnLibrary {
 public:
  Result<std::unique_ptr<kernels::CudnnAttentionGraph>> MakeAttention(
      const CudnnAttentionSpec& spec) override {
    return std::unique_ptr<kernels::CudnnAttentionGraph>(std::make_unique<Graph>(spec));
  }
  std::string name() const override { return "emulated cuDNN"; }
};

}  // namespace

void emulated_cuda::SetCudnn(bool is_there, Bytes more) {
  there = is_there;
  more_bytes = more.value;
}

Result<std::unique_ptr<kernels::CudnnLibrary>> kernels::LoadCudnn() {
  if (!there) {
    return MakeError(ErrorCode::kUnavailable, "attention by cuDNN: none here; install it, {}",
                     kWithoutCudnn);
  }
  return std::unique_ptr<CudnnLibrary>(std::make_unique<Library>());
}

}  // namespace penstock
