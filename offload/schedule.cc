#include "offload/schedule.h"

namespace penstock::offload {

uint64_t Schedule::NextHostUse(ModuleId module, uint64_t now) const {
  const uint64_t step_start = now / length() * length();
  for (uint64_t use = now - step_start; use < length(); ++use) {
    if (uses[use].module == module && uses[use].fetch) return step_start + use;
  }
  return step_start + length() + first_use[Index(module)];
}

}  // namespace penstock::offload
