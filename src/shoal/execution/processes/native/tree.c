/* Measures whole process trees by /proc, and kills them.
 *
 * A process belongs to the task it descends from. A process that was orphaned before it was first seen becomes a
 * child of this process, the subreaper. Its task is found by its process group, by an earlier sighting below its
 * task, by the mark in its environment, by the output file that it holds, or because no other task ran when it
 * began. When a task ends, the kernel's list of our children shows whether there are unknown orphans: that is
 * cheap, and usually there are none. Only tasks that live longer than the measuring interval are measured; the
 * others are known by wait4. */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <time.h>
#include <unistd.h>

#define LEAST_PAUSE 0.1      /* between two measurements of a task; a tenth of its age if that is more */
#define LONGEST_PAUSE 1.0
#define LIMIT_PAUSE 0.02     /* for tasks whose memory limit no seat enforces */
#define DISK_PAUSE 0.05      /* for tasks with a disk limit */
#define SEAT_PAUSE 0.05      /* between two reads of a seat's counter */
#define WINDOW_SECONDS 1.0   /* interval for the number of cores: a shorter burst is not a need */
#define WINDOW_LOOKS 64      /* more than there are in that interval */
#define SHARE_OF_TIME 25     /* a measurement of 1 ms is followed by 25 ms without one */
#define FOREIGN_SECONDS 10.0 /* how long the result is cached that a process is not ours */
#define END_SECONDS 2.0      /* how long signals are repeated to a process that does not end */

typedef struct {
    pid_t pid, parent, group;
    char state;
    uint64_t start; /* in ticks since boot */
    int64_t resident, virtual;
    uint64_t ticks; /* of CPU time, including reaped children */
    uint64_t owner; /* the serial of its attempt */
    bool settled;   /* the owner is known, or it is known that there is none */
    bool is_below;  /* it descends from us */
} Process;

/* A child of ours that is no task's first process. */
typedef struct {
    pid_t pid;
    uint64_t owner;
} Orphan;

typedef struct {
    Process *items;
    size_t size, room;
} Processes;

static Processes seen, earlier;
static pid_t *foreign; /* sorted */
static size_t foreign_size, foreign_room;
static double foreign_until, scanned_at, rest_until;
static Orphan *orphans;
static size_t orphan_count, orphan_room;

/* ---- reading ---------------------------------------------------------------------------------------------------- */

ssize_t read_small(const char *path, char *text, size_t room) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t size = 0, got = 0;
    /* One read returns at most a page of a list, whatever the size of the buffer. */
    while ((size_t)size < room - 1 && (got = read(fd, text + size, room - 1 - (size_t)size)) > 0) size += got;
    close(fd);
    text[size] = 0;
    return size || !got ? size : -1;
}

char *read_whole(const char *path, Buffer *b) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t got = -1;
    b->size = 0;
    do {
        reserve(b, 4096);
        if (fd >= 0) got = read(fd, b->data + b->size, b->room - b->size - 1);
        if (got > 0) b->size += (size_t)got;
    } while (got > 0);
    if (fd >= 0) close(fd);
    b->data[b->size] = 0;
    return (char *)b->data;
}

const char *in_mebibytes(int64_t bytes) {
    static char text[32];
    int64_t tenths = (bytes * 10 + (1 << 19)) >> 20;
    const char *form = tenths % 10 ? "%lld.%lld MiB" : "%lld MiB";
    snprintf(text, sizeof text, form, (long long)(tenths / 10), (long long)(tenths % 10));
    return text;
}

/* The number after a name at the start of a line; 0 if there is no such line. */
static int64_t figure(const char *text, const char *name) {
    const char *at = text;
    size_t length = strlen(name);
    while (at && strncmp(at, name, length)) at = (at = strchr(at, '\n')) ? at + 1 : NULL;
    return at ? atoll(at + length) : 0;
}

