/* The wall clock of one process, moved from outside while it runs: an LD_PRELOAD library.

   The file that JEPSEN_CLOCK names holds four 64-bit integers: a count that is odd while the others change; nanoseconds
   to add to CLOCK_REALTIME; a time since which, and the millionths by which, the clock goes faster (-1,000,000: it
   stands still). Monotonic clocks are true. The kernel knows of none of this, so that waits until a time of the wall
   clock are moved back by what is added. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(default)

#define SECOND 1000000000LL
#define OLDEST_WALL_SECOND 1000000000LL /* a smaller deadline is of a monotonic clock */
#define TRIES 1000

struct moved {
    volatile int64_t count, add, since, millionths;
};

static struct moved *moved;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("JEPSEN_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *seen = mmap(NULL, sizeof *moved, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (seen != MAP_FAILED)
        moved = seen;
}

static void *next(const char *name, const char *version)
{
    void *found = version ? dlvsym(RTLD_NEXT, name, version) : NULL;
    return found ? found : dlsym(RTLD_NEXT, name);
}

/* The next library's function, looked up once. Two threads that both look find the same. */
#define NEXT(type, name, version)                                                                                      \
    static type *true_##name;                                                                                          \
    if (!true_##name)                                                                                                  \
        true_##name = (type *)next(#name, version)

typedef int gettime_type(clockid_t, struct timespec *);
typedef int condwait_type(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
typedef int semwait_type(sem_t *, const struct timespec *);
typedef long syscall_type(long, ...);

static int true_time(clockid_t clock, struct timespec *now)
{
    NEXT(gettime_type, clock_gettime, NULL);
    return true_clock_gettime(clock, now);
}

static int64_t added(int64_t now)
{
    if (!moved)
        return 0;
    for (int tries = 0; tries < TRIES; tries++) {
        int64_t count = __atomic_load_n(&moved->count, __ATOMIC_ACQUIRE);
        int64_t add = moved->add, since = moved->since, millionths = moved->millionths;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!(count & 1) && count == moved->count)
            return add + (int64_t)((__int128)(now - since) * millionths / 1000000);
    }
    return moved->add;
}

static int64_t nanoseconds(const struct timespec *time)
{
    return time->tv_sec * SECOND + time->tv_nsec;
}

static struct timespec timespec_of(int64_t nanoseconds)
{
    int64_t rest = nanoseconds % SECOND;
    int64_t seconds = nanoseconds / SECOND - (rest < 0);
    return (struct timespec){.tv_sec = seconds, .tv_nsec = rest < 0 ? rest + SECOND : rest};
}

/* The kernel's time of a deadline of the moved clock. */
static struct timespec back(const struct timespec *deadline)
{
    struct timespec now;
    if (deadline->tv_sec < OLDEST_WALL_SECOND || true_time(CLOCK_REALTIME, &now))
        return *deadline;
    struct timespec found = timespec_of(nanoseconds(deadline) - added(nanoseconds(&now)));
    return found.tv_sec < 0 ? (struct timespec){0, 0} : found;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int failed = true_time(clock, now);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        *now = timespec_of(nanoseconds(now) + added(nanoseconds(now)));
    return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec time;
    (void)zone;
    int failed = clock_gettime(CLOCK_REALTIME, &time);
    if (!failed)
        *now = (struct timeval){.tv_sec = time.tv_sec, .tv_usec = time.tv_nsec / 1000};
    return failed;
}

time_t time(time_t *into)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return (time_t)-1;
    if (into)
        *into = now.tv_sec;
    return now.tv_sec;
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *deadline)
{
    /* There are two of them in old systems' libraries; the plain look-up finds the older one. */
    NEXT(condwait_type, pthread_cond_timedwait, "GLIBC_2.3.2");
    struct timespec end = back(deadline);
    return true_pthread_cond_timedwait(cond, mutex, &end);
}

int sem_timedwait(sem_t *sem, const struct timespec *deadline)
{
    NEXT(semwait_type, sem_timedwait, NULL);
    struct timespec end = back(deadline);
    return true_sem_timedwait(sem, &end);
}

long syscall(long number, ...)
{
    NEXT(syscall_type, syscall, NULL);
    long given[6];
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < 6; i++)
        given[i] = va_arg(rest, long);
    va_end(rest);
    struct timespec end;
    if (number == SYS_futex && given[3] && (given[1] & FUTEX_CLOCK_REALTIME)) {
        end = back((const struct timespec *)given[3]);
        given[3] = (long)&end;
    }
    return true_syscall(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}
