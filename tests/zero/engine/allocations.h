// What this program takes from the heap and maps, for tests of what is planned.
//
// Linked into a test of its own: every malloc of the program and of its libraries is counted, and
// every mapping that the program makes itself. Threads: any, but Begin and Large.
#pragma once

#include <string>
#include <vector>

#include "base/units.h"

namespace penstock {

class Allocations {
 public:
  /// False under a sanitizer, which has an allocator of its own.
  static bool CanBeCounted();
  /// Counts from here on.
  static void Begin();
  /// The most that was taken at once since then, of the heap and by mappings.
  static Bytes heap_peak();
  static Bytes mapping_peak();

  /// An allocation of more than 64 KiB.
  struct Large {
    Bytes size;
    std::string callers;  ///< names of functions as the linker knows them, the innermost first
  };
  /// All since Begin, and the end of it.
  static std::vector<Large> TakeLarge();
};

}  // namespace penstock