static int64_t figure_of(pid_t pid, const char *file, const char *name) {
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    return read_small(path, text, sizeof text) > 0 ? figure(text, name) : -1;
}

void read_traffic(pid_t pid, int64_t *bytes_read, int64_t *written) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/io", pid);
    if (read_small(path, text, sizeof text) <= 0) return;
    *bytes_read = figure(text, "rchar:");
    *written = figure(text, "write_bytes:");
}

static bool read_process(pid_t pid, Process *p) {
    char path[64], text[1024], *name_end;
    static long page;
    unsigned long used[4];
    if (!page) page = sysconf(_SC_PAGESIZE);
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    if (read_small(path, text, sizeof text) <= 0 || !(name_end = strrchr(text, ')'))) return false;
    unsigned long long start, virtual;
    long resident;
    int got = sscanf(name_end + 1,
                     " %c %d %d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %lu %lu %*d %*d %*d %*d %llu %llu %ld",
                     &p->state, &p->parent, &p->group, used, used + 1, used + 2, used + 3, &start, &virtual, &resident);
    if (got != 10) return false;
    *p = (Process){.pid = pid, .parent = p->parent, .group = p->group, .state = p->state, .start = start,
                   .virtual = (int64_t)virtual, .resident = (int64_t)resident * page,
                   .ticks = used[0] + used[1] + used[2] + used[3]};
    return true;
}

/* ---- owners ----------------------------------------------------------------------------------------------------- */

static Process *find(const Processes *among, pid_t pid) { /* sorted by pid */
    size_t low = 0, high = among->size;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (among->items[middle].pid < pid)
            low = middle + 1;
        else
            high = middle;
    }
    return low < among->size && among->items[low].pid == pid ? &among->items[low] : NULL;
}

static Running *task_with(uint64_t serial) {
    for (Running *r = running; r; r = r->next)
        if (r->serial == serial) return r;
    return NULL;
}

static int compare_pids(const void *one, const void *other) {
    pid_t a = *(const pid_t *)one, b = *(const pid_t *)other;
    return (a > b) - (a < b);
}

static bool is_leader(pid_t pid) {
    for (Running *r = running; r; r = r->next)
        if (r->pid == pid) return true;
    return false;
}

/* Returns the running task whose mark is in the process's environment; 0 if there is none. */
static uint64_t owner_by_mark(pid_t pid) {
    static Buffer buffer;
    char path[64], mark[256];
    snprintf(path, sizeof path, "/proc/%d/environ", pid);
    char *environment = read_whole(path, &buffer);
    size_t size = buffer.size;
    for (Running *r = running; size && r; r = r->next) {
        long long task = r->task, attempt = r->attempt;
        int length = snprintf(mark, sizeof mark, MARK "%s:%lld:%lld", run_name, task, attempt);
        for (char *at = environment; at < environment + size; at += strlen(at) + 1)
            if (!strncmp(at, mark, (size_t)length + 1)) return r->serial;
    }
    return 0;
}

/* Returns the task whose output file the process has open; 0 if there is none. Each task has its own file. */
static uint64_t owner_by_output(pid_t pid) {
    char path[64];
    struct stat found, slot;
    if (streams_are_ours) return 0;
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    DIR *listing = opendir(path);
    uint64_t owner = 0;
    for (struct dirent *entry; listing && !owner && (entry = readdir(listing));) {
        if (entry->d_name[0] == '.' || fstatat(dirfd(listing), entry->d_name, &found, 0) || !S_ISREG(found.st_mode)) continue;
        for (Running *r = running; r && !owner; r = r->next)
            if (!fstat(slot_fds[r->slot], &slot) && slot.st_ino == found.st_ino && slot.st_dev == found.st_dev)
                owner = r->serial;
    }
    if (listing) closedir(listing);
    return owner;
}

