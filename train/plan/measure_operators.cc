#include "train/plan/measure_operators.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <variant>

#include "device/device.h"
#include "kernels/model/model_operators.h"
#include "train/plan/work_time.h"

namespace penstock::train {
namespace {

using kernels::DType;
using kernels::TensorView;

constexpr Bytes kMaxMemory = 1_GiB;
/// Of one pass over all operators: some seconds on a slow machine.
constexpr double kMaxOperations = 1e12;
constexpr float kEpsilon = 1e-5F;

/// Operations of a call's forward and backward, and how often a layer makes it.
struct Cost {
  double operations = 0;
  double times = 1;
  bool head = false;
};

double Product(uint64_t a, uint64_t b, uint64_t c) {
  return static_cast<double>(a) * static_cast<double>(b) * static_cast<double>(c);
}

Cost CostOf(const kernels::EmbeddingCall&) { return {.times = 0}; }
/// Once before attention, and once before the MLP.
Cost CostOf(const kernels::LayerNormCall&) { return {.times = 2}; }
Cost CostOf(const kernels::LinearCall& call) {
  return {.operations = 6 * Product(call.rows, call.k, call.n)};
}
Cost CostOf(const kernels::LinearGeluCall& call) {
  return {.operations = 4 * Product(call.rows, call.width, call.hidden)};
}
Cost CostOf(const kernels::AttentionCall& call) {
  return {.operations = 12 * Product(call.batch * call.sequence, call.sequence, call.width)};
}
Cost CostOf(const kernels::HeadCall& call) {
  return {.operations = 6 * Product(call.rows, call.width, call.vocabulary), .head = true};
}

/// A device with operators, and memory that all tensors of a kind share.
class Bench {
 public:
  static Result<std::unique_ptr<Bench>> Create(const kernels::OperatorOptions& options, DType dtype,
                                               Bytes memory) {
    std::unique_ptr<Bench> bench(new Bench(dtype));
    PENSTOCK_ASSIGN(bench->device_, device::CreateCpuDevice({.memory = memory}));
    PENSTOCK_ASSIGN(bench->operators_, kernels::CreateModelOperators(*bench->device_, options));
    PENSTOCK_ASSIGN(bench->stream_, bench->device_->CreateStream("measure"));
    return bench;
  }

  /// Takes memory for a tensor of so many elements, of small positive numbers.
  Result<TensorView> Take(const kernels::Shape& shape, DType dtype) {
    const Bytes size = shape.elements() * SizeOf(dtype);
    PENSTOCK_ASSIGN(device::DeviceBuffer buffer, device_->Allocate(size, "a measured operator"));
    // 2^-7 in bf16, and about that in fp32 and fp16.
    const int pattern = dtype == DType::kFloat16 ? 0x20 : 0x3c;
    std::memset(buffer.data(), pattern, size.value);
    buffers_.push_back(std::move(buffer));
    return TensorView{dtype, shape, buffers_.back().data()};
  }
  Result<TensorView> Take(const kernels::Shape& shape) { return Take(shape, dtype_); }
  Result<kernels::TokenView> Tokens(uint64_t rows) {
    PENSTOCK_ASSIGN(const TensorView memory, Take({rows}, DType::kFloat32));
    std::memset(memory.data, 0, rows * sizeof(int32_t));
    return kernels::TokenView{1, rows, reinterpret_cast<const int32_t*>(memory.data)};
  }
  /// Gives all tensors back.
  void Clear() { buffers_.clear(); }

  /// Seconds of a call.
  Result<double> Time(const std::function<void(kernels::ModelOperators&, device::Stream&)>& work) {
    auto& stream = static_cast<device::CpuStream&>(*stream_);
    return time_.Of([&]() -> Result<WorkSpan> {
      WorkSpan span;
      stream.Launch([&span] { span.begin = WorkInstant::Now(); });
      work(*operators_, stream);
      stream.Launch([&span] { span.end = WorkInstant::Now(); });
      PENSTOCK_TRY(stream.Synchronize());
      return span;
    });
  }
  bool interrupted() const { return time_.interrupted(); }

 private:
  explicit Bench(DType dtype) : dtype_(dtype) {}

