// How much of the matrix rate do the products of a layer and of the head get?
#pragma once

#include <string>

#include "base/result.h"
#include "device/device.h"

namespace penstock::bench {

struct ProductShape {
  uint64_t batch;
  uint64_t sequence;
  uint64_t width;

  uint64_t rows() const { return batch * sequence; }
  uint64_t hidden() const { return 4 * width; }
  std::string Name(const std::string& what) const;
};
/// A micro-batch of GPT-2 1.3 B, and one of layers twice as wide.
inline constexpr ProductShape kProductShapes[] = {{8, 2048, 2048}, {4, 2048, 4096}};

/// Measures and prints the maps of a layer with what follows them. Operands, which are changed, lie
/// in `room`. Returns the ceiling: the rate of the largest product.
Result<double> MeasureProducts(device::Device& device, const device::DeviceBuffer& room,
                               const ProductShape& shape);
/// The head's three products of all rows, and what lies between them. Likewise.
Status MeasureHead(device::Device& device, const device::DeviceBuffer& room,
                   const ProductShape& shape, uint64_t vocabulary, double ceiling);

}  // namespace penstock::bench