/* The only task that existed when it began; 0 if there were more. */
static uint64_t owner_by_time(const Process *p) {
    static long ticks_per_second;
    if (!ticks_per_second) ticks_per_second = sysconf(_SC_CLK_TCK);
    double began = (double)(p->start + 2) / (double)ticks_per_second; /* both clocks are rounded */
    uint64_t owner = 0;
    for (Running *r = running; r; r = r->next) {
        if (r->begun > began) continue;
        if (owner) return 0;
        owner = r->serial;
    }
    return owner;
}

/* A seat has just started it and it has not called exec yet: it is a copy of us, with all our descriptors. */
static bool is_newborn(pid_t pid) {
    char path[64];
    struct stat its, ours;
    bool any = false;
    for (Running *r = running; r && !any; r = r->next) any = r->starting;
    snprintf(path, sizeof path, "/proc/%d/exe", pid);
    if (!any || stat(path, &its) || stat("/proc/self/exe", &ours)) return any;
    return its.st_ino == ours.st_ino && its.st_dev == ours.st_dev;
}

/* Determines the owner where that needs no parent. */
static void settle_alone(Process *p) {
    p->is_below = p->parent == getpid();
    for (Running *r = running; r; r = r->next)
        if (r->pid == p->pid || r->pid == p->group) {
            p->owner = r->serial;
            p->settled = p->is_below = true;
            return;
        }
    Process *before = find(&earlier, p->pid);
    if (before && before->start == p->start && before->owner && task_with(before->owner)) {
        p->owner = before->owner;
        p->settled = p->is_below = true;
    } else if (p->is_below) { /* read each time: during exec a process has no environment */
        p->owner = owner_by_mark(p->pid);
        if (!p->owner && is_newborn(p->pid)) p->is_below = false;
        if (!p->owner && p->is_below) p->owner = owner_by_output(p->pid);
        if (!p->owner && p->is_below && p->state != 'Z' && p->state != 'X') p->owner = owner_by_time(p);
        p->settled = true;
    }
}

/* Its owner cannot be determined yet: it is calling exec, or lost its parent between two readings. */
static bool is_in_between(const Process *p) {
    char path[64], word[2];
    if (p->owner || p->state == 'Z' || p->state == 'X') return false;
    if (p->parent != getpid()) return p->parent > 1 && !find(&seen, p->parent);
    snprintf(path, sizeof path, "/proc/%d/cmdline", p->pid);
    /* It may have called exec since we read its mark. */
    return !read_small(path, word, sizeof word) || owner_by_mark(p->pid);
}

static void settle(Process *p) {
    Process *at = p;
    for (int depth = 0; at && !at->settled && depth < 1000; depth++) at = find(&seen, at->parent);
    uint64_t owner = at && at->settled ? at->owner : 0;
    bool is_below = at && at->is_below;
    for (at = p; at && !at->settled; at = find(&seen, at->parent)) {
        at->owner = owner;
        at->settled = true;
        at->is_below = is_below;
        if (owner || !is_below) continue; /* below an orphan without any evidence of its task */
        uint64_t own = owner_by_mark(at->pid);
        if (!own) own = owner_by_output(at->pid);
        for (Process *up = at; own && up && up->is_below && !up->owner; up = find(&seen, up->parent)) up->owner = own;
    }
}

static void count_new(const Process *p) {
    const Process *before = find(&earlier, p->pid);
    Running *of = p->owner ? task_with(p->owner) : NULL;
    if (of && (!before || before->start != p->start || !before->owner)) of->peaks.all++;
}

static void note_foreign(double now) {
    foreign_until = now + FOREIGN_SECONDS;
    foreign_size = 0;
    for (size_t i = 0; i < seen.size; i++) {
        if (seen.items[i].owner || seen.items[i].parent == getpid()) continue;
        if (foreign_size == foreign_room) {
            foreign_room = foreign_room ? foreign_room * 2 : 256;
            foreign = realloc(foreign, foreign_room * sizeof *foreign);
            if (!foreign) die("no memory");
        }
        foreign[foreign_size++] = seen.items[i].pid;
    }
}

