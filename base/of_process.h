// A value that each process has for itself, such as a list of what it has open.
//
// A forked child begins with a new one: what its parent noted is not the child's, and a mutex in it
// that another thread of the parent held would stay locked. Never destroyed, so that it may be used
// at the end of the process.
//
// Threads: any; T sees to its own safety.
#pragma once

#include <pthread.h>

namespace penstock {

template <typename T>
class OfProcess {
 public:
  static T& Get() {
    static const bool registered = Begin();
    static_cast<void>(registered);  // without it, a child has its parent's
    return own->value;
  }

 private:
  struct Own {
    T value;
    Own* parents;  ///< never freed, but reachable
  };
  static void Renew() { own = new Own{.value = {}, .parents = own}; }
  static bool Begin() {
    Renew();
    return ::pthread_atfork(nullptr, nullptr, Renew) == 0;
  }
  static inline Own* own = nullptr;
};

}  // namespace penstock
