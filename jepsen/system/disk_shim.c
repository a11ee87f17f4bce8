/* A disk with faults: preloaded into a process, it stands between the process and its files below one folder.

   Three things are shared with the outside, in the folder JEPSEN_DISK_SHIM: `control`, a map of rules, counters and
   switches; `log-*`, the undo log of each process: all that was done to files and names, with the bytes that were there
   before, and each sync; `gone`, where the content of removed files is held by a second name. JEPSEN_DISK_ROOT is the
   folder of the files. `jepsen/system/shim.py` writes the control, `jepsen/system/power.py` reads the log: both have
   the same layouts.

   Order: the old bytes are logged before a file changes, everything else after it has happened, so that a process may
   be killed between any two instructions. A sync covers what was done before it began. Writes of one file, and names,
   are done one after the other in a process. Real calls are plain system calls: no call of libc comes back here. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#define MAGIC 0x4d494853u
#define RULES 32
#define FILES 65536
#define STRIPES 64
#define VECTOR 1024
#define LOG_BYTES (64ll << 20)
#define LOG_FD 700
#define PUBLIC __attribute__((visibility("default")))

enum operation {
    READ = 1, WRITE = 2, SYNC = 4, SYNC_FOLDER = 8, RENAME = 16, REMOVE = 32, TRUNCATE = 64, CREATE = 128, OPEN = 256,
    FOLDER = 512, LINK = 1024, CLOSE = 2048
};
enum action { ERROR = 1, SHORT = 2, DELAY = 3, RATE = 4, KILL_BEFORE = 5, KILL_AFTER = 6, FLIP = 7, LIE = 8, OFF_BEFORE = 9,
              OFF_AFTER = 10 };
enum kind { DID_WRITE = 1, DID_SYNC = 2, DID_NOT_SYNC = 3, DID_NAME = 4, DID_REMOVE = 5, DID_RENAME = 6,
            DID_SYNC_FOLDER = 7, IS_DURABLE = 8 };
enum flag { IS_FOLDER = 1, IS_NEW = 2, IS_CUT = 4, HAS_TARGET = 8 };

struct rule {
    _Atomic uint32_t armed;
    uint32_t operations, action;
    int32_t number;
    _Atomic int64_t skip, times;
    uint64_t value;
    _Atomic uint64_t hits;
    char pattern[208];
};

struct control {
    uint32_t magic, rules;
    _Atomic uint64_t sequence;
    _Atomic uint32_t keeps_log, off;
    _Atomic int64_t room;
    _Atomic uint32_t armed;
    char padding[28];
    struct rule rule[RULES];
};

struct record {
    uint32_t magic, nbytes;
    uint64_t sequence;
    uint16_t kind, flags, name_bytes, more_bytes;
    uint64_t node, other, at, count, size, from;
};

struct place {
    char path[PATH_MAX];
    char folder[PATH_MAX];
    const char *relative, *name;
    uint64_t parent;
};

static struct control *control;
static char root[PATH_MAX], side[PATH_MAX];
static size_t root_chars;
static _Atomic uint8_t known[FILES];
enum { UNKNOWN = 0, INSIDE = 1, OUTSIDE = 2 };
static pthread_mutex_t stripes[STRIPES], names, log_turn;
static int log_fd = -1;
static int64_t log_bytes;
static char log_name[PATH_MAX];

/* ---- the control ---- */

static void make_locks(void) {
    for (int i = 0; i < STRIPES; i++) pthread_mutex_init(&stripes[i], NULL);
    pthread_mutex_init(&names, NULL);
    pthread_mutex_init(&log_turn, NULL);
}

static void in_child(void) {
    make_locks();
    log_fd = -1;
}

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("JEPSEN_DISK_SHIM"), *below = getenv("JEPSEN_DISK_ROOT");
    if (!folder || !below || control) return;
    make_locks();
    pthread_atfork(NULL, NULL, in_child);
    snprintf(root, sizeof root, "%s", below);
    snprintf(side, sizeof side, "%s", folder);
    root_chars = strlen(root);
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/control", side);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return;
    struct control *mapped = mmap(NULL, sizeof *mapped, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (mapped != MAP_FAILED && mapped->magic == MAGIC && mapped->rules == RULES) control = mapped;
}

static int is_watching(void) {
    return control && (control->armed || control->keeps_log || control->off || control->room >= 0);
}

static void nap(uint64_t microseconds) {
    struct timespec left = {microseconds / 1000000, microseconds % 1000000 * 1000};
    while (syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &left, &left) != 0 && errno == EINTR) {}
}

static void while_off(void) {
    while (control->off) nap(5000);
}

static void die(void) {
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;) nap(1000000);
}

static void switch_off(void) {
    control->off = 1;
    die();
}

struct fault {
    int error, is_short, is_lie, flips, after;
    uint64_t seed;
};