/* Reads all processes that may be ours; `all`: also those that were not ours a moment ago. */
static void scan(bool all) {
    Processes older = earlier;
    earlier = seen;
    seen = older;
    seen.size = 0;
    double now = scanned_at = monotonic(CLOCK_MONOTONIC);
    all = all || now > foreign_until;
    DIR *processes = opendir("/proc");
    struct dirent *entry;
    while (processes && (entry = readdir(processes))) { /* pids come in ascending order */
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0) continue;
        if (!all && bsearch(&pid, foreign, foreign_size, sizeof pid, compare_pids) && !is_leader(pid)) continue;
        if (seen.size == seen.room) {
            seen.room = seen.room ? seen.room * 2 : 256;
            seen.items = realloc(seen.items, seen.room * sizeof *seen.items);
            if (!seen.items) die("no memory");
        }
        if (read_process(pid, &seen.items[seen.size])) seen.size++;
    }
    if (processes) closedir(processes);
    for (size_t i = 0; i < seen.size; i++) settle_alone(&seen.items[i]);
    for (size_t i = 0; i < seen.size; i++) {
        settle(&seen.items[i]);
        count_new(&seen.items[i]);
    }
    if (all) note_foreign(now);
}

void remember_trees(void) {
    if (monotonic(CLOCK_MONOTONIC) - scanned_at > LIMIT_PAUSE) scan(false); /* many may have to be killed at once */
}

Running *owner_of_orphan(pid_t pid) {
    Process p;
    if (!running || !read_process(pid, &p)) return NULL;
    for (Running *r = running; r; r = r->next)
        if (r->pid == p.group || (r->seat && seat_holds(r->seat, pid))) return r;
    Process *before = find(&seen, pid);
    if (before && before->start == p.start) return task_with(before->owner);
    return running->next ? NULL : running;
}

/* ---- measuring -------------------------------------------------------------------------------------------------- */

static bool swap_exists(void) {
    static int answer = -1;
    struct sysinfo system;
    if (answer < 0) answer = !sysinfo(&system) && system.totalswap > 0;
    return answer;
}

/* A child that still shares its parent's memory is about to call exec, and has no memory of its own. */
static bool has_own_memory(const Process *p) {
    const Process *parent = find(&seen, p->parent);
    return !parent || parent->resident != p->resident || parent->virtual != p->virtual || parent->owner != p->owner;
}

/* Bytes of a tree with each shared page divided among the processes that share it; `gone`: of those that have ended
 * meanwhile. */
static int64_t sum_of_shares(const Running *r, int64_t *gone) {
    int64_t sum = *gone = 0;
    for (size_t i = 0; i < seen.size; i++) {
        const Process *p = &seen.items[i];
        if (p->owner != r->serial || !p->resident || !has_own_memory(p)) continue;
        int64_t share = figure_of(p->pid, "smaps_rollup", "Pss:");
        /* No permission, or it has just ended and has no memory any more. */
        if (share < 0) share = figure_of(p->pid, "status", "VmRSS:");
        if (share > 0) sum += share * 1024;
        else *gone += p->resident;
    }
    return sum;
}

/* The same, but at least those of the largest process. Measured twice, because in a tree that is just forking,
 * pages that become shared between two readings would be counted twice. So would those of a process that ends,
 * whose share passes to the others. */
static int64_t without_double_counting(const Running *r, int64_t largest) {
    int64_t gone, first = sum_of_shares(r, &gone), second = sum_of_shares(r, &gone);
    int64_t sum = (first < second ? first : second) - gone;
    return sum > largest ? sum : largest;
}

static void raise_to(int64_t *peak, int64_t value) {
    if (value > *peak) *peak = value;
}

struct Window { /* CPU seconds at the latest measurements, oldest first */
    struct { double moment, cpu; } looks[WINDOW_LOOKS];
    int count;
};

