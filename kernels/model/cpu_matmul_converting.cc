// Products of 16-bit matrices on machines without instructions for them: panels of a and b are
// converted to fp32 in scratch, multiplied there by oneDNN's gemm, and finished by our own loops.
//
// Panels are large and nearly equal, and nothing is padded: so the gemm computes at its full rate,
// and the team's threads, which sleep while they wait, meet only three times for a panel of c.
#include <algorithm>
#include <dnnl.hpp>
#include <utility>

#include "base/check.h"
#include "kernels/convert_elements.h"
#include "kernels/cpu_parallel.h"
#include "kernels/model/cpu_matmul_native.h"
#include "kernels/model/cpu_rows.h"

namespace penstock::kernels {
namespace {

/// Upper bounds of the panels: a is m by k, b is k by n. They bound the scratch to 8 MiB, and each
/// conversion of an element is spread over hundreds of multiplications.
constexpr uint64_t kPanelM = 512;
constexpr uint64_t kPanelN = 1024;
constexpr uint64_t kPanelK = 1024;
/// Every panel but the last has a multiple of this many rows and columns; divides the bounds.
constexpr uint64_t kPanelUnit = 32;

/// Returns the size of the panels that `size` is cut into: as few as `limit` allows, and nearly
/// equal, as a small rest would not keep the threads busy.
uint64_t PanelSize(uint64_t size, uint64_t limit) {
  const uint64_t panels = (size + limit - 1) / limit;
  const uint64_t equal = (size + panels - 1) / panels;
  return std::min(size, (equal + kPanelUnit - 1) / kPanelUnit * kPanelUnit);
}

/// A panel of c: where it begins, and its size.
struct Panel {
  uint64_t row;
  uint64_t column;
  uint64_t rows;
  uint64_t columns;
};

class ConvertingProduct final : public Product {
 public:
  explicit ConvertingProduct(const ProductSpec& spec)
      : spec_(spec),
        m_(PanelSize(spec.m, kPanelM)),
        n_(PanelSize(spec.n, kPanelN)),
        k_(PanelSize(spec.k, kPanelK)) {
    PENSTOCK_CHECK(spec.a.dtype != DType::kFloat32 && spec.a.dtype == spec.b.dtype);
    PENSTOCK_CHECK(spec.epilogue != Epilogue::kAccumulate || spec.c.dtype == DType::kFloat32);
    const auto take = [&](uint64_t rows, uint64_t columns) {
      return cursor_.Take(Bytes{rows * columns * sizeof(float)});
    };
    a_ = take(m_, k_);
    b_ = take(k_, n_);
    c_ = take(m_, n_);
  }

  Bytes scratch() const override { return cursor_.used(); }

  void Run(const ProductData& data, std::byte* scratch) override {
    for (uint64_t column = 0; column < spec_.n; column += n_) {
      for (uint64_t row = 0; row < spec_.m; row += m_) {
        const Panel c{.row = row,
                      .column = column,
                      .rows = std::min(m_, spec_.m - row),
                      .columns = std::min(n_, spec_.n - column)};
        for (uint64_t k = 0; k < spec_.k; k += k_) {
          const Range inner{k, std::min(k + k_, spec_.k)};
          ConvertOperands(data, c, inner, scratch);
          Multiply(c, inner, scratch);
        }
        Finish(data, c, scratch);
      }
    }
  }

 private:
  static float* Floats(std::byte* scratch, uint64_t offset) {
    return reinterpret_cast<float*>(scratch + offset);
  }

  /// Fills the panels of a and b with what `c` needs of them in the columns of a (the rows of b)
  /// `inner`.
  void ConvertOperands(const ProductData& data, const Panel& c, Range inner,
                       std::byte* scratch) const {
    // Run's order leaves a in scratch when it is one panel, and b while its column is gone down.
    const bool has_a = c.column > 0 && m_ == spec_.m && k_ == spec_.k;
    const bool has_b = c.row > 0 && k_ == spec_.k;
    if (has_a && has_b) return;
    ParallelParts(spec_.threads, [&](int part) {
      if (!has_a) {
        ConvertPart(spec_.a, At(spec_.a, data.a, c.row, inner.begin), c.rows, inner.size(), part,
                    Floats(scratch, a_));
      }
      if (!has_b) {
        ConvertPart(spec_.b, At(spec_.b, data.b, inner.begin, c.column), inner.size(), c.columns,
                    part, Floats(scratch, b_));
      }
    });
  }