static int takes_turn(struct rule *rule) {
    if (rule->skip > 0 && atomic_fetch_sub(&rule->skip, 1) > 0) return 0;
    if (rule->times >= 0 && atomic_fetch_sub(&rule->times, 1) <= 0) {
        rule->times = 0;
        return 0;
    }
    return 1;
}

static struct fault meet(unsigned operation, const char *relative, uint64_t nbytes) {
    struct fault found = {0};
    if (!control->armed) return found;
    for (int i = 0; i < RULES; i++) {
        struct rule *rule = &control->rule[i];
        if (!rule->armed || !(rule->operations & operation) || fnmatch(rule->pattern, relative, 0)) continue;
        if (!takes_turn(rule)) continue;
        uint64_t hit = atomic_fetch_add(&rule->hits, 1);
        switch (rule->action) {
        case ERROR: found.error = rule->number; break;
        case SHORT:
            if (hit % 2 == 0) found.is_short = 1;
            else found.error = rule->number;
            break;
        case DELAY: nap(rule->value); break;
        case RATE: nap(nbytes * 1000000 / (rule->value ? rule->value : 1)); break;
        case KILL_BEFORE: die(); break;
        case OFF_BEFORE: switch_off(); break;
        case KILL_AFTER: found.after = KILL_AFTER; break;
        case OFF_AFTER: found.after = OFF_AFTER; break;
        case FLIP: found.flips = rule->number; found.seed = rule->value + hit * 0x9e3779b97f4a7c15ull; break;
        case LIE: found.is_lie = 1; break;
        }
    }
    return found;
}

static void afterwards(const struct fault *fault) {
    if (fault->after == KILL_AFTER) die();
    if (fault->after == OFF_AFTER) switch_off();
}

/* ---- paths ---- */

static int is_below(const char *path) {
    return !strncmp(path, root, root_chars) && (path[root_chars] == '/' || !path[root_chars]);
}

static const char *relative_of(const char *path) {
    return path[root_chars] ? path + root_chars + 1 : ".";
}

/* "a//b/./c/../d" -> "a/b/d", in place; links are not followed. */
static void tidy(char *path) {
    char *to = path, *from = path;
    while (*from) {
        while (*from == '/') from++;
        char *end = strchrnul(from, '/');
        size_t chars = end - from;
        if (chars == 2 && from[0] == '.' && from[1] == '.') {
            while (to > path && *--to != '/') {}
        } else if (chars && !(chars == 1 && *from == '.')) {
            *to++ = '/';
            memmove(to, from, chars);
            to += chars;
        }
        from = end;
    }
    if (to == path) *to++ = '/';
    *to = 0;
}

static int linked_path(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t chars = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (chars <= 0) return 0;
    path[chars] = 0;
    static const char gone[] = " (deleted)";
    size_t tail = sizeof gone - 1;
    if ((size_t)chars > tail && !strcmp(path + chars - tail, gone)) path[chars - tail] = 0;
    return 1;
}

static int full_path(int folder, const char *path, char *full) {
    if (!path) return 0;
    if (path[0] == '/') {
        if (strlen(path) >= PATH_MAX) return 0;
        strcpy(full, path);
    } else {
        char above[PATH_MAX];
        if (folder == AT_FDCWD) {
            if (syscall(SYS_getcwd, above, sizeof above) <= 0) return 0;
        } else if (!linked_path(folder, above)) return 0;
        if ((size_t)snprintf(full, PATH_MAX, "%s/%s", above, path) >= PATH_MAX) return 0;
    }
    tidy(full);
    return 1;
}

/* Whether the path lies below the root; then all about its place. */
static int found_place(int folder, const char *path, struct place *place) {
    int error = errno, is_inside = full_path(folder, path, place->path) && is_below(place->path);
    if (is_inside) {
        place->relative = relative_of(place->path);
        char *slash = strrchr(place->path, '/');
        place->name = slash + 1;
        snprintf(place->folder, sizeof place->folder, "%.*s", (int)(slash - place->path), place->path);
        struct stat about;
        place->parent = syscall(SYS_newfstatat, AT_FDCWD, place->folder, &about, 0) ? 0 : about.st_ino;
    }
    errno = error;
    return is_inside;
}

/* Whether an open file lies below the root; then its path as it is named now. */
static int is_inside(int fd, char *path) {
    if (!is_watching() || fd < 0 || fd == log_fd) return 0;
    if (fd < FILES && known[fd] == OUTSIDE) return 0;
    int error = errno, found = linked_path(fd, path) && is_below(path);
    if (fd < FILES) known[fd] = found ? INSIDE : OUTSIDE;
    errno = error;
    return found;
}

static void forget(int fd) {
    if (fd >= 0 && fd < FILES) known[fd] = UNKNOWN;
}

/* ---- the undo log ---- */

