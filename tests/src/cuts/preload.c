/* Logs what a process does to the files of one folder, so that a test can tell what a power cut at
 * any moment could leave of them, and makes every sync slow. To be preloaded (LD_PRELOAD).
 *
 *   CUTS_FOLDER   the folder whose files are logged: an absolute path without links
 *   CUTS_LOG      the log
 *   CUTS_SYNC_MS  how much longer each fsync and fdatasync takes, ms
 *
 * The log is a sequence of records in the order in which the calls took effect: four words of 64
 * bits (operation, inode, offset, length), then `length` bytes. Calls that failed are not in it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum operation {
    OPENED = 1,     /* bytes: the path; offset 1: this emptied it */
    WRITTEN = 2,    /* bytes: what was written at the offset */
    TRUNCATED = 3,  /* offset: the new length */
    SYNC_BEGAN = 4, /* offset: the number of the sync */
    SYNC_ENDED = 5, /* the same */
    RENAMED = 6,    /* bytes: from, NUL, to */
    REMOVED = 7,    /* bytes: the path */
};

#define MAX_FILES 4096
#define MAX_PATH 4096

/* Held from an operation on a file of the folder to the end of its record. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int log_fd = -1;
static char folder[MAX_PATH];
static useconds_t sync_us;
static uint64_t syncs;
/* Files that were looked at: inside the folder or not. */
static struct { dev_t device; ino_t inode; int inside; } files[MAX_FILES];
static int file_count;

static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off64_t);
static int (*real_open)(const char *, int, ...);
static int (*real_openat)(int, const char *, int, ...);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_ftruncate)(int, off64_t);
static int (*real_rename)(const char *, const char *);
static int (*real_unlink)(const char *);