  /// Converts one thread's part of the rows × columns elements at `from`. They lie in `to` in the
  /// operand's storage order, so that nothing is transposed, and without gaps.
  void ConvertPart(const Operand& operand, const std::byte* from, uint64_t rows, uint64_t columns,
                   int part, float* to) const {
    if (operand.transposed) std::swap(rows, columns);
    const uint64_t row_bytes = operand.stride * SizeOf(operand.dtype).value;
    const Range range = PartOf(rows, part, spec_.threads);
    for (uint64_t row = range.begin; row < range.end; ++row) {
      ConvertElements(operand.dtype, from + row * row_bytes, DType::kFloat32, to + row * columns,
                      columns);
    }
  }

  /// Computes what `inner` contributes to the panel: into scratch, or added to what is there.
  void Multiply(const Panel& c, Range inner, std::byte* scratch) const {
    const auto dim = [](uint64_t size) { return static_cast<dnnl_dim_t>(size); };
    const bool a_transposed = spec_.a.transposed;
    const bool b_transposed = spec_.b.transposed;
    const dnnl::status status = dnnl::sgemm(
        a_transposed ? 'T' : 'N', b_transposed ? 'T' : 'N', dim(c.rows), dim(c.columns),
        dim(inner.size()), 1.0f, Floats(scratch, a_), dim(a_transposed ? c.rows : inner.size()),
        Floats(scratch, b_), dim(b_transposed ? inner.size() : c.columns),
        inner.begin == 0 ? 0.0f : 1.0f, Floats(scratch, c_), dim(c.columns));
    dnnl::error::wrap_c_api(static_cast<dnnl_status_t>(status), "could not multiply fp32 panels");
  }

  void Finish(const ProductData& data, const Panel& c, std::byte* scratch) const {
    ParallelRanges(spec_.threads, c.rows, 1, [&](Range range) {
      for (uint64_t row = range.begin; row < range.end; ++row) {
        FinishRow(data, c.row + row, c.column, c.columns, Floats(scratch, c_) + row * c.columns);
      }
    });
  }

  /// Adds what the epilogue adds to the row `sums`, and stores it.
  void FinishRow(const ProductData& data, uint64_t row, uint64_t column, uint64_t columns,
                 float* sums) const {
    std::byte* c = At(spec_.c, data.c, row, column);
    const auto add = [&](DType dtype, const std::byte* addend) {
      AddToFloats(dtype, addend, sums, columns);
    };
    if (spec_.bias) add(spec_.a.dtype, data.bias + column * SizeOf(spec_.a.dtype).value);
    if (spec_.epilogue == Epilogue::kAddResidual) {
      add(spec_.c.dtype, At(spec_.c, data.residual, row, column));
    }
    if (spec_.epilogue == Epilogue::kAddInPlace || spec_.epilogue == Epilogue::kAccumulate) {
      add(spec_.c.dtype, c);
    }
    ConvertElements(DType::kFloat32, sums, spec_.c.dtype, c, columns);
  }

  const ProductSpec spec_;
  // Sizes of the panels: a is m by k, b is k by n, c is m by n.
  const uint64_t m_;
  const uint64_t n_;
  const uint64_t k_;
  ScratchCursor cursor_;
  // Offsets in scratch.
  uint64_t a_;
  uint64_t b_;
  uint64_t c_;
};

}  // namespace

std::unique_ptr<Product> MakeConvertingProduct(const ProductSpec& spec) {
  return std::make_unique<ConvertingProduct>(spec);
}

}  // namespace penstock::kernels
