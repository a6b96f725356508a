#include "aio/io_thread.h"

#include <pthread.h>

#include <csignal>

namespace penstock::aio {

void EnterIoThread(const char* name) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, nullptr);
  pthread_setname_np(pthread_self(), name);
}

}  // namespace penstock::aio
