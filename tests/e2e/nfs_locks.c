/* Preloaded, does as NFS's client does.
   Locks: an exclusive one needs a descriptor that is open for writing, a shared one needs one that
   is open for reading, and the server locks no folder.
   Removal: a file that this process has open stays in its folder as .nfs… until it is closed. A
   file that another client removed is stale to those who have it open. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef int (*Flock)(int, int);

int flock(int descriptor, int operation) {
  struct stat info;
  int mode = fcntl(descriptor, F_GETFL) & O_ACCMODE;
  int refused = fstat(descriptor, &info) != 0 || S_ISDIR(info.st_mode) ||
                ((operation & LOCK_EX) != 0 && mode == O_RDONLY) ||
                ((operation & LOCK_SH) != 0 && mode == O_WRONLY);
  if (refused) {
    errno = EBADF;
    return -1;
  }
  return ((Flock)dlsym(RTLD_NEXT, "flock"))(descriptor, operation);
}

static int is_kept(const char* path) {
  const char* name = strrchr(path, '/');
  return strncmp(name != NULL ? name + 1 : path, ".nfs", 4) == 0;
}

static int is_open(const struct stat* file) {
  for (int descriptor = 0; descriptor < 256; ++descriptor) {
    struct stat other;
    if (syscall(SYS_fstat, descriptor, &other) == 0 && other.st_dev == file->st_dev &&
        other.st_ino == file->st_ino) {
      return 1;
    }
  }
  return 0;
}

int unlinkat(int folder, const char* path, int flags) {
  struct stat info;
  if ((flags & AT_REMOVEDIR) == 0 && fstatat(folder, path, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
      S_ISREG(info.st_mode) && is_open(&info)) {
    char kept[4096];
    const char* name = strrchr(path, '/');
    int before = name != NULL ? (int)(name + 1 - path) : 0;
    if (is_kept(path)) {
      errno = EBUSY;
      return -1;
    }
    snprintf(kept, sizeof kept, "%.*s.nfs%016lx", before, path, (unsigned long)info.st_ino);
    return renameat(folder, path, folder, kept);
  }
  return (int)syscall(SYS_unlinkat, folder, path, flags);
}

int unlink(const char* path) { return unlinkat(AT_FDCWD, path, 0); }

static void path_of(int descriptor, char* path, size_t size) {
  char link[64];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, size - 1);
  path[length > 0 ? length : 0] = 0;
}

/* Closes a descriptor, or makes it one of what `other` is of. */
static int let_go(int descriptor, int other, int flags) {
  struct stat info;
  char path[4096] = "";
  if (syscall(SYS_fstat, descriptor, &info) == 0 && S_ISREG(info.st_mode)) {
    path_of(descriptor, path, sizeof path);
  }
  int result = other < 0 ? (int)syscall(SYS_close, descriptor)
                         : (int)syscall(SYS_dup3, other, descriptor, flags);
  if (path[0] != 0 && is_kept(path) && !is_open(&info)) {
    syscall(SYS_unlinkat, AT_FDCWD, path, 0);
  }
  return result;
}

int close(int descriptor) { return let_go(descriptor, -1, 0); }

int dup3(int other, int descriptor, int flags) { return let_go(descriptor, other, flags); }

int fstat(int descriptor, struct stat* info) {
  int result = (int)syscall(SYS_fstat, descriptor, info);
  char path[4096];
  if (result != 0 || !S_ISREG(info->st_mode) || info->st_nlink > 0) return result;
  path_of(descriptor, path, sizeof path);
  /* Files that never had a name are not of NFS. */
  if (strncmp(path, "/memfd:", 7) == 0 || strstr(path, "/#") != NULL) return result;
  errno = ESTALE;
  return -1;
}