void note_cpu(Running *r, double now, double cpu) {
    if (!r->window) {
        r->window = take(sizeof *r->window);
        *r->window = (Window){.looks = {{r->started, 0}}, .count = 1};
    }
    Window *w = r->window;
    int passed = 0;
    /* A process that is reaped between two readings may be missing for a moment. */
    if (cpu < w->looks[w->count - 1].cpu) cpu = w->looks[w->count - 1].cpu;
    while (passed + 1 < w->count && w->looks[passed + 1].moment <= now - WINDOW_SECONDS) passed++;
    w->count -= passed;
    memmove(w->looks, w->looks + passed, sizeof w->looks[0] * (size_t)w->count);
    double stretch = now - w->looks[0].moment;
    if (stretch >= WINDOW_SECONDS && (cpu - w->looks[0].cpu) / stretch > r->peaks.cores)
        r->peaks.cores = (cpu - w->looks[0].cpu) / stretch;
    if (w->count < WINDOW_LOOKS) w->count++;
    w->looks[w->count - 1].moment = now;
    w->looks[w->count - 1].cpu = cpu;
}

/* Cores in use since the last measurement, or since the one before if the last is too recent. */
static double recent_cores(const Running *r) {
    const Window *w = r->window;
    int before = w->count - 2;
    while (before > 0 && w->looks[w->count - 1].moment - w->looks[before].moment < LEAST_PAUSE / 2) before--;
    double stretch = w->looks[w->count - 1].moment - w->looks[before].moment;
    double cores = stretch > 0 ? (w->looks[w->count - 1].cpu - w->looks[before].cpu) / stretch : 0;
    return cores > 0 ? cores : 0;
}

/* Records a measurement of a tree; only for that it is worth reading I/O counters. */
static void keep(Running *r, double now, Look look, bool is_due) {
    look.read = r->orphans.read;
    look.written = r->orphans.written;
    for (size_t i = 0; i < seen.size; i++) {
        int64_t read = 0, written = 0;
        if (seen.items[i].owner != r->serial) continue;
        read_traffic(seen.items[i].pid, &read, &written);
        look.read += read;
        look.written += written;
    }
    /* A process that is being reaped is missing for a moment: no longer in its own counters, not yet in its
     * parent's. */
    raise_to(&r->kept_read, look.read);
    raise_to(&r->kept_written, look.written);
    look.read = r->kept_read;
    look.written = r->kept_written;
    if (is_due) course_add(r, now, &look);
    if (!series_wanted()) return;
    look.cores = recent_cores(r);
    series_add(r, now, &look);
}

/* Evaluates the scan of one tree; returns its current bytes. */
static int64_t take_in(Running *r, double now) {
    static long ticks_per_second;
    if (!ticks_per_second) ticks_per_second = sysconf(_SC_CLK_TCK);
    int64_t resident = 0, virtual = 0, swap = 0, count = 0, largest = 0;
    double cpu = r->orphans.user + r->orphans.system;
    if (r->disk) disk_look(r->disk, slot_fds[r->slot]);
    for (size_t i = 0; i < seen.size; i++) {
        const Process *p = &seen.items[i];
        if (p->owner != r->serial) continue;
        cpu += (double)p->ticks / (double)ticks_per_second;
        if (p->state == 'Z' || p->state == 'X') continue;
        if (r->disk) disk_look_at_process(r->disk, p->pid);
        count++;
        if (!has_own_memory(p)) continue;
        resident += p->resident;
        virtual += p->virtual;
        raise_to(&largest, p->resident);
        if (swap_exists()) {
            int64_t swapped = figure_of(p->pid, "status", "VmSwap:");
            swap += swapped > 0 ? swapped * 1024 : 0;
        }
    }
    /* Separating shared pages is expensive, so it is done only where the plain sum is clearly above the known peak. */
    bool news = resident > r->peaks.resident + r->peaks.resident / 64;
    if (count > 1 && news) resident = without_double_counting(r, largest);
    raise_to(&r->peaks.resident, resident);
    raise_to(&r->peaks.virtual, virtual);
    raise_to(&r->peaks.swap, swap);
    raise_to(&r->peaks.most, count);
    if (count) note_cpu(r, now, cpu);
    bool is_due = count && measures && course_is_due(r, now, resident);
    if (is_due || (count && series_wanted())) {
        Look look = {.resident = resident, .virtual = virtual, .swap = swap, .count = count, .cpu = cpu};
        keep(r, now, look, is_due);
    }
    return resident;
}

