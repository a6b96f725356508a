#include "offload/layout.h"

namespace penstock::offload {

uint64_t Layout::elements() const {
  uint64_t sum = 0;
  for (const ModuleLayout& module : modules) sum += module.elements;
  return sum;
}

}  // namespace penstock::offload