static void open_log(void) {
    snprintf(log_name, sizeof log_name, "%.*s/log-%012llu-%d", PATH_MAX - 40, side,
             (unsigned long long)atomic_fetch_add(&control->sequence, 1), (int)syscall(SYS_getpid));
    int fd = syscall(SYS_openat, AT_FDCWD, log_name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
    if (fd < 0) return;
    log_fd = syscall(SYS_fcntl, fd, F_DUPFD_CLOEXEC, LOG_FD);
    syscall(SYS_close, fd);
    log_bytes = 0;
}

/* A record; `sequence` 0 takes the next. A log that is full is begun anew: what it held counts as written back, as the
   system does with every page after a while. */
static void note(struct record *record, const char *name, const char *more, const void *old, size_t old_bytes) {
    if (!control->keeps_log) return;
    int error = errno;
    pthread_mutex_lock(&log_turn);
    if (log_fd >= 0 && log_bytes > LOG_BYTES) {
        syscall(SYS_unlinkat, AT_FDCWD, log_name, 0);
        syscall(SYS_close, log_fd);
        log_fd = -1;
    }
    if (log_fd < 0) open_log();
    record->magic = MAGIC;
    record->sequence = atomic_fetch_add(&control->sequence, 1);
    record->name_bytes = name ? strlen(name) : 0;
    record->more_bytes = more ? strlen(more) : 0;
    record->nbytes = sizeof *record + record->name_bytes + record->more_bytes + old_bytes;
    struct iovec parts[4] = {{record, sizeof *record},
                             {(void *)name, record->name_bytes},
                             {(void *)more, record->more_bytes},
                             {(void *)old, old_bytes}};
    if (syscall(SYS_writev, log_fd, parts, 4) != (long)record->nbytes) {
        static const char said[] = "disk_shim: the undo log cannot be written\n";
        syscall(SYS_write, 2, said, sizeof said - 1);
        _exit(99);
    }
    log_bytes += record->nbytes;
    pthread_mutex_unlock(&log_turn);
    errno = error;
}

static uint64_t moment(void) {
    return atomic_fetch_add(&control->sequence, 1);
}

/* The content of a file that is about to lose its name is held by another one. */
static void hold(const char *path, uint64_t node) {
    if (!control->keeps_log) return;
    char held[PATH_MAX + 48];
    snprintf(held, sizeof held, "%s/gone/%llu", side, (unsigned long long)node);
    syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, held, 0);
}

static void give_room(int64_t nbytes) {
    if (control->room >= 0) atomic_fetch_add(&control->room, nbytes);
}

/* ---- writes ---- */

static uint64_t nbytes_of(const struct iovec *parts, int count) {
    uint64_t total = 0;
    for (int i = 0; i < count; i++) total += parts[i].iov_len;
    return total;
}

static int limited(const struct iovec *parts, int count, uint64_t most, struct iovec *into) {
    int used = 0;
    for (; used < count && used < VECTOR && most; used++) {
        into[used] = parts[used];
        if (into[used].iov_len > most) into[used].iov_len = most;
        most -= into[used].iov_len;
    }
    return used;
}

/* The bytes of a file from `at`; caller frees. A file that is open for writing only is opened once more. */
static void *old_bytes(int fd, uint64_t at, uint64_t count, size_t *found) {
    *found = 0;
    if (!count) return NULL;
    char link[64], *bytes = malloc(count);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int again = syscall(SYS_openat, AT_FDCWD, link, O_RDONLY | O_CLOEXEC, 0);
    while (bytes && again >= 0 && *found < count) {
        ssize_t n = syscall(SYS_pread64, again, bytes + *found, count - *found, at + *found);
        if (n <= 0) break;
        *found += n;
    }
    if (again >= 0) syscall(SYS_close, again);
    return bytes;
}

/* How many of the bytes find room; all that is behind the present end takes some. */
static uint64_t with_room(uint64_t at, uint64_t count, uint64_t size) {
    int64_t room = control->room;
    if (room < 0) return count;
    uint64_t grows = at + count > size ? at + count - (at > size ? at : size) : 0;
    int64_t taken = grows < (uint64_t)room ? (int64_t)grows : room;
    atomic_fetch_sub(&control->room, taken);
    return count - (grows - taken);
}

static void note_change(int fd, uint64_t node, uint64_t at, uint64_t count, uint64_t size, int flags) {
    if (!control->keeps_log) return;
    uint64_t end = flags & IS_CUT ? size : at + count < size ? at + count : size;
    size_t found = 0;
    void *old = at < end ? old_bytes(fd, at, end - at, &found) : NULL;
    struct record record = {.kind = DID_WRITE, .flags = flags, .node = node, .at = at, .count = count, .size = size};
    note(&record, NULL, NULL, old, found);
    free(old);
}

