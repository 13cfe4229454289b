/* Makes the disk under one folder fail while the process runs. To be preloaded (LD_PRELOAD).
 *
 *   DYING_FOLDER  the folder: an absolute path without links
 *   DYING_SWITCH  a file; while it is there, whatever would change a file of the folder fails with
 *                 the error number that is written in it
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The error to fail with; 0: the disk is sound, or the file lies elsewhere. */
static int failing(int fd) {
    const char *folder = getenv("DYING_FOLDER"), *at = getenv("DYING_SWITCH");
    if (!folder || !at) return 0;
    int before = errno, number = 0;
    FILE *file = fopen(at, "re");
    if (file) {
        if (fscanf(file, "%d", &number) != 1) number = EIO;
        fclose(file);
    }
    if (number) {
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, path, sizeof path);
        size_t own = strlen(folder);
        if (length <= (ssize_t)own || strncmp(path, folder, own) || path[own] != '/') number = 0;
    }
    errno = before;
    return number;
}

#define REAL(name, type) ((type)dlsym(RTLD_NEXT, name))
#define FAIL_OR(call)              \
    int number = failing(fd);      \
    if (number) {                  \
        errno = number;            \
        return -1;                 \
    }                              \
    return call;

ssize_t write(int fd, const void *bytes, size_t length) {
    FAIL_OR(REAL("write", ssize_t (*)(int, const void *, size_t))(fd, bytes, length))
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t at) {
    FAIL_OR(REAL("pwrite64", ssize_t (*)(int, const void *, size_t, off64_t))(fd, bytes, length, at))
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t at) {
    return pwrite64(fd, bytes, length, at);
}

int fsync(int fd) { FAIL_OR(REAL("fsync", int (*)(int))(fd)) }

int fdatasync(int fd) { FAIL_OR(REAL("fdatasync", int (*)(int))(fd)) }

int ftruncate64(int fd, off64_t length) {
    FAIL_OR(REAL("ftruncate64", int (*)(int, off64_t))(fd, length))
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }
