#include "kernels/model/cpu_operators.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <dnnl.hpp>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/call_shapes.h"
#include "kernels/model/cpu_rows.h"
#include "kernels/model/cpu_search.h"
#include "kernels/model/operator_factories.h"

#if defined(__SANITIZE_THREAD__)
/// oneDNN is not instrumented, and the barriers of its own OpenMP regions are not seen: what it
/// calls from several threads (memset on a work buffer) would be reported.
// NOLINTNEXTLINE(bugprone-reserved-identifier): the sanitizer's name
extern "C" const char* __tsan_default_suppressions();
// NOLINTNEXTLINE(bugprone-reserved-identifier)
extern "C" const char* __tsan_default_suppressions() { return "called_from_lib:libdnnl.so\n"; }
#endif

namespace penstock::kernels {
namespace {

/// Elements in the smallest piece of work that a loop over elements gives to a thread.
constexpr uint64_t kElementGrain = 1024;

Status Validate(const OperatorOptions& options) {
  PENSTOCK_TRY(CheckCalls(options.calls));
  return CheckThreads(options.threads);
}

/// What oneDNN and OpenMP allocate themselves in the first step: code, packed blocks, stacks.
/// oneDNN does not survive a failure of it, and OpenMP ends the program.
Result<Mapping> HoldRoom(int threads) {
  constexpr Bytes kOfLibraries = 64_MiB;
  constexpr Bytes kOfThread = 8_MiB;
  Result<Mapping> room = Mapping::Create(kOfLibraries + kOfThread * static_cast<uint64_t>(threads));
  if (room.ok()) return room;
  return Error{room.error().code, "operators: room for oneDNN: " + room.error().message};
}

/// See ModelOperators::arithmetic().
std::string Describe(const OperatorOptions& options, Bf16Arithmetic arithmetic) {
  const std::string multiplied = DTypesOf(options.calls, [arithmetic](DType dtype) {
    if (dtype == DType::kFloat32) return std::string("fp32");
    // "bf16 converted" alone was the name of older panels, whose sums over k are cut elsewhere.
    return fmt::format("{} {}", ToString(dtype),
                       Converts(dtype, arithmetic) ? "converted in equal panels" : "native");
  });
  const dnnl::version_t* const version = dnnl::version();
  return fmt::format("cpu {}, {}, oneDNN {}.{}.{} isa {:#x}, {} threads",
                     hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()), multiplied,
                     version->major, version->minor, version->patch,
                     static_cast<unsigned>(dnnl::get_effective_cpu_isa()), options.threads);
}

Result<std::unique_ptr<CpuOperatorParts>> MakeParts(const OperatorOptions& options,
                                                    Bf16Arithmetic arithmetic) {
  PENSTOCK_TRY(Validate(options));
  PENSTOCK_TRY(HoldRoom(options.threads).status());
  try {
    return std::make_unique<CpuOperatorParts>(options, arithmetic);
  } catch (const dnnl::error& error) {
    const bool memory = error.status == dnnl_out_of_memory;
    return MakeError(memory ? ErrorCode::kOutOfMemory : ErrorCode::kUnavailable,
                     "operators: oneDNN cannot make a matrix product: its status is {}",
                     static_cast<int>(error.status));
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "operators: no memory for the matrix products");
  }
}

/// Makes the parts of each call.
class PartsMaker {
 public:
  PartsMaker(CpuOperatorParts& parts, const OperatorOptions& options, Bf16Arithmetic arithmetic)
      : parts_(parts),
        threads_(options.threads),
        adds_once_(options.adds_once),
        arithmetic_(arithmetic) {}

  void operator()(const EmbeddingCall& call) { Make(parts_.embeddings, call, threads_); }
  void operator()(const LayerNormCall& call) {
    parts_.norms.insert(call);
    TakeScratch(Bytes{2 * call.width * sizeof(float)} * static_cast<uint64_t>(threads_));
  }
  void operator()(const LinearCall& call) { Make(parts_.linears, call, threads_, arithmetic_); }
  void operator()(const LinearGeluCall& call) {
    (*this)(InwardOf(call));
    (*this)(OutwardOf(call));
  }
  void operator()(const AttentionCall& call) {
    Make(parts_.attentions, call, threads_, arithmetic_);
  }
  void operator()(const HeadCall& call) {
    Make(parts_.heads, call, threads_, arithmetic_, adds_once_);
  }

