/* Preloaded, makes a process slow where it makes and removes state files: a second before one is
   made, ten behind it, and two behind a removal. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

typedef int (*Open)(const char*, int, ...);
typedef int (*Unlink)(const char*);

static int IsState(const char* path) { return strstr(path, ".state") != NULL; }

int open(const char* path, int flags, ...) {
  Open original = (Open)dlsym(RTLD_NEXT, "open64");
  va_list arguments;
  va_start(arguments, flags);
  int mode = (flags & O_CREAT) != 0 ? va_arg(arguments, int) : 0;
  va_end(arguments);
  if ((flags & O_CREAT) == 0 || !IsState(path)) return original(path, flags, mode);
  /* The test waits for this file. */
  close(original("about-to-create", O_CREAT | O_WRONLY, 0600));
  sleep(1);
  int descriptor = original(path, flags, mode);
  sleep(10);
  return descriptor;
}

/* The same, where offsets have 64 bits. */
int open64(const char* path, int flags, ...) __attribute__((alias("open")));

int unlink(const char* path) {
  int result = ((Unlink)dlsym(RTLD_NEXT, "unlink"))(path);
  if (IsState(path)) sleep(2);
  return result;
}