  const DType dtype_;
  WorkTime time_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<kernels::ModelOperators> operators_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<device::DeviceBuffer> buffers_;
};

Result<double> TimeOf(const kernels::EmbeddingCall&, Bench&) { return 0.0; }

Result<double> TimeOf(const kernels::LayerNormCall& call, Bench& bench) {
  PENSTOCK_ASSIGN(const TensorView x, bench.Take({call.rows, call.width}));
  PENSTOCK_ASSIGN(const TensorView out, bench.Take({call.rows, call.width}));
  PENSTOCK_ASSIGN(const TensorView weight, bench.Take({call.width}));
  PENSTOCK_ASSIGN(const TensorView mean, bench.Take({call.rows}, DType::kFloat32));
  PENSTOCK_ASSIGN(const TensorView rstd, bench.Take({call.rows}, DType::kFloat32));
  PENSTOCK_ASSIGN(const TensorView d_weight, bench.Take({call.width}, DType::kFloat32));
  PENSTOCK_ASSIGN(const TensorView d_bias, bench.Take({call.width}, DType::kFloat32));
  return bench.Time([&](kernels::ModelOperators& op, device::Stream& stream) {
    op.LayerNormForward(stream, x, weight, weight, kEpsilon, out, mean, rstd, nullptr);
    op.LayerNormBackward(stream, x, weight, mean, rstd, out, false, out, d_weight, d_bias);
  });
}

Result<double> TimeOf(const kernels::LinearCall& call, Bench& bench) {
  PENSTOCK_ASSIGN(const TensorView x, bench.Take({call.rows, call.k}));
  PENSTOCK_ASSIGN(const TensorView weight, bench.Take({call.k, call.n}));
  PENSTOCK_ASSIGN(const TensorView bias, bench.Take({call.n}));
  PENSTOCK_ASSIGN(const TensorView out, bench.Take({call.rows, call.n}));
  PENSTOCK_ASSIGN(const TensorView d_x, bench.Take({call.rows, call.k}));
  PENSTOCK_ASSIGN(const TensorView d_weight, bench.Take({call.k, call.n}, DType::kFloat32));
  PENSTOCK_ASSIGN(const TensorView d_bias, bench.Take({call.n}, DType::kFloat32));
  return bench.Time([&](kernels::ModelOperators& op, device::Stream& stream) {
    op.LinearForward(stream, x, weight, bias, {}, out);
    op.LinearBackwardWeight(stream, x, out, d_weight, d_bias);
    op.LinearBackwardInput(stream, out, weight, d_x);
  });
}

Result<double> TimeOf(const kernels::LinearGeluCall& call, Bench& bench) {
  PENSTOCK_ASSIGN(const TensorView x, bench.Take({call.rows, call.width}));
  PENSTOCK_ASSIGN(const TensorView weight, bench.Take({call.width, call.hidden}));
  PENSTOCK_ASSIGN(const TensorView back, bench.Take({call.hidden, call.width}));
  PENSTOCK_ASSIGN(const TensorView bias, bench.Take({call.hidden}));
  PENSTOCK_ASSIGN(const TensorView pre, bench.Take({call.rows, call.hidden}));
  PENSTOCK_ASSIGN(const TensorView out, bench.Take({call.rows, call.hidden}));
  return bench.Time([&](kernels::ModelOperators& op, device::Stream& stream) {
    op.LinearGeluForward(stream, x, weight, bias, pre, out);
    op.LinearGeluBackwardInput(stream, x, back, pre, out);
  });
}

Result<double> TimeOf(const kernels::AttentionCall& call, Bench& bench) {
  const auto shape = [&](uint64_t columns) {
    return kernels::Shape{call.batch, call.sequence, columns};
  };
  PENSTOCK_ASSIGN(const TensorView qkv, bench.Take(shape(3 * call.width)));
  PENSTOCK_ASSIGN(const TensorView out, bench.Take(shape(call.width)));
  PENSTOCK_ASSIGN(const TensorView d_qkv, bench.Take(shape(3 * call.width)));
  return bench.Time([&](kernels::ModelOperators& op, device::Stream& stream) {
    op.AttentionForward(stream, call.heads, qkv, out);
    op.AttentionBackward(stream, call.heads, qkv, out, out, d_qkv);
  });
}

Result<double> TimeOf(const kernels::HeadCall& call, Bench& bench) {
  PENSTOCK_ASSIGN(const TensorView x, bench.Take({call.rows, call.width}));
  PENSTOCK_ASSIGN(const TensorView table, bench.Take({call.vocabulary, call.width}));
  PENSTOCK_ASSIGN(const TensorView d_x, bench.Take({call.rows, call.width}));
  PENSTOCK_ASSIGN(const TensorView d_table,
                  bench.Take({call.vocabulary, call.width}, DType::kFloat32));
  PENSTOCK_ASSIGN(const TensorView loss, bench.Take({2}, DType::kFloat32));
  PENSTOCK_ASSIGN(const kernels::TokenView targets, bench.Tokens(call.rows));
  return bench.Time([&](kernels::ModelOperators& op, device::Stream& stream) {
    op.HeadForwardBackward(stream, x, table, targets, 1, reinterpret_cast<double*>(loss.data), d_x,
                           d_table);
  });
}

// Elements that TimeOf takes of a call, at most.
uint64_t ElementsOf(const kernels::EmbeddingCall&) { return 0; }
uint64_t ElementsOf(const kernels::LayerNormCall& call) {
  return SaturatingMultiply(call.rows + 3, 2 * call.width + 2);
}
uint64_t ElementsOf(const kernels::LinearCall& call) {
  return SaturatingAdd(SaturatingMultiply(2 * call.k + 2, call.n),
                       SaturatingMultiply(call.rows, 2 * call.k + call.n));
}
uint64_t ElementsOf(const kernels::LinearGeluCall& call) {
  return SaturatingAdd(SaturatingMultiply(2 * call.width + 1, call.hidden),
                       SaturatingMultiply(call.rows, call.width + 2 * call.hidden));
}
uint64_t ElementsOf(const kernels::AttentionCall& call) {
  return SaturatingMultiply(call.batch * call.sequence, 7 * call.width);
}
uint64_t ElementsOf(const kernels::HeadCall& call) {
  return SaturatingMultiply(2 * call.width + 1, SaturatingAdd(call.vocabulary, call.rows));
}

/// What the largest call takes, as if all of it were fp32.
Bytes MemoryOf(const kernels::OperatorCalls& calls) {
  uint64_t most = 0;
  for (const kernels::OperatorCall& call : calls) {
    most = std::max(most, std::visit([](const auto& of) { return ElementsOf(of); }, call));
  }
  constexpr Bytes kAlignments = 64_KiB;
  return 4_B * most + kAlignments;
}

}  // namespace

Result<OperatorRates> MeasureOperators(const PlannedTraining& training) {
  if (training.kind != device::Kind::kCpu) {
    return MakeError(ErrorCode::kUnavailable, "a GPU's operators are not measured in passing");
  }
  BatchShape shape = training.shape;
  shape.micro_batch = std::clamp<uint64_t>(kMeasuredRows / shape.sequence, 1, shape.micro_batch);
  const kernels::OperatorOptions options = OperatorsFor(training.model, shape, training.config);
  double operations = 0;
  for (const kernels::OperatorCall& call : options.calls) {
    operations += std::visit([](const auto& of) { return CostOf(of).operations; }, call);
  }
  const Bytes memory = MemoryOf(options.calls);
  if (memory > kMaxMemory || operations > kMaxOperations) {
    return MakeError(ErrorCode::kBudget,
                     "the model's operators are too large to be measured in "
                     "passing");
  }
  PENSTOCK_ASSIGN(const Bytes scratch, kernels::OperatorScratch(training.kind, options));
  PENSTOCK_ASSIGN(const std::unique_ptr<Bench> bench,
                  Bench::Create(options, training.config.dtype, AlignUp(memory + scratch, 1_MiB)));
  OperatorRates total;
  OperatorRates seconds;
  for (const kernels::OperatorCall& call : options.calls) {
    const Cost cost = std::visit([](const auto& of) { return CostOf(of); }, call);
    PENSTOCK_ASSIGN(const double took,
                    std::visit([&](const auto& of) { return TimeOf(of, *bench); }, call));
    bench->Clear();
    (cost.head ? total.head : total.layers) += cost.operations;
    (cost.head ? seconds.head : seconds.layers) += took * cost.times;
  }
  return OperatorRates{.layers = total.layers / seconds.layers,
                       .head = total.head / seconds.head,
                       .interrupted = bench->interrupted()};
}

}  // namespace penstock::train