__attribute__((constructor)) static void start(void) {
    real_write = dlsym(RTLD_NEXT, "write");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    real_open = dlsym(RTLD_NEXT, "open64");
    real_openat = dlsym(RTLD_NEXT, "openat64");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    real_rename = dlsym(RTLD_NEXT, "rename");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    const char *path = getenv("CUTS_FOLDER"), *to = getenv("CUTS_LOG");
    const char *sync_ms = getenv("CUTS_SYNC_MS");
    if (path && to) {
        snprintf(folder, sizeof folder, "%s/", path);
        log_fd = real_open(to, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }
    sync_us = sync_ms ? 1000 * (useconds_t)atoi(sync_ms) : 0;
}

static void put_all(const void *bytes, size_t length) {
    for (const char *at = bytes; length > 0;) {
        ssize_t n = real_write(log_fd, at, length);
        if (n <= 0) abort(); /* a log with a hole could prove anything */
        at += n;
        length -= (size_t)n;
    }
}

static void put(enum operation operation, ino_t inode, uint64_t offset, const void *bytes,
                size_t length) {
    int error = errno;
    uint64_t head[4] = {operation, inode, offset, length};
    put_all(head, sizeof head);
    put_all(bytes, length);
    errno = error;
}

static int inside(const char *path) {
    return log_fd >= 0 && strncmp(path, folder, strlen(folder)) == 0;
}

/* The file's inode if it lies in the folder, else 0. `opened`: it may be new, or `emptied`. */
static ino_t look(int fd, int opened, int emptied) {
    struct stat status;
    if (log_fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return 0;
    int i = 0;
    while (i < file_count
           && (files[i].inode != status.st_ino || files[i].device != status.st_dev)) i++;
    if (i < file_count && !opened) return files[i].inside ? status.st_ino : 0;
    char link[64], path[MAX_PATH];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    if (i == MAX_FILES) abort();
    if (i == file_count) file_count++;
    files[i].device = status.st_dev;
    files[i].inode = status.st_ino;
    files[i].inside = inside(path);
    if (!files[i].inside) return 0;
    put(OPENED, status.st_ino, (uint64_t)emptied, path, (size_t)length);
    return status.st_ino;
}

/* The inode of a file of the folder, with the lock held; 0 and no lock for any other. */
static ino_t take(int fd) {
    if (log_fd < 0) return 0;
    int error = errno;
    pthread_mutex_lock(&lock);
    ino_t inode = look(fd, 0, 0);
    if (!inode) pthread_mutex_unlock(&lock);
    errno = error;
    return inode;
}

ssize_t write(int fd, const void *bytes, size_t length) {
    ino_t inode = take(fd);
    ssize_t written = real_write(fd, bytes, length);
    if (!inode) return written;
    if (written > 0) {
        /* Also right for O_APPEND: the position is behind what was written. */
        off64_t end = lseek64(fd, 0, SEEK_CUR);
        put(WRITTEN, inode, (uint64_t)(end - written), bytes, (size_t)written);
    }
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite64(int fd, const void *bytes, size_t length, off64_t offset) {
    ino_t inode = take(fd);
    ssize_t written = real_pwrite(fd, bytes, length, offset);
    if (!inode) return written;
    if (written > 0) put(WRITTEN, inode, (uint64_t)offset, bytes, (size_t)written);
    pthread_mutex_unlock(&lock);
    return written;
}

ssize_t pwrite(int fd, const void *bytes, size_t length, off_t offset) {
    return pwrite64(fd, bytes, length, offset);
}

static int opened(int fd, int flags) {
    if (fd >= 0 && flags & (O_CREAT | O_TRUNC)) {
        pthread_mutex_lock(&lock);
        look(fd, 1, (flags & O_TRUNC) != 0);
        pthread_mutex_unlock(&lock);
    }
    return fd;
}

#define READ_MODE                                                   \
    mode_t mode = 0;                                                \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {      \
        va_list rest;                                               \
        va_start(rest, flags);                                      \
        mode = va_arg(rest, mode_t);                                \
        va_end(rest);                                               \
    }

int open64(const char *path, int flags, ...) {
    READ_MODE
    return opened(real_open(path, flags, mode), flags);
}

int open(const char *path, int flags, ...) {
    READ_MODE
    return opened(real_open(path, flags, mode), flags);
}

int openat64(int at, const char *path, int flags, ...) {
    READ_MODE
    return opened(real_openat(at, path, flags, mode), flags);
}

int openat(int at, const char *path, int flags, ...) {
    READ_MODE
    return opened(real_openat(at, path, flags, mode), flags);
}

static int slow_sync(int fd, int (*real_sync)(int)) {
    ino_t inode = take(fd);
    if (!inode) return real_sync(fd);
    uint64_t number = ++syncs;
    put(SYNC_BEGAN, inode, number, "", 0);
    pthread_mutex_unlock(&lock);
    usleep(sync_us);
    int result = real_sync(fd);
    if (result == 0) {
        pthread_mutex_lock(&lock);
        put(SYNC_ENDED, inode, number, "", 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int fd) { return slow_sync(fd, real_fsync); }

int fdatasync(int fd) { return slow_sync(fd, real_fdatasync); }

int ftruncate64(int fd, off64_t length) {
    ino_t inode = take(fd);
    int result = real_ftruncate(fd, length);
    if (!inode) return result;
    if (result == 0) put(TRUNCATED, inode, (uint64_t)length, "", 0);
    pthread_mutex_unlock(&lock);
    return result;
}

int ftruncate(int fd, off_t length) { return ftruncate64(fd, length); }

int rename(const char *from, const char *to) {
    if (!inside(from) || !inside(to)) return real_rename(from, to);
    char both[2 * MAX_PATH];
    int length = snprintf(both, sizeof both, "%s%c%s", from, 0, to);
    pthread_mutex_lock(&lock);
    int result = real_rename(from, to);
    if (result == 0) put(RENAMED, 0, 0, both, (size_t)length);
    pthread_mutex_unlock(&lock);
    return result;
}

int unlink(const char *path) {
    if (!inside(path)) return real_unlink(path);
    pthread_mutex_lock(&lock);
    int result = real_unlink(path);
    if (result == 0) put(REMOVED, 0, 0, path, strlen(path));
    pthread_mutex_unlock(&lock);
    return result;
}
