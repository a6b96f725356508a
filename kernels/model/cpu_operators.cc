#include "kernels/model/cpu_operators.h"

#include <hwy/targets.h>

#include <algorithm>
#include <dnnl.hpp>
#include <new>
#include <utility>

#include "base/check.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_rows.h"
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
/// Columns in the smallest slice of the embedding's gradient that a thread adds to.
constexpr uint64_t kColumnGrain = 16;

Status Validate(const OperatorOptions& options) {
  const OperatorShapes& shapes = options.shapes;
  PENSTOCK_CHECK(options.threads > 0);
  PENSTOCK_CHECK(shapes.batch > 0 && shapes.sequence > 0 && shapes.width > 0 && shapes.heads > 0 &&
                 shapes.hidden > 0 && shapes.vocabulary > 0);
  if (shapes.width % shapes.heads != 0) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "operators: width {} is no multiple of {} heads; change one of them",
                     shapes.width, shapes.heads);
  }
  if (options.dtype == DType::kFloat16) {
    return MakeError(ErrorCode::kUnavailable,
                     "operators: the CPU device computes in fp32 and bf16, not in {}; use bf16",
                     ToString(options.dtype));
  }
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

/// See Operators::arithmetic().
std::string Describe(const OperatorOptions& options, Bf16Arithmetic arithmetic) {
  // "bf16 converted" alone was the name of older panels, whose sums over k are cut elsewhere.
  const char* const multiplied = options.dtype == DType::kFloat32 ? "fp32"
                                 : arithmetic == Bf16Arithmetic::kNative
                                     ? "bf16 native"
                                     : "bf16 converted in equal panels";
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
                     "operators: oneDNN cannot make a matrix product: {}", error.what());
  } catch (const std::bad_alloc&) {
    return MakeError(ErrorCode::kOutOfMemory, "operators: no memory for the matrix products");
  }
}

}  // namespace

CpuOperatorParts::CpuOperatorParts(const OperatorOptions& options, Bf16Arithmetic arithmetic)
    : linears(options, arithmetic),
      attention(options, arithmetic),
      head(options, arithmetic),
      layer_norm_scratch(Bytes{2 * options.shapes.width * sizeof(float)} *
                         static_cast<uint64_t>(options.threads)) {}

Bytes CpuOperatorParts::scratch() const {
  return AlignUp(
      std::max({linears.scratch(), attention.scratch(), head.scratch(), layer_norm_scratch}),
      device::kDeviceAlignment);
}

CpuOperators::CpuOperators(const OperatorOptions& options, Bf16Arithmetic arithmetic,
                           std::unique_ptr<CpuOperatorParts> parts, device::DeviceBuffer scratch,
                           Mapping room)
    : options_(options),
      dtype_(options.dtype),
      rows_(options.shapes.batch * options.shapes.sequence),
      threads_(options.threads),
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

void CpuOperators::EmbeddingForward(device::Stream& stream, const int32_t* tokens,
                                    const std::byte* token_table, const std::byte* position_table,
                                    std::byte* out) {
  Launch(stream, [=, this] {
    const uint64_t width = options_.shapes.width;
    const uint64_t row_size = width * SizeOf(dtype_).value;
    ParallelRanges(threads_, rows_, 1, [&](Range range) {
      for (uint64_t row = range.begin; row < range.end; ++row) {
        const auto token = static_cast<uint64_t>(tokens[row]);
        PENSTOCK_CHECK(token < options_.shapes.vocabulary);
        AddElements(dtype_, token_table + token * row_size,
                    position_table + row % options_.shapes.sequence * row_size,
                    out + row * row_size, width);
      }
    });
  });
}

void CpuOperators::EmbeddingBackward(device::Stream& stream, const int32_t* tokens,
                                     const std::byte* d_out, float* d_token_table,
                                     float* d_position_table) {
  Launch(stream, [=, this] {
    const uint64_t width = options_.shapes.width;
    // Threads take columns, so that every sum is in the order of the rows.
    ParallelRanges(threads_, width, kColumnGrain, [&](Range columns) {
      for (uint64_t row = 0; row < rows_; ++row) {
        const auto token = static_cast<uint64_t>(tokens[row]);
        const uint64_t position = row % options_.shapes.sequence;
        PENSTOCK_CHECK(token < options_.shapes.vocabulary);
        const std::byte* in = d_out + (row * width + columns.begin) * SizeOf(dtype_).value;
        AddToFloats(dtype_, in, d_token_table + token * width + columns.begin, columns.size());
        AddToFloats(dtype_, in, d_position_table + position * width + columns.begin,
                    columns.size());
      }
    });
  });
}

void CpuOperators::LayerNormForward(device::Stream& stream, const std::byte* x,
                                    const std::byte* weight, const std::byte* bias, float eps,
                                    std::byte* out, float* mean, float* rstd) {
  const LayerNormRows norm{
      .dtype = dtype_, .width = options_.shapes.width, .x = x, .weight = weight};
  Launch(stream, [=, this] {
    ParallelRanges(threads_, rows_, 1, [&](Range range) {
      LayerNormForwardRows(norm, bias, eps, range.begin, range.end, out, mean, rstd);
    });
  });
}