static pthread_mutex_t *stripe_of(uint64_t node) {
    return &stripes[node % STRIPES];
}

/* A write at a place, or with `at` -1 where the file stands. */
static ssize_t put(int fd, const char *path, const struct iovec *parts, int count, off_t at, int flags) {
    uint64_t total = nbytes_of(parts, count);
    while_off();
    struct fault fault = meet(WRITE, relative_of(path), total);
    if (fault.error) return errno = fault.error, -1;
    struct stat about;
    if (syscall(SYS_fstat, fd, &about) || !S_ISREG(about.st_mode) || !total) {
        return at < 0 ? syscall(SYS_writev, fd, parts, count) : syscall(SYS_pwritev2, fd, parts, count, at, 0, flags);
    }
    if (fault.is_short) total = (total + 1) / 2;
    pthread_mutex_lock(stripe_of(about.st_ino));
    syscall(SYS_fstat, fd, &about);
    int mode = syscall(SYS_fcntl, fd, F_GETFL);
    uint64_t begins = mode & O_APPEND ? about.st_size : at < 0 ? syscall(SYS_lseek, fd, 0, SEEK_CUR) : at;
    uint64_t most = with_room(begins, total, about.st_size);
    struct iovec some[VECTOR];
    int used = limited(parts, count, most, some);
    ssize_t written = -1;
    if (fault.is_lie) {
        written = total;
    } else if (!most) {
        errno = ENOSPC;
    } else {
        note_change(fd, about.st_ino, begins, most, about.st_size, 0);
        written = at < 0 ? syscall(SYS_writev, fd, some, used) : syscall(SYS_pwritev2, fd, some, used, at, 0, flags);
        if (written > 0 && mode & (O_DSYNC | O_SYNC)) {
            struct record record = {.kind = IS_DURABLE, .node = about.st_ino, .at = begins, .count = written};
            while_off();
            note(&record, NULL, NULL, NULL, 0);
        }
    }
    pthread_mutex_unlock(stripe_of(about.st_ino));
    afterwards(&fault);
    return written;
}

static int cut(int fd, const char *path, off_t size) {
    while_off();
    struct fault fault = meet(TRUNCATE, relative_of(path), 0);
    if (fault.error) return errno = fault.error, -1;
    if (fault.is_lie) return 0;
    struct stat about;
    if (syscall(SYS_fstat, fd, &about)) return -1;
    pthread_mutex_lock(stripe_of(about.st_ino));
    syscall(SYS_fstat, fd, &about);
    note_change(fd, about.st_ino, size, 0, about.st_size, IS_CUT);
    int made = syscall(SYS_ftruncate, fd, size);
    if (!made && size < about.st_size) give_room(about.st_size - size);
    pthread_mutex_unlock(stripe_of(about.st_ino));
    afterwards(&fault);
    return made;
}

PUBLIC ssize_t write(int fd, const void *bytes, size_t count) {
    char path[PATH_MAX];
    if (!is_inside(fd, path)) return syscall(SYS_write, fd, bytes, count);
    struct iovec part = {(void *)bytes, count};
    return put(fd, path, &part, 1, -1, 0);
}

PUBLIC ssize_t writev(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    return is_inside(fd, path) ? put(fd, path, parts, count, -1, 0) : syscall(SYS_writev, fd, parts, count);
}

PUBLIC ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) {
    char path[PATH_MAX];
    if (!is_inside(fd, path)) return syscall(SYS_pwrite64, fd, bytes, count, at);
    struct iovec part = {(void *)bytes, count};
    return put(fd, path, &part, 1, at, 0);
}

PUBLIC ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return pwrite64(fd, bytes, count, at);
}

PUBLIC ssize_t pwritev64v2(int fd, const struct iovec *parts, int count, off64_t at, int flags) {
    char path[PATH_MAX];
    if (!is_inside(fd, path)) return syscall(SYS_pwritev2, fd, parts, count, at, 0, flags);
    return put(fd, path, parts, count, at, flags);
}

PUBLIC ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    return pwritev64v2(fd, parts, count, at, flags);
}

PUBLIC ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t at) {
    return pwritev64v2(fd, parts, count, at, 0);
}

PUBLIC ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    return pwritev64v2(fd, parts, count, at, 0);
}

PUBLIC int ftruncate64(int fd, off64_t size) {
    char path[PATH_MAX];
    return is_inside(fd, path) ? cut(fd, path, size) : syscall(SYS_ftruncate, fd, size);
}

PUBLIC int ftruncate(int fd, off_t size) {
    return ftruncate64(fd, size);
}

PUBLIC int truncate64(const char *path, off64_t size) {
    struct place place;
    if (!is_watching() || !found_place(AT_FDCWD, path, &place)) return syscall(SYS_truncate, path, size);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0) return -1;
    int made = cut(fd, place.path, size), error = errno;
    syscall(SYS_close, fd);
    return errno = error, made;
}