 private:
  template <typename Call, typename Part, typename... Others>
  void Make(std::map<Call, Part>& made, const Call& call, Others... others) {
    TakeScratch(made.try_emplace(call, call, others...).first->second.scratch());
  }
  void TakeScratch(Bytes size) { parts_.scratch = std::max(parts_.scratch, size); }

  CpuOperatorParts& parts_;
  const int threads_;
  const bool adds_once_;
  const Bf16Arithmetic arithmetic_;
};

/// Several threads may raise a value.
void RaiseTo(float& value, float to) {
  const std::atomic_ref<float> shared(value);
  float before = shared.load(std::memory_order_relaxed);
  while (before < to && !shared.compare_exchange_weak(before, to, std::memory_order_relaxed)) {
  }
}

template <typename Call, typename Part>
Part& Find(std::map<Call, Part>& parts, const Call& call) {
  const auto found = parts.find(call);
  PENSTOCK_CHECK(found != parts.end(), "operators: a call whose shapes were not declared");
  return found->second;
}

const Linear& FindLinear(const std::map<LinearCall, Linear>& linears, const LinearCall& call) {
  const auto found = linears.find(call);
  PENSTOCK_CHECK(found != linears.end(), "{} x {} is no map of the layers that were declared",
                 call.k, call.n);
  return found->second;
}

}  // namespace

CpuOperatorParts::CpuOperatorParts(const OperatorOptions& options, Bf16Arithmetic arithmetic) {
  PartsMaker make(*this, options, arithmetic);
  for (const OperatorCall& call : options.calls) std::visit(make, call);
  scratch = AlignUp(scratch, device::kDeviceAlignment);
}

CpuOperators::CpuOperators(const OperatorOptions& options, Bf16Arithmetic arithmetic,
                           std::unique_ptr<CpuOperatorParts> parts, device::DeviceBuffer scratch,
                           Mapping room)
    : threads_(options.threads),
      arithmetic_(Describe(options, arithmetic)),
      parts_(std::move(parts)),
      scratch_(std::move(scratch)),
      room_(std::move(room)) {}

void RunKernel(int threads, const std::function<void()>& kernel) {
  const ThreadCountScope scope(threads);
  try {
    kernel();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) throw std::bad_alloc();
    throw;
  }
}

void CpuOperators::Launch(device::Stream& stream, std::function<void()> kernel) {
  room_ = Mapping();
  auto* const cpu_stream = dynamic_cast<device::CpuStream*>(&stream);
  PENSTOCK_CHECK(cpu_stream != nullptr, "operators of the CPU device need one of its streams");
  cpu_stream->Launch(
      [threads = threads_, kernel = std::move(kernel)] { RunKernel(threads, kernel); });
}

void CpuOperators::EmbeddingForward(device::Stream& stream, const TokenView& tokens,
                                    const ConstTensorView& token_table,
                                    const ConstTensorView& position_table, const TensorView& out) {
  const EmbeddingCall call = EmbeddingOf(tokens, out, out.dtype, token_table, position_table);
  Launch(stream, [=, this] {
    const uint64_t row_size = call.width * SizeOf(call.dtype).value;
    ParallelRanges(threads_, call.rows, 1, [&](Range range) {
      for (uint64_t row = range.begin; row < range.end; ++row) {
        const auto token = static_cast<uint64_t>(tokens.data[row]);
        PENSTOCK_CHECK(token < token_table.shape.rows());
        AddElements(call.dtype, token_table.data + token * row_size,
                    position_table.data + row % tokens.sequence * row_size,
                    out.data + row * row_size, call.width);
      }
    });
  });
}

void CpuOperators::EmbeddingBackward(device::Stream& stream, const TokenView& tokens,
                                     const ConstTensorView& d_out, bool adds_once,
                                     const TensorView& d_token_table,
                                     const TensorView& d_position_table) {
  const EmbeddingCall call =
      EmbeddingOf(tokens, d_out, DType::kFloat32, d_token_table, d_position_table);
  const EmbeddingGradient& gradient = Find(parts_->embeddings, call);
  const EmbeddingGradientData data{.tokens = tokens,
                                   .d_out = d_out.data,
                                   .adds_once = adds_once,
                                   .vocabulary = d_token_table.shape.rows(),
                                   .d_token_table = d_token_table.floats(),
                                   .d_position_table = d_position_table.floats()};
  Launch(stream, [=, this, &gradient] { gradient.Run(data, scratch_.data()); });
}