void CpuOperators::LayerNormBackward(device::Stream& stream, const std::byte* x,
                                     const std::byte* weight, const float* mean, const float* rstd,
                                     const std::byte* d_out, bool add_to_d_x, std::byte* d_x,
                                     float* d_weight, float* d_bias) {
  const LayerNormRows norm{
      .dtype = dtype_, .width = options_.shapes.width, .x = x, .weight = weight};
  const LayerNormGradients gradients{
      .d_out = d_out, .mean = mean, .rstd = rstd, .add_to_d_x = add_to_d_x, .d_x = d_x};
  Launch(stream, [=, this] {
    auto* const partial = scratch_.as<float>();
    const uint64_t width = norm.width;
    ParallelParts(threads_, [&](int part) {
      float* sums = partial + static_cast<uint64_t>(part) * 2 * width;
      std::fill_n(sums, 2 * width, 0.0f);
      const Range range = PartOf(rows_, part, threads_);
      LayerNormBackwardRows(norm, gradients, range.begin, range.end, sums, sums + width);
    });
    AccumulatePartials(threads_, partial, 2 * width, width, d_weight);
    AccumulatePartials(threads_, partial + width, 2 * width, width, d_bias);
  });
}

void CpuOperators::LinearForward(device::Stream& stream, const std::byte* x,
                                 const std::byte* weight, const std::byte* bias,
                                 const std::byte* residual, uint64_t k, uint64_t n,
                                 std::byte* out) {
  const Linear& linear = parts_->linears.Find(k, n);
  Launch(stream, [=, this, &linear] {
    linear.Forward({.a = x, .b = weight, .c = out, .bias = bias, .residual = residual},
                   scratch_.data());
  });
}

void CpuOperators::LinearBackwardInput(device::Stream& stream, const std::byte* d_out,
                                       const std::byte* weight, uint64_t k, uint64_t n,
                                       std::byte* d_x) {
  const Linear& linear = parts_->linears.Find(k, n);
  Launch(stream, [=, this, &linear] { linear.BackwardInput(d_out, weight, d_x, scratch_.data()); });
}

void CpuOperators::LinearBackwardWeight(device::Stream& stream, const std::byte* x,
                                        const std::byte* d_out, uint64_t k, uint64_t n,
                                        float* d_weight, float* d_bias) {
  const Linear& linear = parts_->linears.Find(k, n);
  Launch(stream, [=, this, &linear] {
    linear.BackwardWeight(x, d_out, d_weight, d_bias, scratch_.data());
  });
}

void CpuOperators::AttentionForward(device::Stream& stream, const std::byte* qkv, std::byte* out) {
  Launch(stream, [=, this] { parts_->attention.Forward(qkv, out, scratch_.data()); });
}

void CpuOperators::AttentionBackward(device::Stream& stream, const std::byte* qkv,
                                     const std::byte* d_out, std::byte* d_qkv) {
  Launch(stream, [=, this] { parts_->attention.Backward(qkv, d_out, d_qkv, scratch_.data()); });
}

void CpuOperators::LinearGeluForward(device::Stream& stream, const std::byte* x,
                                     const std::byte* weight, const std::byte* bias, std::byte* pre,
                                     std::byte* out) {
  LinearForward(stream, x, weight, bias, nullptr, options_.shapes.width, options_.shapes.hidden,
                pre);
  Launch(stream, [=, this] {
    const uint64_t size = SizeOf(dtype_).value;
    ParallelRanges(threads_, rows_ * options_.shapes.hidden, kElementGrain, [&](Range range) {
      const uint64_t offset = range.begin * size;
      GeluForwardElements(dtype_, pre + offset, out + offset, range.size());
    });
  });
}

void CpuOperators::LinearGeluBackwardInput(device::Stream& stream, const std::byte* d_out,
                                           const std::byte* weight, const std::byte* pre,
                                           std::byte* d_pre) {
  LinearBackwardInput(stream, d_out, weight, options_.shapes.hidden, options_.shapes.width, d_pre);
  Launch(stream, [=, this] {
    const uint64_t size = SizeOf(dtype_).value;
    ParallelRanges(threads_, rows_ * options_.shapes.hidden, kElementGrain, [&](Range range) {
      const uint64_t offset = range.begin * size;
      GeluBackwardElements(dtype_, pre + offset, d_pre + offset, d_pre + offset, range.size());
    });
  });
}

void CpuOperators::HeadForwardBackward(device::Stream& stream, const std::byte* x,
                                       const std::byte* table, const int32_t* targets,
                                       float gradient_scale, double* loss_sum, std::byte* d_x,
                                       float* d_table) {
  PENSTOCK_CHECK((d_x == nullptr) == (d_table == nullptr));
  const HeadData data{.x = x,
                      .table = table,
                      .targets = targets,
                      .gradient_scale = gradient_scale,
                      .loss_sum = loss_sum,
                      .d_x = d_x,
                      .d_table = d_table};
  Launch(stream, [=, this] { parts_->head.Run(data, scratch_.data()); });
}

Result<Bytes> CpuOperatorScratch(const OperatorOptions& options, Bf16Arithmetic arithmetic) {
  PENSTOCK_ASSIGN(const auto parts, MakeParts(options, arithmetic));
  return parts->scratch();
}

Result<Bytes> CpuOperatorScratch(const OperatorOptions& options) {
  return CpuOperatorScratch(options, BestBf16Arithmetic());
}

Result<std::unique_ptr<Operators>> CreateCpuOperators(device::Device& device,
                                                      const OperatorOptions& options) {
  return CreateCpuOperators(device, options, BestBf16Arithmetic());
}

Result<std::unique_ptr<Operators>> CreateCpuOperators(device::Device& device,
                                                      const OperatorOptions& options,
                                                      Bf16Arithmetic arithmetic) {
  PENSTOCK_ASSIGN(auto parts, MakeParts(options, arithmetic));
  PENSTOCK_ASSIGN(auto scratch, device.Allocate(parts->scratch(), "scratch of the operators"));
  PENSTOCK_ASSIGN(Mapping room, HoldRoom(options.threads));
  std::unique_ptr<Operators> operators = std::make_unique<CpuOperators>(
      options, arithmetic, std::move(parts), std::move(scratch), std::move(room));
  return operators;
}

}  // namespace penstock::kernels