PUBLIC int truncate(const char *path, off_t size) {
    return truncate64(path, size);
}

/* Room that is taken beforehand: the file grows by zeros, or stays. */
PUBLIC int fallocate64(int fd, int mode, off64_t at, off64_t count) {
    char path[PATH_MAX];
    if (!is_inside(fd, path)) return syscall(SYS_fallocate, fd, mode, at, count);
    while_off();
    struct fault fault = meet(WRITE, relative_of(path), count);
    if (fault.error) return errno = fault.error, -1;
    struct stat about;
    if (syscall(SYS_fstat, fd, &about)) return -1;
    pthread_mutex_lock(stripe_of(about.st_ino));
    int made = -1;
    if (with_room(at, count, about.st_size) < (uint64_t)count) {
        errno = ENOSPC;
    } else {
        note_change(fd, about.st_ino, at, count, about.st_size, 0);
        made = syscall(SYS_fallocate, fd, mode, at, count);
    }
    pthread_mutex_unlock(stripe_of(about.st_ino));
    afterwards(&fault);
    return made;
}

PUBLIC int fallocate(int fd, int mode, off_t at, off_t count) {
    return fallocate64(fd, mode, at, count);
}

PUBLIC int posix_fallocate64(int fd, off64_t at, off64_t count) {
    int error = errno, made = fallocate64(fd, 0, at, count) ? errno : 0;
    return errno = error, made;
}

PUBLIC int posix_fallocate(int fd, off_t at, off_t count) {
    return posix_fallocate64(fd, at, count);
}

/* Copies inside the kernel are done by hand, piece by piece. */
static ssize_t copied(int from, off64_t *at, int to, const char *path, off64_t *target, size_t count) {
    char bytes[65536];
    size_t most = count < sizeof bytes ? count : sizeof bytes;
    ssize_t found = at ? pread64(from, bytes, most, *at) : read(from, bytes, most);
    if (found <= 0) return found;
    struct iovec part = {bytes, found};
    ssize_t written = put(to, path, &part, 1, target ? *target : -1, 0);
    if (written < found && !at) syscall(SYS_lseek, from, (written < 0 ? 0 : written) - found, SEEK_CUR);
    if (written > 0 && at) *at += written;
    if (written > 0 && target) *target += written;
    return written;
}

PUBLIC ssize_t sendfile64(int to, int from, off64_t *at, size_t count) {
    char path[PATH_MAX];
    return is_inside(to, path) ? copied(from, at, to, path, NULL, count) : syscall(SYS_sendfile, to, from, at, count);
}

PUBLIC ssize_t sendfile(int to, int from, off_t *at, size_t count) {
    return sendfile64(to, from, at, count);
}

PUBLIC ssize_t copy_file_range(int from, off64_t *at, int to, off64_t *target, size_t count, unsigned flags) {
    char path[PATH_MAX];
    if (is_inside(to, path)) return copied(from, at, to, path, target, count);
    return syscall(SYS_copy_file_range, from, at, to, target, count, flags);
}

/* ---- syncs ---- */

static int synced(int fd, const char *path, long call) {
    struct stat about;
    if (syscall(SYS_fstat, fd, &about)) return -1;
    int is_folder = S_ISDIR(about.st_mode);
    while_off();
    struct fault fault = meet(is_folder ? SYNC_FOLDER : SYNC, relative_of(path), 0);
    if (fault.is_lie) return 0;
    pthread_mutex_t *turn = is_folder ? &names : stripe_of(about.st_ino);
    pthread_mutex_lock(turn);
    struct record record = {.node = about.st_ino, .from = moment()};
    pthread_mutex_unlock(turn);
    if (fault.error) {
        record.kind = DID_NOT_SYNC;
        record.flags = is_folder ? IS_FOLDER : 0;
        note(&record, NULL, NULL, NULL, 0);
        return errno = fault.error, -1;
    }
    int made = syscall(call, fd);
    while_off();
    if (!made) {
        record.kind = is_folder ? DID_SYNC_FOLDER : DID_SYNC;
        note(&record, NULL, NULL, NULL, 0);
    }
    afterwards(&fault);
    return made;
}

PUBLIC int fsync(int fd) {
    char path[PATH_MAX];
    return is_inside(fd, path) ? synced(fd, path, SYS_fsync) : syscall(SYS_fsync, fd);
}

PUBLIC int fdatasync(int fd) {
    char path[PATH_MAX];
    return is_inside(fd, path) ? synced(fd, path, SYS_fdatasync) : syscall(SYS_fdatasync, fd);
}

/* ---- reads ---- */

