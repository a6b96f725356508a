#include "base/exception_name.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <typeinfo>

namespace penstock {

std::string ExceptionName(const std::exception& exception) {
  const char* const mangled = typeid(exception).name();
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(mangled, nullptr, nullptr, &status), std::free);
  return status == 0 && name != nullptr ? name.get() : mangled;
}

}  // namespace penstock