void CpuOperators::LayerNormForward(device::Stream& stream, const ConstTensorView& x,
                                    const ConstTensorView& weight, const ConstTensorView& bias,
                                    float eps, const TensorView& out, const TensorView& mean,
                                    const TensorView& rstd, float* largest) {
  const LayerNormCall call = LayerNormOf(x, out, x.dtype, weight, bias, mean, rstd);
  const LayerNormRows norm{
      .dtype = call.dtype, .width = call.width, .x = x.data, .weight = weight.data};
  Launch(stream, [=, this] {
    ParallelRanges(threads_, call.rows, 1, [&](Range range) {
      const float of_range = LayerNormForwardRows(norm, bias.data, eps, range.begin, range.end,
                                                  out.data, mean.floats(), rstd.floats());
      if (largest != nullptr) RaiseTo(*largest, of_range);
    });
  });
}

void CpuOperators::LayerNormBackward(device::Stream& stream, const ConstTensorView& x,
                                     const ConstTensorView& weight, const ConstTensorView& mean,
                                     const ConstTensorView& rstd, const ConstTensorView& d_out,
                                     bool add_to_d_x, const TensorView& d_x,
                                     const TensorView& d_weight, const TensorView& d_bias) {
  const LayerNormCall call = LayerNormOf(x, d_out, DType::kFloat32, d_weight, d_bias, mean, rstd);
  CheckVector(weight, call.dtype, call.width);
  CheckMatrix(d_x, call.dtype, call.rows, call.width);
  PENSTOCK_CHECK(parts_->norms.contains(call), "operators: a norm that was not declared");
  const LayerNormRows norm{
      .dtype = call.dtype, .width = call.width, .x = x.data, .weight = weight.data};
  const LayerNormGradients gradients{.d_out = d_out.data,
                                     .mean = mean.floats(),
                                     .rstd = rstd.floats(),
                                     .add_to_d_x = add_to_d_x,
                                     .d_x = d_x.data};
  Launch(stream, [=, this] {
    auto* const partial = scratch_.as<float>();
    const uint64_t width = norm.width;
    ParallelParts(threads_, [&](int part) {
      float* sums = partial + static_cast<uint64_t>(part) * 2 * width;
      std::fill_n(sums, 2 * width, 0.0f);
      const Range range = PartOf(call.rows, part, threads_);
      LayerNormBackwardRows(norm, gradients, range.begin, range.end, sums, sums + width);
    });
    AccumulatePartials(threads_, partial, 2 * width, width, d_weight.floats());
    AccumulatePartials(threads_, partial + width, 2 * width, width, d_bias.floats());
  });
}

void CpuOperators::LinearForward(device::Stream& stream, const ConstTensorView& x,
                                 const ConstTensorView& weight, const ConstTensorView& bias,
                                 const ConstTensorView& residual, const TensorView& out) {
  const LinearCall call = LinearOf(x, x.dtype, weight, out);
  CheckVector(bias, call.dtype, call.n);
  CheckResidual(call, residual, out);
  const Linear& linear = FindLinear(parts_->linears, call);
  Launch(stream, [=, this, &linear] {
    linear.Forward({.a = x.data,
                    .b = weight.data,
                    .c = out.data,
                    .bias = bias.data,
                    .residual = residual.data},
                   scratch_.data());
  });
}

void CpuOperators::LinearBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                       const ConstTensorView& weight, const TensorView& d_x) {
  const Linear& linear = FindLinear(parts_->linears, LinearOf(d_x, d_x.dtype, weight, d_out));
  Launch(stream, [=, this, &linear] {
    linear.BackwardInput(d_out.data, weight.data, d_x.data, scratch_.data());
  });
}

void CpuOperators::LinearBackwardWeight(device::Stream& stream, const ConstTensorView& x,
                                        const ConstTensorView& d_out, const TensorView& d_weight,
                                        const TensorView& d_bias) {
  const LinearCall call = LinearOf(x, DType::kFloat32, d_weight, d_out);
  CheckVector(d_bias, DType::kFloat32, call.n);
  const Linear& linear = FindLinear(parts_->linears, call);
  Launch(stream, [=, this, &linear] {
    linear.BackwardWeight(x.data, d_out.data, d_weight.floats(), d_bias.floats(), scratch_.data());
  });
}

void CpuOperators::AttentionForward(device::Stream& stream, uint64_t heads,
                                    const ConstTensorView& qkv, const TensorView& out) {
  Attention& attention = Find(parts_->attentions, AttentionOf(heads, qkv, out));
  Launch(stream, [=, this, &attention] { attention.Forward(qkv.data, out.data, scratch_.data()); });
}