static void flip(const struct iovec *parts, int count, uint64_t nbytes, const struct fault *fault) {
    uint64_t state = fault->seed | 1;
    for (int bit = 0; bit < fault->flips; bit++) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        uint64_t at = (state >> 3) % nbytes;
        for (int i = 0; i < count; i++) {
            if (at < parts[i].iov_len) {
                ((unsigned char *)parts[i].iov_base)[at] ^= 1u << (state & 7);
                break;
            }
            at -= parts[i].iov_len;
        }
    }
}

static ssize_t get(int fd, const char *path, const struct iovec *parts, int count, off_t at, int flags) {
    struct fault fault = meet(READ, relative_of(path), nbytes_of(parts, count));
    if (fault.error) return errno = fault.error, -1;
    struct iovec some[VECTOR];
    if (fault.is_short) {
        count = limited(parts, count, (nbytes_of(parts, count) + 1) / 2, some);
        parts = some;
    }
    ssize_t found = at < 0 ? syscall(SYS_readv, fd, parts, count) : syscall(SYS_preadv2, fd, parts, count, at, 0, flags);
    if (found > 0 && fault.flips) flip(parts, count, found, &fault);
    afterwards(&fault);
    return found;
}

PUBLIC ssize_t read(int fd, void *bytes, size_t count) {
    char path[PATH_MAX];
    if (!control || !control->armed || !is_inside(fd, path)) return syscall(SYS_read, fd, bytes, count);
    struct iovec part = {bytes, count};
    return get(fd, path, &part, 1, -1, 0);
}

PUBLIC ssize_t pread64(int fd, void *bytes, size_t count, off64_t at) {
    char path[PATH_MAX];
    if (!control || !control->armed || !is_inside(fd, path)) return syscall(SYS_pread64, fd, bytes, count, at);
    struct iovec part = {bytes, count};
    return get(fd, path, &part, 1, at, 0);
}

PUBLIC ssize_t pread(int fd, void *bytes, size_t count, off_t at) {
    return pread64(fd, bytes, count, at);
}

PUBLIC ssize_t readv(int fd, const struct iovec *parts, int count) {
    char path[PATH_MAX];
    if (!control || !control->armed || !is_inside(fd, path)) return syscall(SYS_readv, fd, parts, count);
    return get(fd, path, parts, count, -1, 0);
}

PUBLIC ssize_t preadv64(int fd, const struct iovec *parts, int count, off64_t at) {
    char path[PATH_MAX];
    if (!control || !control->armed || !is_inside(fd, path)) return syscall(SYS_preadv2, fd, parts, count, at, 0, 0);
    return get(fd, path, parts, count, at, 0);
}

PUBLIC ssize_t preadv(int fd, const struct iovec *parts, int count, off_t at) {
    return preadv64(fd, parts, count, at);
}

PUBLIC ssize_t __read_chk(int fd, void *bytes, size_t count, size_t size) {
    return count > size ? (abort(), -1) : read(fd, bytes, count);
}

PUBLIC ssize_t __pread_chk(int fd, void *bytes, size_t count, off_t at, size_t size) {
    return count > size ? (abort(), -1) : pread64(fd, bytes, count, at);
}

PUBLIC ssize_t __pread64_chk(int fd, void *bytes, size_t count, off64_t at, size_t size) {
    return count > size ? (abort(), -1) : pread64(fd, bytes, count, at);
}

/* ---- files and names ---- */

static void note_name(const struct place *place, uint64_t node, int flags) {
    struct record record = {.kind = DID_NAME, .flags = flags, .node = node, .other = place->parent};
    note(&record, place->name, NULL, NULL, 0);
}

static int made_file(const struct place *place, int flags, mode_t mode, struct fault *fault) {
    struct stat about;
    if (control->room == 0) return errno = ENOSPC, -1;
    pthread_mutex_lock(&names);
    int fd = syscall(SYS_openat, AT_FDCWD, place->path, flags, mode);
    if (fd >= 0 && !syscall(SYS_fstat, fd, &about)) note_name(place, about.st_ino, IS_NEW);
    pthread_mutex_unlock(&names);
    afterwards(fault);
    return fd;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    struct place place;
    if (!is_watching() || flags & O_PATH || !found_place(folder, path, &place)) {
        int fd = syscall(SYS_openat, folder, path, flags, mode);
        forget(fd);
        return fd;
    }
    struct stat about;
    int is_there = !syscall(SYS_newfstatat, AT_FDCWD, place.path, &about, 0);
    int makes = flags & O_CREAT && !is_there, cuts = flags & O_TRUNC && is_there && about.st_size > 0;
    if (makes || cuts) while_off();
    struct fault fault = meet(makes ? CREATE : OPEN, place.relative, 0);
    if (fault.error) return errno = fault.error, -1;
    if (makes) {
        int fd = made_file(&place, flags, mode, &fault);
        forget(fd);
        return fd;
    }
    int fd = syscall(SYS_openat, AT_FDCWD, place.path, cuts ? flags & ~O_TRUNC : flags, mode);
    forget(fd);
    if (fd >= 0 && cuts && (flags & O_EXCL) == 0 && cut(fd, place.path, 0)) {
        int error = errno;
        syscall(SYS_close, fd);
        return errno = error, -1;
    }
    afterwards(&fault);
    return fd;
}