static bool is_held_by_us(const Running *r) { return r->memory && !(r->seat && seat_limits_memory(r->seat)); }
static bool needs_watch(const Running *r) { return r->expected || is_held_by_us(r); }
static bool is_looked_at(const Running *r) { return measures || r->disk || needs_watch(r); }

static void check_limit(double now, Running *r, int64_t total) {
    int64_t resident = r->resident;
    if (r->expected && resident > r->expected && !r->killed_as) {
        report_growth(now, r, resident, total);
        r->expected = resident + resident / 8; /* not again for every page */
    }
    char why[160], used[32];
    double age = now - r->started;
    if (r->disk && !r->killed_as && disk_is_over(r->disk)) {
        disk_say(r->disk, why, sizeof why, age);
        ask_to_end(now, r, "exhausted", why, true);
    }
    if (!is_held_by_us(r) || r->killed_as || resident <= r->memory) return;
    snprintf(used, sizeof used, "%s", in_mebibytes(resident));
    snprintf(why, sizeof why, "used %s of memory, more than its %s, after %.2f s", used, in_mebibytes(r->memory), age);
    ask_to_end(now, r, "exhausted", why, true);
}

void say_exhausted(char *text, size_t room, const Running *r, double now) {
    const char *limit = in_mebibytes(r->memory);
    snprintf(text, room, "used more than its %s of memory, after %.2f s", limit, now - r->started);
}

/* The kernel kills one process of a group that has run out of memory; the others are useless without it. */
static void check_seat(double now, Running *r) {
    r->next_count = now + SEAT_PAUSE;
    if (r->killed_as || !seat_ran_out(r->seat)) return;
    char why[160];
    say_exhausted(why, sizeof why, r, now);
    ask_to_end(now, r, "exhausted", why, true);
}

void look_at_trees(double now) {
    bool due = false;
    for (Running *r = running; r; r = r->next) {
        if (r->memory && r->seat && r->next_count <= now) check_seat(now, r);
        due = due || (r->next_look <= now && is_looked_at(r));
    }
    if (!due || now < rest_until) return;
    /* on a busy machine a measurement takes longer, but costs no more CPU time */
    double begin = monotonic(CLOCK_THREAD_CPUTIME_ID);
    scan(false);
    int64_t total = 0;
    for (Running *r = running; r; r = r->next) total += r->resident = take_in(r, now);
    for (Running *r = running; r; r = r->next) check_limit(now, r, total);
    rest_until = now + (monotonic(CLOCK_THREAD_CPUTIME_ID) - begin) * SHARE_OF_TIME;
    for (Running *r = running; r; r = r->next) {
        double age = now - r->started, pause = age / 10;
        pause = pause < LEAST_PAUSE ? LEAST_PAUSE : pause > LONGEST_PAUSE ? LONGEST_PAUSE : pause;
        if (r->disk) pause = DISK_PAUSE;
        if (needs_watch(r)) pause = LIMIT_PAUSE;
        r->next_look = now + pause;
    }
}

void tree_begins(Running *r) {
    r->next_look = r->started + (needs_watch(r) || r->disk ? LIMIT_PAUSE / 4 : LEAST_PAUSE);
    r->next_count = r->started + SEAT_PAUSE;
}