void CpuOperators::AttentionBackward(device::Stream& stream, uint64_t heads,
                                     const ConstTensorView& qkv, const ConstTensorView& out,
                                     const ConstTensorView& d_out, const TensorView& d_qkv) {
  const AttentionCall call = AttentionOf(heads, qkv, d_out);
  CheckMatrix(out, call.dtype, call.batch * call.sequence, call.width);
  CheckMatrix(d_qkv, call.dtype, call.batch * call.sequence, 3 * call.width);
  Attention& attention = Find(parts_->attentions, call);
  Launch(stream, [=, this, &attention] {
    attention.Backward(qkv.data, d_out.data, d_qkv.data, scratch_.data());
  });
}

void CpuOperators::LinearGeluForward(device::Stream& stream, const ConstTensorView& x,
                                     const ConstTensorView& weight, const ConstTensorView& bias,
                                     const TensorView& pre, const TensorView& out) {
  const LinearGeluCall call = LinearGeluOf(x, pre, out);
  LinearForward(stream, x, weight, bias, {}, pre);
  Launch(stream, [=, this] {
    const uint64_t size = SizeOf(call.dtype).value;
    ParallelRanges(threads_, call.rows * call.hidden, kElementGrain, [&](Range range) {
      const uint64_t offset = range.begin * size;
      GeluForwardElements(call.dtype, pre.data + offset, out.data + offset, range.size());
    });
  });
}

void CpuOperators::LinearGeluBackwardInput(device::Stream& stream, const ConstTensorView& d_out,
                                           const ConstTensorView& weight,
                                           const ConstTensorView& pre, const TensorView& d_pre) {
  const LinearGeluCall call = LinearGeluOf(d_out, pre, d_pre);
  LinearBackwardInput(stream, d_out, weight, d_pre);
  Launch(stream, [=, this] {
    const uint64_t size = SizeOf(call.dtype).value;
    ParallelRanges(threads_, call.rows * call.hidden, kElementGrain, [&](Range range) {
      const uint64_t offset = range.begin * size;
      GeluBackwardElements(call.dtype, pre.data + offset, d_pre.data + offset, d_pre.data + offset,
                           range.size());
    });
  });
}

void CpuOperators::HeadForwardBackward(device::Stream& stream, const ConstTensorView& x,
                                       const ConstTensorView& table, const TokenView& targets,
                                       float gradient_scale, double* loss_sum,
                                       const TensorView& d_x, const TensorView& d_table) {
  Head& head = Find(parts_->heads, HeadOf(x, table, targets, d_x, d_table));
  const HeadData data{.x = x.data,
                      .table = table.data,
                      .targets = targets.data,
                      .gradient_scale = gradient_scale,
                      .loss_sum = loss_sum,
                      .d_x = d_x.data,
                      .d_table = d_table.floats()};
  Launch(stream, [=, this, &head] { head.Run(data, scratch_.data()); });
}

void CpuOperators::FindBeyond(device::Stream& stream, const ConstTensorView& x, float limit,
                              uint64_t base, uint64_t* first) {
  Launch(stream, [=] {
    const uint64_t found = CpuFirstBeyond(x, limit);
    if (found < x.shape.elements()) *first = std::min(*first, base + found);
  });
}

Result<Bytes> CpuOperatorScratch(const OperatorOptions& options, Bf16Arithmetic arithmetic) {
  PENSTOCK_ASSIGN(const auto parts, MakeParts(options, arithmetic));
  return parts->scratch;
}

Result<Bytes> CpuOperatorScratch(const OperatorOptions& options) {
  return CpuOperatorScratch(options, BestBf16Arithmetic());
}

Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device& device,
                                                           const OperatorOptions& options) {
  return CreateCpuOperators(device, options, BestBf16Arithmetic());
}

Result<std::unique_ptr<ModelOperators>> CreateCpuOperators(device::Device& device,
                                                           const OperatorOptions& options,
                                                           Bf16Arithmetic arithmetic) {
  PENSTOCK_ASSIGN(auto parts, MakeParts(options, arithmetic));
  PENSTOCK_ASSIGN(auto scratch, device.Allocate(parts->scratch, "scratch of the operators"));
  PENSTOCK_ASSIGN(Mapping room, HoldRoom(options.threads));
  std::unique_ptr<ModelOperators> operators = std::make_unique<CpuOperators>(
      options, arithmetic, std::move(parts), std::move(scratch), std::move(room));
  return operators;
}

}  // namespace penstock::kernels