#define MODE(flags, mode) \
    mode_t mode = 0; \
    if (flags & (O_CREAT | __O_TMPFILE)) { \
        va_list more; \
        va_start(more, flags); \
        mode = va_arg(more, mode_t); \
        va_end(more); \
    }

PUBLIC int open(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags, mode);
}

PUBLIC int open64(const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}

PUBLIC int openat(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(folder, path, flags, mode);
}

PUBLIC int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags, mode)
    return opened(folder, path, flags | O_LARGEFILE, mode);
}

PUBLIC int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}

PUBLIC int creat64(const char *path, mode_t mode) {
    return creat(path, mode);
}

PUBLIC int __open_2(const char *path, int flags) {
    return opened(AT_FDCWD, path, flags, 0);
}

PUBLIC int __open64_2(const char *path, int flags) {
    return opened(AT_FDCWD, path, flags, 0);
}

PUBLIC int __openat_2(int folder, const char *path, int flags) {
    return opened(folder, path, flags, 0);
}

PUBLIC int __openat64_2(int folder, const char *path, int flags) {
    return opened(folder, path, flags, 0);
}

PUBLIC int close(int fd) {
    if (fd >= 0 && fd == log_fd) return 0;
    char path[PATH_MAX];
    struct fault fault = {0};
    if (control && control->armed && is_inside(fd, path)) fault = meet(CLOSE, relative_of(path), 0);
    forget(fd);
    int made = syscall(SYS_close, fd);
    afterwards(&fault);
    return fault.error ? errno = fault.error, -1 : made;
}

PUBLIC int dup2(int fd, int other) {
    forget(other);
    return syscall(SYS_dup2, fd, other);
}

PUBLIC int dup3(int fd, int other, int flags) {
    forget(other);
    return syscall(SYS_dup3, fd, other, flags);
}

PUBLIC int renameat2(int folder, const char *source, int target_folder, const char *target, unsigned flags) {
    struct place from, to;
    int is_from = is_watching() && found_place(folder, source, &from);
    int is_to = is_watching() && found_place(target_folder, target, &to);
    if (!is_from && !is_to) return syscall(SYS_renameat2, folder, source, target_folder, target, flags);
    while_off();
    struct fault fault = meet(RENAME, is_to ? to.relative : from.relative, 0);
    if (fault.error) return errno = fault.error, -1;
    if (fault.is_lie) return 0;
    struct stat about, replaced;
    pthread_mutex_lock(&names);
    int error = errno, is_there = !syscall(SYS_newfstatat, folder, source, &about, AT_SYMLINK_NOFOLLOW);
    int has_target = is_to && !syscall(SYS_newfstatat, target_folder, target, &replaced, AT_SYMLINK_NOFOLLOW);
    if (has_target && S_ISREG(replaced.st_mode)) hold(to.path, replaced.st_ino);
    if (!is_to && is_there && S_ISREG(about.st_mode)) hold(from.path, about.st_ino);
    errno = error;
    int made = syscall(SYS_renameat2, folder, source, target_folder, target, flags);
    if (!made && is_there && !(has_target && about.st_ino == replaced.st_ino)) {
        struct record record = {.node = about.st_ino, .flags = S_ISDIR(about.st_mode) ? IS_FOLDER : 0};
        record.other = is_to ? to.parent : from.parent;
        if (is_from && is_to) {
            record.kind = DID_RENAME;
            record.flags |= has_target ? HAS_TARGET : 0;
            record.from = from.parent;
            record.at = has_target ? replaced.st_ino : 0;
            note(&record, to.name, from.name, NULL, 0);
        } else {
            record.kind = is_to ? DID_NAME : DID_REMOVE;
            note(&record, is_to ? to.name : from.name, NULL, NULL, 0);
        }
    }
    pthread_mutex_unlock(&names);
    afterwards(&fault);
    return made;
}

PUBLIC int renameat(int folder, const char *source, int target_folder, const char *target) {
    return renameat2(folder, source, target_folder, target, 0);
}

PUBLIC int rename(const char *source, const char *target) {
    return renameat2(AT_FDCWD, source, AT_FDCWD, target, 0);
}