double next_look_at_limits(void) {
    double nearest = 0;
    for (Running *r = running; r; r = r->next) {
        double moment = needs_watch(r) || r->disk ? r->next_look : 0;
        if (r->memory && r->seat && (!moment || r->next_count < moment)) moment = r->next_count;
        if (moment && (!nearest || moment < nearest)) nearest = moment;
    }
    return nearest && nearest < rest_until ? rest_until : nearest;
}

/* ---- ending ----------------------------------------------------------------------------------------------------- */

/* Records our children that are no task's first process. */
static void note_orphans(void) {
    orphan_count = 0;
    for (size_t i = 0; i < seen.size; i++) {
        if (seen.items[i].parent != getpid() || is_leader(seen.items[i].pid)) continue;
        if (orphan_count == orphan_room) {
            orphan_room = orphan_room ? orphan_room * 2 : 64;
            orphans = realloc(orphans, sizeof *orphans * orphan_room);
            if (!orphans) die("no memory");
        }
        orphans[orphan_count++] = (Orphan){seen.items[i].pid, seen.items[i].owner};
    }
}

void forget_orphan(pid_t pid) {
    for (size_t i = 0; i < orphan_count; i++)
        if (orphans[i].pid == pid) {
            orphans[i] = orphans[--orphan_count];
            return;
        }
}

/* The children of our main thread: what it has started, and all orphans. Negative: the kernel has no such list. */
static long count_children(void) {
    static int list = -1;
    char path[64], text[4096];
    long count = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", getpid());
    if (list < 0 && (list = open(path, O_RDONLY | O_CLOEXEC)) < 0) return -1;
    off_t at = 0;
    for (ssize_t got; (got = pread(list, text, sizeof text, at)) > 0; at += got) {
        for (ssize_t i = 0; i < got; i++) count += text[i] == ' ';
        if (got < (ssize_t)sizeof text / 2) break; /* less than a page was left to read */
    }
    return count;
}

bool may_leave_orphans(const Running *gone) {
    long expected = (long)orphan_count;
    for (Running *r = running; r; r = r->next) expected += r != gone && r->is_of_first_thread;
    if (count_children() != expected) return true;
    for (size_t i = 0; i < orphan_count; i++)
        if (orphans[i].owner == gone->serial) return true;
    return false;
}

bool end_tree(const Running *r) {
    double deadline = monotonic(CLOCK_MONOTONIC) + END_SECONDS;
    bool found = true;
    while (found && monotonic(CLOCK_MONOTONIC) < deadline) {
        found = false;
        scan(true);
        for (size_t i = 0; i < seen.size; i++) {
            const Process *p = &seen.items[i];
            found = found || is_in_between(p);
            if (p->owner != r->serial || p->state == 'Z' || p->state == 'X' || p->pid == r->pid) continue;
            if (!p->is_below) continue; /* never kill a process of others, whatever the cached owner is */
            kill(p->pid, SIGKILL);
            found = true;
        }
        if (found) usleep(500); /* the children of each killed process may become ours */
    }
    note_orphans();
    return !found;
}

/* Kills every process but `except` whose environment holds the mark, including those that left their group. */
void end_marked(const char *mark, pid_t except) {
    static Buffer buffer;
    DIR *processes = opendir("/proc");
    if (!processes) return;
    size_t length = strlen(mark);
    struct dirent *entry;
    while ((entry = readdir(processes))) {
        pid_t pid = (pid_t)atoi(entry->d_name);
        if (pid <= 0 || pid == except || pid == getpid()) continue;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/environ", pid);
        char *environment = read_whole(path, &buffer);
        for (char *at = environment; at + length <= environment + buffer.size; at++)
            if ((at == environment || !at[-1]) && !memcmp(at, mark, length)) {
                kill(pid, SIGKILL);
                break;
            }
    }
    closedir(processes);
}

/* Kills our children, including adopted orphans without a mark. */
void end_children(void) {
    scan(true);
    for (size_t i = 0; i < seen.size; i++)
        if (seen.items[i].parent == getpid()) kill(seen.items[i].pid, SIGKILL);
}
