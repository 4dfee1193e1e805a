/* Seats: control groups below our own, so that the kernel itself enforces a task's memory limit and knows all of
 * its processes, wherever they go.
 *
 * A slot gets a seat with its first task that needs one, and keeps it. Moving a process into a group costs up to 10
 * ms, so nothing is moved per task. With version 1, a single thread may be in another group than its process, and
 * its children start there: each seat has a thread that only starts processes. With version 2, the new process is
 * cloned into the group. The path of our groups is in a file beside the slots, so that a later run can clean up
 * after us.
 *
 * Where none of this is permitted there are no seats, and memory limits are enforced by measuring (`tree.c`). */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RECORD "cgroup"           /* the file beside the slots */
/* file-backed memory that earlier tasks may leave in a group: this, or an eighth of the limit */
#define SPOILED_BYTES (32 << 20)
#define END_SECONDS 2.0
#define KILL_SECONDS 0.05         /* how long we kill processes one by one before the kernel kills the group */
#define SEAT_STACK (64 << 10)

struct Seat {
    int number, generation;
    char path[512];
    int directory, oom, usage; /* descriptors */
    int64_t limit, ran_out; /* bytes; value of the out-of-memory counter at the last check */
    bool broken, worn;
    pthread_t thread;
    pid_t thread_id;
    sem_t asked, done;
    Spawn *spawn; /* the requested start; NULL: end the thread */
};

static enum { UNKNOWN, NONE, VERSION_1, VERSION_2 } version;
static char base[448];
static Seat **seats;
static int seat_count;

/* ---- our own group ---------------------------------------------------------------------------------------------- */

/* Our group's path within a hierarchy, from lines such as `4:memory:/path` and `0::/path`; NULL if there is none. */
static char *own_path(const char *controller) {
    static Buffer buffer;
    char *rest = read_whole("/proc/self/cgroup", &buffer), *line;
    while ((line = strsep(&rest, "\n"))) {
        char *names = strchr(line, ':'), *at = names ? strchr(names + 1, ':') : NULL, *name;
        if (!at) continue;
        *at = 0;
        names++;
        bool found = !*controller && !*names;
        while (*controller && (name = strsep(&names, ","))) found = found || !strcmp(name, controller);
        if (found) return at + 1;
    }
    return NULL;
}

/* Decodes a path of the mount list in place: blanks and backslashes are written as three octal digits. */
static char *without_escapes(char *text) {
    char *to = text;
    for (char *at = text; *at; to++) {
        bool is_escaped = *at == '\\' && at[1] && at[2] && at[3];
        *to = is_escaped ? (char)((at[1] - '0') << 6 | (at[2] - '0') << 3 | (at[3] - '0')) : *at;
        at += is_escaped ? 4 : 1;
    }
    *to = 0;
    return text;
}

/* The directory of our group, from the mount list; `option` identifies a version 1 hierarchy. */
static bool own_directory(const char *type, const char *option, char *directory, size_t room) {
    static Buffer buffer;
    char *path = own_path(option), *rest = path ? read_whole("/proc/self/mountinfo", &buffer) : NULL, *line;
    while ((line = strsep(&rest, "\n"))) {
        char *tail = strstr(line, " - "), *field[5] = {NULL}, *one;
        if (!tail) continue;
        *tail = 0;
        tail += 3;
        for (int at = 0; at < 5; at++) field[at] = strsep(&line, " ");
        char *kind = strsep(&tail, " "), *options = strsep(&tail, " ") ? tail : NULL;
        if (!field[4] || !options || strcmp(kind, type)) continue;
        bool found = !*option;
        while ((one = strsep(&options, ","))) found = found || !strcmp(one, option);
        if (!found) continue;
        char *root = without_escapes(field[3]), *point = without_escapes(field[4]);
        size_t above = strcmp(root, "/") ? strlen(root) : 0;
        const char *below = strncmp(path, root, above) ? "" : path + above;
        return snprintf(directory, room, "%s%s", point, strcmp(below, "/") ? below : "") < (int)room;
    }
    return false;
}

static bool write_to(const char *directory, const char *name, const char *text) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool done = write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

static bool write_number(const char *directory, const char *name, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return write_to(directory, name, text);
}