PUBLIC int unlinkat(int folder, const char *path, int flags) {
    struct place place;
    if (!is_watching() || !found_place(folder, path, &place)) return syscall(SYS_unlinkat, folder, path, flags);
    while_off();
    struct fault fault = meet(REMOVE, place.relative, 0);
    if (fault.error) return errno = fault.error, -1;
    if (fault.is_lie) return 0;
    struct stat about;
    pthread_mutex_lock(&names);
    int is_there = !syscall(SYS_newfstatat, AT_FDCWD, place.path, &about, AT_SYMLINK_NOFOLLOW);
    if (is_there && S_ISREG(about.st_mode)) hold(place.path, about.st_ino);
    int made = syscall(SYS_unlinkat, AT_FDCWD, place.path, flags);
    if (!made && is_there) {
        struct record record = {.kind = DID_REMOVE, .node = about.st_ino, .other = place.parent,
                                .flags = S_ISDIR(about.st_mode) ? IS_FOLDER : 0};
        note(&record, place.name, NULL, NULL, 0);
        if (S_ISREG(about.st_mode) && about.st_nlink == 1) give_room(about.st_size);
    }
    pthread_mutex_unlock(&names);
    afterwards(&fault);
    return made;
}

PUBLIC int unlink(const char *path) {
    return unlinkat(AT_FDCWD, path, 0);
}

PUBLIC int rmdir(const char *path) {
    return unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
}

PUBLIC int remove(const char *path) {
    int made = unlink(path);
    return made && errno == EISDIR ? rmdir(path) : made;
}

PUBLIC int linkat(int folder, const char *source, int target_folder, const char *target, int flags) {
    struct place place;
    if (!is_watching() || !found_place(target_folder, target, &place)) {
        return syscall(SYS_linkat, folder, source, target_folder, target, flags);
    }
    while_off();
    struct fault fault = meet(LINK, place.relative, 0);
    if (fault.error) return errno = fault.error, -1;
    struct stat about;
    pthread_mutex_lock(&names);
    int made = syscall(SYS_linkat, folder, source, target_folder, target, flags);
    if (!made && !syscall(SYS_newfstatat, AT_FDCWD, place.path, &about, AT_SYMLINK_NOFOLLOW)) {
        note_name(&place, about.st_ino, 0);
    }
    pthread_mutex_unlock(&names);
    afterwards(&fault);
    return made;
}

PUBLIC int link(const char *source, const char *target) {
    return linkat(AT_FDCWD, source, AT_FDCWD, target, 0);
}

PUBLIC int mkdirat(int folder, const char *path, mode_t mode) {
    struct place place;
    if (!is_watching() || !found_place(folder, path, &place)) return syscall(SYS_mkdirat, folder, path, mode);
    while_off();
    struct fault fault = meet(FOLDER, place.relative, 0);
    if (!fault.error && control->room == 0) fault.error = ENOSPC;
    if (fault.error) return errno = fault.error, -1;
    struct stat about;
    pthread_mutex_lock(&names);
    int made = syscall(SYS_mkdirat, AT_FDCWD, place.path, mode);
    if (!made && !syscall(SYS_newfstatat, AT_FDCWD, place.path, &about, AT_SYMLINK_NOFOLLOW)) {
        note_name(&place, about.st_ino, IS_NEW | IS_FOLDER);
    }
    pthread_mutex_unlock(&names);
    afterwards(&fault);
    return made;
}

PUBLIC int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

/* ---- free space ---- */

static void fill(const struct statfs *found, struct statvfs *about) {
    memset(about, 0, sizeof *about);
    about->f_bsize = found->f_bsize;
    about->f_frsize = found->f_frsize ? found->f_frsize : found->f_bsize;
    about->f_blocks = found->f_blocks;
    about->f_bfree = found->f_bfree;
    about->f_bavail = found->f_bavail;
    about->f_files = found->f_files;
    about->f_ffree = about->f_favail = found->f_ffree;
    about->f_namemax = found->f_namelen;
    about->f_flag = found->f_flags & ~0x20;
    memcpy(&about->f_fsid, &found->f_fsid, sizeof found->f_fsid);
}

static void show_room(struct statvfs *about) {
    int64_t room = control->room;
    if (room >= 0) about->f_bfree = about->f_bavail = room / about->f_frsize;
}

PUBLIC int statvfs(const char *path, struct statvfs *about) {
    struct statfs found;
    struct place place;
    if (syscall(SYS_statfs, path, &found)) return -1;
    fill(&found, about);
    if (is_watching() && found_place(AT_FDCWD, path, &place)) show_room(about);
    return 0;
}

PUBLIC int statvfs64(const char *path, struct statvfs64 *about) {
    return statvfs(path, (struct statvfs *)about);
}

PUBLIC int fstatvfs(int fd, struct statvfs *about) {
    struct statfs found;
    char path[PATH_MAX];
    if (syscall(SYS_fstatfs, fd, &found)) return -1;
    fill(&found, about);
    if (is_inside(fd, path)) show_room(about);
    return 0;
}

PUBLIC int fstatvfs64(int fd, struct statvfs64 *about) {
    return fstatvfs(fd, (struct statvfs *)about);
}
