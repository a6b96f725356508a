// GELU and its gradient are measured in the products and as separate kernels: which is faster
// depends on the GPU and the shape.
#include "bench/cuda_products.h"

#include "bench/cuda_timing.h"
#include "kernels/model/cuda_gelu.h"
#include "kernels/model/model_operators.h"

namespace penstock::bench {
namespace {

using device::DeviceBuffer;
using kernels::DType;
using kernels::HeadCall;
using kernels::LinearCall;
using kernels::LinearGeluCall;
using kernels::Shape;
using kernels::TensorView;

/// Matrices of bf16, one after the other.
struct Matrices {
  std::byte* next;
  TensorView Take(const Shape& shape) {
    std::byte* const matrix = next;
    next += shape.elements() * SizeOf(DType::kBFloat16).value;
    return As(shape, matrix);
  }
  /// What lies there, as a tensor of that shape.
  static TensorView As(const Shape& shape, std::byte* data) {
    return {DType::kBFloat16, shape, data};
  }
};

/// The tensors around an MLP's maps.
struct Mlp {
  Mlp(const DeviceBuffer& room, const ProductShape& shape) {
    const auto& [batch, sequence, width] = shape;
    Matrices matrices{room.data()};
    x = matrices.Take({batch, sequence, width});
    out = matrices.Take({batch, sequence, width});
    inward = matrices.Take({width, shape.hidden()});
    outward = Matrices::As({shape.hidden(), width}, inward.data);
    wide_bias = matrices.Take({shape.hidden()});
    bias = Matrices::As({width}, wide_bias.data);
    hidden = matrices.Take({batch, sequence, shape.hidden()});
    activated = matrices.Take({batch, sequence, shape.hidden()});
  }

  TensorView x, out, inward, outward, wide_bias, bias, hidden, activated;
};

}  // namespace

std::string ProductShape::Name(const std::string& what) const {
  return fmt::format("{} x {}: {}", rows(), width, what);
}

Result<double> MeasureProducts(device::Device& device, const DeviceBuffer& room,
                               const ProductShape& shape) {
  const uint64_t rows = shape.rows();
  const uint64_t wide = shape.hidden();
  PENSTOCK_ASSIGN(
      const auto made,
      kernels::CreateModelOperators(
          device, {.calls = {LinearCall{DType::kBFloat16, rows, shape.width, wide},
                             LinearCall{DType::kBFloat16, rows, wide, shape.width},
                             LinearGeluCall{DType::kBFloat16, rows, shape.width, wide}}}));
  kernels::ModelOperators& op = *made;
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  auto& queue = static_cast<device::CudaStream&>(*stream);
  const Mlp mlp(room, shape);
  const double operations = 2.0 * static_cast<double>(rows * shape.width * wide) / 1e12;
  double ceiling = 0;
  const auto measure = [&](const char* what, const std::function<void()>& work) -> Status {
    PENSTOCK_ASSIGN(const double took, Time(*stream, work));
    if (ceiling == 0) ceiling = operations / took;
    Print(shape.Name(what), operations / took, "TFLOP/s", ceiling);
    return {};
  };
  fmt::print("{}\n", op.arithmetic());
  PENSTOCK_TRY(measure("product with bias", [&] {
    op.LinearForward(*stream, mlp.x, mlp.inward, mlp.wide_bias, {}, mlp.hidden);
  }));
  PENSTOCK_TRY(measure("product with bias and GELU", [&] {
    op.LinearGeluForward(*stream, mlp.x, mlp.inward, mlp.wide_bias, mlp.hidden, mlp.activated);
  }));
  PENSTOCK_TRY(measure("the same, GELU in a kernel of its own", [&] {
    op.LinearForward(*stream, mlp.x, mlp.inward, mlp.wide_bias, {}, mlp.hidden);
    kernels::CudaGeluForward(queue, DType::kBFloat16, rows * wide, mlp.hidden.data,
                             mlp.activated.data);
  }));
  PENSTOCK_TRY(measure("product back with bias and residual", [&] {
    op.LinearForward(*stream, mlp.activated, mlp.outward, mlp.bias, mlp.x, mlp.out);
  }));
  PENSTOCK_TRY(measure("product and gradient of GELU", [&] {
    op.LinearGeluBackwardInput(*stream, mlp.x, mlp.outward, mlp.hidden, mlp.activated);
  }));
  PENSTOCK_TRY(measure("the same, in a kernel of its own", [&] {
    op.LinearBackwardInput(*stream, mlp.x, mlp.outward, mlp.activated);
    kernels::CudaGeluBackward(queue, DType::kBFloat16, rows * wide, mlp.hidden.data,
                              mlp.activated.data, mlp.activated.data);
  }));
  return ceiling;
}

Status MeasureHead(device::Device& device, const DeviceBuffer& room, const ProductShape& shape,
                   uint64_t vocabulary, double ceiling) {
  const uint64_t width = shape.width;
  PENSTOCK_ASSIGN(
      const auto operators,
      kernels::CreateModelOperators(
          device, {.calls = {HeadCall{DType::kBFloat16, shape.rows(), width, vocabulary}}}));
  PENSTOCK_ASSIGN(const DeviceBuffer d_table,
                  device.Allocate(vocabulary * width * 4_B, "the gradient of the table"));
  PENSTOCK_ASSIGN(const DeviceBuffer targets, device.Allocate(shape.rows() * 4_B, "targets"));
  PENSTOCK_ASSIGN(const DeviceBuffer loss, device.Allocate(8_B, "the loss"));
  PENSTOCK_ASSIGN(const auto stream, device.CreateStream("compute"));
  for (const DeviceBuffer* zeros : {&d_table, &targets, &loss}) {
    stream->Zero(zeros->data(), zeros->size());
  }
  Matrices matrices{room.data()};
  const TensorView x = matrices.Take({shape.batch, shape.sequence, width});
  const TensorView table = matrices.Take({vocabulary, width});
  const TensorView d_x = matrices.Take({shape.batch, shape.sequence, width});
  PENSTOCK_ASSIGN(const double took, Time(*stream, [&] {
                    operators->HeadForwardBackward(
                        *stream, x, table, {shape.batch, shape.sequence, targets.as<int32_t>()}, 1,
                        loss.as<double>(), d_x,
                        {DType::kFloat32, {vocabulary, width}, d_table.data()});
                  }));
  const double operations = 3 * 2.0 * static_cast<double>(shape.rows() * width * vocabulary) / 1e12;
  Print(shape.Name(fmt::format("head, vocabulary {}", vocabulary)), operations / took, "TFLOP/s",
        ceiling);
  return {};
}

}  // namespace penstock::bench