/* The path is written to the file before the group is created, so that no group is ever left behind unrecorded. */
static bool make_base(const char *own) {
    if (snprintf(base, sizeof base, "%s/shoal-%s", own, run_name) >= (int)sizeof base) return false;
    int fd = openat(slots_dir, RECORD, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (fd < 0) return false;
    bool done = write(fd, base, strlen(base)) == (ssize_t)strlen(base) && (!mkdir(base, 0755) || errno == EEXIST);
    close(fd);
    if (!done) unlinkat(slots_dir, RECORD, 0);
    return done;
}

/* Finds out once what is permitted. `SHOAL_CGROUPS` (off, v1, v2) restricts it. */
static void find_version(void) {
    const char *wish = getenv("SHOAL_CGROUPS");
    char own[384];
    version = NONE;
    if (wish && !strcmp(wish, "off")) return;
    if ((!wish || strcmp(wish, "v2")) && own_directory("cgroup", "memory", own, sizeof own) && make_base(own)) {
        version = VERSION_1;
    } else if ((!wish || strcmp(wish, "v1")) && own_directory("cgroup2", "", own, sizeof own)) {
        /* refused where the group has processes, or is not delegated to us */
        write_to(own, "cgroup.subtree_control", "+memory");
        if (!make_base(own)) return;
        write_to(base, "cgroup.subtree_control", "+memory");
        version = VERSION_2;
    }
}

/* ---- one seat --------------------------------------------------------------------------------------------------- */

static void *sit(void *argument) {
    Seat *seat = argument;
    seat->thread_id = (pid_t)syscall(SYS_gettid);
    sem_post(&seat->done);
    for (;;) {
        while (sem_wait(&seat->asked)) continue;
        if (!seat->spawn) return NULL;
        spawn_prepared(seat->spawn, -1);
        sem_post(&seat->done);
    }
}

static bool begin_thread(Seat *seat) {
    pthread_attr_t attributes;
    sem_init(&seat->asked, 0, 0);
    sem_init(&seat->done, 0, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, SEAT_STACK);
    if (pthread_create(&seat->thread, &attributes, sit, seat)) return false;
    while (sem_wait(&seat->done)) continue;
    return true;
}

static int open_in(const Seat *seat, const char *name, int flags) {
    char path[640];
    snprintf(path, sizeof path, "%s/%s", seat->path, name);
    return open(path, flags | O_CLOEXEC);
}

static void close_group(Seat *seat) {
    if (!seat->generation) return;
    for (int *fd = (int[]){seat->directory, seat->oom, seat->usage, -2}; *fd != -2; fd++)
        if (*fd >= 0) close(*fd);
}

/* Creates a group, or a new one in place of a spoiled one. */
static bool make_group(Seat *seat) {
    char old[sizeof seat->path];
    memcpy(old, seat->path, sizeof old);
    close_group(seat);
    bool first = !seat->generation++;
    snprintf(seat->path, sizeof seat->path, "%s/%d.%d", base, seat->number, seat->generation);
    seat->limit = seat->ran_out = 0;
    seat->worn = false;
    seat->directory = seat->oom = seat->usage = -1;
    if (mkdir(seat->path, 0755) && errno != EEXIST) return false;
    bool old_way = version == VERSION_1;
    seat->directory = open(seat->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    seat->oom = open_in(seat, old_way ? "memory.oom_control" : "memory.events", O_RDONLY);
    seat->usage = open_in(seat, old_way ? "memory.usage_in_bytes" : "memory.current", O_RDONLY);
    if (old_way && first && !begin_thread(seat)) return false;
    if (old_way && !write_number(seat->path, "tasks", seat->thread_id)) return false;
    if (!old_way) write_to(seat->path, "memory.oom.group", "1");
    if (!first) rmdir(old);
    return seat->directory >= 0;
}

static int64_t number_in(int fd, const char *name) {
    char text[1024], *at = text;
    ssize_t size = fd < 0 ? -1 : pread(fd, text, sizeof text - 1, 0);
    if (size <= 0) return 0;
    text[size] = 0;
    if (*name && !(at = strstr(text, name))) return 0;
    return atoll(at + strlen(name));
}

static void set_limit(Seat *seat, int64_t memory) {
    if (seat->limit == memory) return;
    /* The group is also charged for page tables and the like, which do not count as memory of a task. */
    int64_t bytes = memory ? memory + memory / 256 + (512 << 10) : -1;
    seat->limit = -1; /* unknown, if this fails */
    if (version == VERSION_1) {
        write_number(seat->path, "memory.memsw.limit_in_bytes", -1); /* does not exist without swap */
        if (!write_number(seat->path, "memory.limit_in_bytes", bytes)) return;
        write_number(seat->path, "memory.memsw.limit_in_bytes", bytes);
    } else {
        bool done = memory ? write_number(seat->path, "memory.max", bytes) : write_to(seat->path, "memory.max", "max");
        if (!done) return;
        write_to(seat->path, "memory.swap.max", memory ? "0" : "max");
    }
    seat->limit = memory;
}

/* Whether in-memory files (tmpfs, page cache) of earlier tasks use too much of the next task's limit. */
static bool is_spoiled(const Seat *seat, int64_t memory) {
    int64_t left = number_in(seat->usage, "");
    return seat->worn || (memory && left > SPOILED_BYTES && left > memory / 8);
}

Seat *seat_for(int slot, int64_t memory) {
    if (version == UNKNOWN) find_version();
    if (version == NONE) return NULL;
    if (slot >= seat_count) {
        seats = realloc(seats, sizeof *seats * (size_t)(slot + 1));
        if (!seats) die("no memory");
        while (seat_count <= slot) seats[seat_count++] = NULL;
    }
    Seat *seat = seats[slot];
    if (!seat) {
        seats[slot] = seat = take(sizeof *seat);
        *seat = (Seat){.number = slot, .directory = -1, .oom = -1, .usage = -1};
        seat->broken = !make_group(seat);
    }
    if (seat->broken) return NULL;
    if (is_spoiled(seat, memory)) seat->broken = !make_group(seat);
    if (seat->broken) return NULL;
    set_limit(seat, memory);
    return seat;
}

bool seat_limits_memory(const Seat *seat) { return seat->limit > 0; }

bool seat_ran_out(Seat *seat) {
    if (seat->limit <= 0) return false;
    int64_t before = seat->ran_out;
    seat->ran_out = number_in(seat->oom, "oom_kill ");
    return seat->ran_out > before;
}

bool seat_holds(const Seat *seat, pid_t pid) {
    static Buffer buffer;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    const char *name = strstr(seat->path, "/shoal-"), *at;
    if (!name || !(at = strstr(read_whole(path, &buffer), name))) return false;
    return at[strlen(name)] == '\n' || !at[strlen(name)];
}

/* ---- starting in it --------------------------------------------------------------------------------------------- */

bool seat_spawns(Seat *seat, Spawn *s) {
    if (version == VERSION_2) {
        spawn_prepared(s, seat->directory);
        if (s->is_outside) { /* it runs outside the group, and its memory is measured */
            seat->broken = true;
            seat->limit = -1;
        }
        return false;
    }
    seat->spawn = s;
    sem_post(&seat->asked);
    return true;
}

bool seat_has_spawned(Seat *seat, bool wait) {
    if (!wait) return !sem_trywait(&seat->done);
    while (sem_wait(&seat->done)) continue;
    return true;
}

/* ---- ending ----------------------------------------------------------------------------------------------------- */

static int kill_members(Seat *seat) {
    static Buffer buffer;
    char path[640];
    int count = 0;
    /* Opened anew each time: with version 1, an open file returns the same list for a second. */
    snprintf(path, sizeof path, "%s/cgroup.procs", seat->path);
    for (char *at = read_whole(path, &buffer); *at; at = strchrnul(at, '\n'), at += *at == '\n') {
        pid_t pid = (pid_t)atoi(at);
        if (pid <= 0 || pid == getpid()) continue; /* the seat's thread belongs to our process */
        kill(pid, SIGKILL);
        count++;
    }
    return count;
}

bool seat_clear(Seat *seat) {
    double begin = monotonic(CLOCK_MONOTONIC), passed = 0;
    if (!kill_members(seat)) return false;
    while (kill_members(seat) && passed < END_SECONDS) {
        usleep(300);
        passed = monotonic(CLOCK_MONOTONIC) - begin;
        if (passed < KILL_SECONDS || version != VERSION_2 || seat->worn) continue;
        /* It forks faster than we kill. Some kernels then also kill whatever is started in the group later, so the
         * group must not be used again. */
        seat->worn = write_to(seat->path, "cgroup.kill", "1");
    }
    return true;
}

static void leave(Seat *seat) {
    seat_clear(seat);
    if (seat->thread_id) {
        seat->spawn = NULL;
        sem_post(&seat->asked);
        pthread_join(seat->thread, NULL);
    }
    close_group(seat);
    double deadline = monotonic(CLOCK_MONOTONIC) + END_SECONDS;
    while (rmdir(seat->path) && errno == EBUSY && monotonic(CLOCK_MONOTONIC) < deadline) usleep(300);
}

void seats_close(void) {
    for (int slot = 0; slot < seat_count; slot++)
        if (seats[slot]) leave(seats[slot]);
    if (version == UNKNOWN || version == NONE) return;
    if (!rmdir(base) || errno == ENOENT) unlinkat(slots_dir, RECORD, 0);
}
