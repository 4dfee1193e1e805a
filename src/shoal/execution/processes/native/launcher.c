/* The launcher, compiled: the same process as shoal/execution/processes/launcher.py, which is the fallback and
 * explains why there is a launcher.
 *
 * It is compiled for two measured reasons: a spawned child's peak memory starts at that of its parent, so the
 * parent must be small for the figure to be meaningful; and 50 us of Python between two commands are a tenth of the
 * cost of a process. It uses the same messages (Python's `marshal`, version 2) over the same socket.
 *
 * It has two threads and one lock around everything: one thread polls the connection to the run and handles timers,
 * the other waits for children, reaps them and starts the next command in their places. The end of a child wakes a
 * waiting thread with a scheduler hint that poll does not get: on a busy machine that is worth a third of the
 * throughput. Memory is not freed where it lasts as long as the process; running out of it ends the process, which
 * the run survives. `launcher.h` lists the files. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define TICK_SECONDS 0.1
#define PATIENCE 0.05      /* commands behind one that runs longer than this are returned */
#define LATEST_WORD 0.01   /* maximum time that results wait for others; none if their place has no more commands */
#define KILL_GRACE 2.0     /* between SIGTERM and SIGKILL */
#define START_PAUSE 0.01   /* pause before we check again for a task that is to be killed and has not begun */
#define END_OF_REST 0.5    /* maximum wait for the rest of a task, or a tenth of it if the task ended by itself */
#define TABLE_ENTRIES 4096
#define REAPER_STACK (256 << 10)
#define WORTH_ASKING 0.004  /* for a shorter task, I/O counters are not read */

/* ---- state ------------------------------------------------------------------------------------------------------ */

struct Place { /* one start command of the scheduler: commands to run one after another */
    struct Place *next;
    int64_t number;
    Order *first, *last;
    bool busy;
    bool waits; /* for a descriptor, to start an order */
};

char *run_name;
Running *running;
static double clock_offset;
static int link_fd = -1, kick_fd = -1;
int slots_dir = -1;
char *slots_path;
struct rlimit descriptors;
static Place *places;
static bool any_waits; /* whether any place waits for a descriptor */
static Buffer arrived, unsent, results;
static uint32_t result_count;
static double oldest_result;
static bool urgent;
static long own_peak; /* in kilobytes */
static pthread_t first_thread;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t something_started = PTHREAD_COND_INITIALIZER;
static double next_tick, asleep_until; /* asleep_until 0: the timer thread is awake */
bool measures = true;

static struct { uint64_t pid; double boot_time; } *table;

double monotonic(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double now_is(void) { return monotonic(CLOCK_MONOTONIC) + clock_offset; }

/* ---- results ---------------------------------------------------------------------------------------------------- */

static void begin_result(double now, uint32_t fields, const char *kind) {
    if (!result_count++) oldest_result = now;
    write_tuple(&results, fields);
    write_string(&results, kind);
}

typedef struct {
    int64_t task, attempt;
    const char *outcome, *message;
    int status;
    double started, ended;
    Spent spent;
    Peaks peaks;
    int64_t disk, files;
    off_t at, size;
    Buffer tail;
} End;

/* Thousandths of cores: the maximum over a second, or the average over the whole time if that is larger. */
static int64_t cores_of(const End *end) {
    double wall = end->ended - end->started, cores = wall > 0 ? (end->spent.user + end->spent.system) / wall : 0;
    return (int64_t)((cores > end->peaks.cores ? cores : end->peaks.cores) * 1000 + 0.5);
}

static void report_end(double now, const End *end) {
    const Spent *spent = &end->spent;
    const Peaks *peaks = &end->peaks;
    begin_result(now, 26, "ended");
    write_int(&results, end->task);
    write_int(&results, end->attempt);
    write_string(&results, end->outcome);
    write_int(&results, end->status);
    write_double(&results, end->started);
    write_double(&results, end->ended);
    write_double(&results, spent->user);
    write_double(&results, spent->system);
    write_int(&results, (int64_t)spent->peak * 1024);
    write_int(&results, end->at);
    write_int(&results, end->size);
    write_string(&results, end->message);
    write_text(&results, 's', end->tail.data, end->tail.size);
    write_int(&results, spent->read);
    write_int(&results, spent->written);
    write_int(&results, spent->switches);
    write_int(&results, spent->faults);
    write_int(&results, peaks->resident > spent->peak * 1024 ? peaks->resident : (int64_t)spent->peak * 1024);
    write_int(&results, peaks->virtual);
    write_int(&results, peaks->swap);
    write_int(&results, peaks->most);
    write_int(&results, peaks->all);
    write_int(&results, cores_of(end));
    write_int(&results, end->disk);
    write_int(&results, end->files);
}

static void report_course(double now, Running *r, const Spent *spent) {
    Look end = {.cpu = spent->user + spent->system, .read = spent->read, .written = spent->written};
    begin_result(now, 4, "course");
    write_int(&results, r->task);
    write_int(&results, r->attempt);
    course_write(&results, r, now, &end);
}

static void report_unstarted(double now, const Order *order, const char *outcome, int status, const char *why) {
    End end = {.task = order->task, .attempt = order->attempt, .outcome = outcome, .status = status,
               .message = why, .started = now, .ended = now};
    report_end(now, &end);
}

/* Sends waiting data; returns whether all is sent. If the other end is closed, it is dropped; reading reports that. */
static bool push(void) {
    size_t sent = 0;
    while (sent < unsent.size) {
        ssize_t n = write(link_fd, unsent.data + sent, unsent.size - sent);
        if (n < 0) {
            if (errno == EINTR) continue;
            if (errno != EAGAIN) sent = unsent.size;
            break;
        }
        sent += (size_t)n;
    }
    memmove(unsent.data, unsent.data + sent, unsent.size - sent);
    unsent.size -= sent;
    return !unsent.size;
}

static void report(void) {
    put_u32(&unsent, (uint32_t)(results.size + 5));
    put_byte(&unsent, '[');
    put_u32(&unsent, result_count);
    put(&unsent, results.data, results.size);
    results.size = 0;
    result_count = 0;
    urgent = false;
    push();
}

/* The peak that a child starts with. getrusage would return that of our parent, if it was larger. */
static void look_at_own_peak(void) {
    char status[4096], *found;
    if (read_small("/proc/self/status", status, sizeof status) <= 0) return;
    if ((found = strstr(status, "VmHWM:"))) own_peak = atol(found + 6) * 17 / 16;
}

/* ---- starting --------------------------------------------------------------------------------------------------- */

static void free_order(Order *order) {
    free(order->command);
    free(order->directory);
    free(order->shell);
    free(order->variables);
    free(order->paths);
    free(order);
}

static void forget(Running *r) {
    for (Running **at = &running; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    remove_script(spawn_of(r->slot));
    slot_busy[r->slot] = false;
}

static void free_running(Running *r) {
    free_order(r->order);
    free(r->killed_as);
    free(r->killed_why);
    free(r->window);
    free(r->course);
    disk_free(r->disk);
    if (r->series >= 0) close(r->series);
    free(r);
}

/* Handles the result of a spawn: true if the task runs; false if it failed, which is reported. */
static bool begun(double now, Running *r) {
    const Spawn *s = spawn_of(r->slot);
    r->starting = false;
    if (!s->error) {
        r->pid = s->pid;
        r->boot_time = s->boot_time;
        if (r->slot < TABLE_ENTRIES) {
            table[r->slot].pid = (uint64_t)r->pid;
            table[r->slot].boot_time = r->boot_time;
        }
        return true;
    }
    char why[512];
    if (s->error == EAGAIN || s->error == ENOMEM)
        snprintf(why, sizeof why, "the system would not start a process: %s", strerror(s->error));
    else
        snprintf(why, sizeof why, "cannot start %.300s: %s", s->trial, strerror(s->error));
    report_unstarted(now, r->order, "failed", 127, why);
    forget(r);
    free_running(r);
    return false;
}

typedef enum { STARTED, NOT_STARTED, NO_DESCRIPTOR } Start;

/* Reports that a command that is too long for an argument cannot be written to a file. */
static Start unwritten(double now, Running *r) {
    char why[256];
    snprintf(why, sizeof why, "cannot write its command, which is long, to a file: %s", strerror(spawn_of(r->slot)->error));
    report_unstarted(now, r->order, "failed", 127, why);
    forget(r);
    free_running(r);
    return NOT_STARTED;
}

/* Starts one command, or reports that it cannot be started. Takes ownership of the order, unless descriptors are
 * short: then it has to wait until another task has ended. */
static Start start(double now, Place *place, Order *order) {
    static uint64_t serial;
    int slot = take_slot();
    if (slot < 0) {
        bool is_short = errno == EMFILE || errno == ENFILE;
        if (is_short && (running || errno == ENFILE)) return NO_DESCRIPTOR;
        char why[160];
        snprintf(why, sizeof why, "cannot make a file for its output: %s", strerror(errno));
        report_unstarted(now, order, "failed", 127, why);
        free_order(order);
        return NOT_STARTED;
    }
    Running *r = take(sizeof *r);
    *r = (Running){.next = running, .order = order, .task = order->task, .attempt = order->attempt, .serial = ++serial,
                   .pid = -1, .slot = slot, .started = now, .place = place, .starting = true, .series = -1,
                   .disk = order->disk ? disk_for(order) : NULL,
                   .memory = order->memory > 0 ? order->memory : 0, .expected = order->memory < 0 ? -order->memory : 0,
                   .deadline = order->timeout >= 0 ? now + order->timeout : 0};
    /* Tasks that may have to be killed get a seat: it knows all of their processes. */
    if (r->memory || r->disk || order->timeout >= 0) r->seat = seat_for(slot, r->memory);
    r->begun = monotonic(CLOCK_BOOTTIME);
    running = r;
    pthread_cond_signal(&something_started);
    tree_begins(r);
    Spawn *s = prepare(order, slot);
    if (!s) return unwritten(now, r);
    if (r->seat && seat_spawns(r->seat, s)) return STARTED; /* the seat's thread spawns it; we continue meanwhile */
    r->is_of_first_thread = pthread_equal(pthread_self(), first_thread);
    if (!r->seat) spawn_prepared(s, -1);
    return begun(now, r) ? STARTED : NOT_STARTED;
}

/* Starts the next command of a place. One that cannot be started has failed, and the next one is tried. */
static void next_of(double now, Place *place) {
    place->busy = place->waits = false;
    while (place->first && !place->busy) {
        Order *order = place->first, *after = order->next;
        Start came = start(now, place, order);
        if (came == NO_DESCRIPTOR) {
            place->waits = any_waits = true;
            return;
        }
        place->first = after;
        if (!place->first) place->last = NULL;
        place->busy = came == STARTED;
    }
    if (place->busy) return;
    for (Place **at = &places; *at; at = &(*at)->next)
        if (*at == place) {
            *at = place->next;
            break;
        }
    free(place);
    urgent = true;
}

/* Places that wait for a descriptor try again, after a task has ended or some time has passed. */
static void start_waiting(double now) {
    if (!any_waits) return;
    any_waits = false;
    for (Place *place = places, *next; place; place = next) {
        next = place->next;
        if (place->waits) next_of(now, place);
    }
}

/* Handles the spawns that seats have completed meanwhile; `wait`: also those in progress. True if there were any. */
static bool collect_starts(double now, bool wait) {
    bool any = false;
    for (Running *r = running, *next; r; r = next) {
        Place *place = r->place;
        next = r->next;
        if (!r->starting || !seat_has_spawned(r->seat, wait)) continue;
        any = true;
        if (!begun(now, r)) next_of(now, place);
    }
    return any;
}

/* ---- ending ----------------------------------------------------------------------------------------------------- */

void ask_to_end(double now, Running *r, const char *outcome, const char *why, bool at_once) {
    if (!r->killed_as) {
        r->killed_as = strdup(outcome);
        r->killed_why = strdup(why);
        if (!r->killed_as || !r->killed_why) die("no memory");
    }
    if (r->starting) {
        r->deadline = now + START_PAUSE; /* it is killed as soon as it runs */
        return;
    }
    if (!r->seat) remember_trees(); /* once its first process is gone, descent cannot be followed any more */
    if (at_once) {
        killpg(r->pid, SIGKILL);
        if (r->seat) seat_clear(r->seat);
        return;
    }
    killpg(r->pid, SIGTERM);
    killpg(r->pid, SIGCONT);
    r->deadline = now + KILL_GRACE;
}

static double seconds(struct timeval t) { return (double)t.tv_sec + (double)t.tv_usec / 1e6; }

/* Adds the usage of a process that has just been reaped; peaks of processes do not add up. */
static void add_usage(Spent *spent, const struct rusage *usage, int64_t read, int64_t written) {
    int64_t from_disk = (int64_t)usage->ru_inblock * 512, to_disk = (int64_t)usage->ru_oublock * 512;
    spent->user += seconds(usage->ru_utime);
    spent->system += seconds(usage->ru_stime);
    spent->read += read > from_disk ? read : from_disk;
    spent->written += written > to_disk ? written : to_disk;
    spent->switches += usage->ru_nvcsw + usage->ru_nivcsw;
    spent->faults += usage->ru_majflt;
    if (usage->ru_maxrss > own_peak && usage->ru_maxrss > spent->peak) spent->peak = usage->ru_maxrss;
}

/* The leader was just reaped: kills the rest of its group, and processes that left its group. While the group has
 * members, its number is not reused. If it has none, the number could be reused only after all other pids, which is
 * impossible within the microseconds since. False if a process does not end: it may go on writing into the file of
 * the slot. */
static bool end_rest(Running *r) {
    struct rusage usage;
    double patience = r->killed_as ? END_OF_REST : END_OF_REST / 10, deadline = monotonic(CLOCK_MONOTONIC) + patience;
    bool more = !killpg(r->pid, SIGKILL);
    /* their usage counts for the task, and nothing may write to the slot any more */
    while (more && monotonic(CLOCK_MONOTONIC) < deadline) {
        pid_t pid = wait4(-r->pid, NULL, WNOHANG, &usage);
        if (pid > 0) {
            add_usage(&r->orphans, &usage, 0, 0);
            forget_orphan(pid);
        }
        if (!pid) usleep(100);
        if (pid < 0) more = !killpg(r->pid, SIGKILL) && !usleep(100);
    }
    if (r->seat) {
        seat_clear(r->seat);
        return true;
    }
    return (!r->killed_as && !more && !may_leave_orphans(r)) || end_tree(r);
}

/* Describes how it ended. */
static void judge(double now, Running *r, End *end, char *message, size_t room) {
    bool ran_out = r->memory && r->seat && seat_ran_out(r->seat);
    if (ran_out && !r->killed_as) {
        end->outcome = "exhausted";
        say_exhausted(message, room, r, now);
    } else if (r->killed_as) {
        end->outcome = r->killed_as;
        end->message = r->killed_why;
    } else if (r->disk && disk_was_over(r->disk, slot_fds[r->slot])) {
        end->outcome = "exhausted";
        disk_say(r->disk, message, room, now - r->started);
    } else if (end->status < 0) {
        const char *name = sigabbrev_np(-end->status);
        end->outcome = "crashed";
        snprintf(message, room, "ended by signal %d (%s%s)", -end->status, name ? "SIG" : "signal", name ? name : "");
    } else if (end->status) {
        end->outcome = "failed";
        snprintf(message, room, "exit status %d", end->status);
    }
}

static void finish(double now, Running *r, int status, const Spent *spent) {
    static Buffer tail;
    char message[160] = "";
    bool is_all_gone = end_rest(r);
    End end = {.task = r->task, .attempt = r->attempt, .outcome = "ok", .message = message, .started = r->started,
               .ended = now, .spent = *spent, .peaks = r->peaks};
    end.status = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
    judge(now, r, &end, message, sizeof message);
    end.spent.user += r->orphans.user;
    end.spent.system += r->orphans.system;
    end.spent.read += r->orphans.read;
    end.spent.written += r->orphans.written;
    end.spent.switches += r->orphans.switches;
    end.spent.faults += r->orphans.faults;
    if (r->orphans.peak > end.spent.peak) end.spent.peak = r->orphans.peak;
    if (r->window) {
        note_cpu(r, now, end.spent.user + end.spent.system);
        end.peaks.cores = r->peaks.cores;
    }
    if (r->disk) {
        end.disk = disk_bytes(r->disk);
        end.files = disk_files(r->disk);
    }
    off_t written = lseek(slot_fds[r->slot], 0, SEEK_END);
    if (written > 0) {
        absorb(slot_fds[r->slot], written, &end.at, &end.size, &tail);
        if (strcmp(end.outcome, "ok")) end.tail = tail;
    }
    if (!is_all_gone) renew_slot(r->slot);
    forget(r);
    next_of(now, r->place); /* before the report: a free core waits as little as possible */
    start_waiting(now);
    if (course_is_worth_telling(r, now)) report_course(now, r, &end.spent);
    report_end(now, &end);
    free_running(r);
}

static Running *task_of(pid_t leader) {
    Running *r = running;
    while (r && r->pid != leader) r = r->next;
    return r;
}

/* Reaps a process that has ended: a task's first process, or an orphan, whose usage is added to its task. */
static void bury(double now, pid_t pid) {
    int status;
    struct rusage usage;
    int64_t read = 0, written = 0;
    Running *r = task_of(pid);
    if (!r) {
        collect_starts(now, true); /* it may have ended before its spawn was reported */
        r = task_of(pid);
    }
    Running *of = r ? r : owner_of_orphan(pid);
    if (of && measures && now - of->started > WORTH_ASKING) read_traffic(pid, &read, &written);
    if (wait4(pid, &status, WNOHANG, &usage) != pid) return;
    if (!r) forget_orphan(pid);
    if (!of) return;
    if (!r) {
        add_usage(&of->orphans, &usage, read, written);
        return;
    }
    Spent spent = {0};
    add_usage(&spent, &usage, read, written);
    finish(now, r, status, &spent);
}

/* Reaps the process that is known to have ended, and all others that have. */
static void reap(double now, pid_t first) {
    siginfo_t dead = {.si_pid = first};
    collect_starts(now, false);
    while (dead.si_pid) {
        bury(now, dead.si_pid);
        dead.si_pid = 0;
        if (waitid(P_ALL, 0, &dead, WEXITED | WNOHANG | WNOWAIT)) return;
    }
}

static double nearest_deadline(void) {
    double nearest = 0;
    for (Running *r = running; r; r = r->next)
        if (r->deadline && (!nearest || r->deadline < nearest)) nearest = r->deadline;
    return nearest;
}

static void enforce(double now) {
    for (Running *r = running; r; r = r->next)
        if (r->deadline && r->deadline <= now) {
            if (r->starting) {
                r->deadline = now + START_PAUSE;
            } else if (r->killed_as) {
                if (!r->seat) remember_trees();
                killpg(r->pid, SIGKILL);
                r->deadline = now + KILL_GRACE;
            } else {
                char why[96];
                snprintf(why, sizeof why, "ran longer than its time limit (%g s)", r->order->timeout);
                ask_to_end(now, r, "timeout", why, false);
            }
        }
}

/* ---- messages of the run ---------------------------------------------------------------------------------------- */

static char *read_copy(Reader *r, uint32_t *size) {
    const char *bytes = read_bytes(r, size);
    char *copy = take((size_t)*size + 1);
    memcpy(copy, bytes, *size);
    copy[*size] = 0;
    return copy;
}

static Order *read_order(Reader *r) {
    Order *order = take(sizeof *order);
    bool has_disk = read_count(r) > 8;
    *order = (Order){0};
    order->task = read_int(r);
    order->attempt = read_int(r);
    order->command = read_text(r);
    order->timeout = read_double(r);
    order->variables = read_copy(r, &order->variables_size);
    order->directory = read_text(r);
    order->memory = read_int(r);
    order->shell = read_copy(r, &order->shell_size);
    if (has_disk) {
        order->disk = read_int(r);
        order->paths = read_copy(r, &order->paths_size);
    }
    return order;
}

static void take_start(double now, Reader *r) {
    int64_t number = read_int(r);
    Place *place = places;
    while (place && place->number != number) place = place->next;
    if (!place) {
        place = take(sizeof *place);
        *place = (Place){.next = places, .number = number};
        places = place;
    }
    for (uint32_t count = read_count(r); count; count--) {
        Order *order = read_order(r);
        if (place->last)
            place->last->next = order;
        else
            place->first = order;
        place->last = order;
    }
    if (!place->busy && !place->waits) next_of(now, place);
}

static void take_kill(double now, Reader *r) {
    int64_t task = read_int(r);
    char *outcome = read_text(r), *why = read_text(r);
    bool at_once = read_int(r);
    for (Running *at = running; at; at = at->next)
        if (at->task == task) {
            ask_to_end(now, at, outcome, why, at_once);
            goto done;
        }
    for (Place *place = places; place; place = place->next)
        for (Order **at = &place->first, *before = NULL; *at; before = *at, at = &(*at)->next)
            if ((*at)->task == task) {
                Order *order = *at;
                *at = order->next;
                if (place->last == order) place->last = before;
                report_unstarted(now, order, outcome, 0, why);
                free_order(order);
                urgent = true;
                goto done;
            }
done:
    free(outcome);
    free(why);
}

void report_growth(double now, const Running *r, int64_t resident, int64_t total) {
    begin_result(now, 5, "grew");
    write_int(&results, r->task);
    write_int(&results, r->attempt);
    write_int(&results, resident);
    write_int(&results, total);
    urgent = true;
}

static void settle_in(Reader *r) {
    read_count(r);
    run_name = read_text(r);
    char *slots = read_text(r);
    output_path = read_text(r);
    char *table_path = read_text(r);
    clock_offset = read_double(r);
    streams_are_ours = read_int(r);
    char *series = read_text(r);
    series_go_to(series, read_text(r));
    free(series);
    slots_dir = open(slots, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    slots_path = realpath(slots, NULL);
    if (slots_dir < 0 || !slots_path) die(slots);
    int fd = open(table_path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    size_t size = sizeof *table * TABLE_ENTRIES;
    void *zeros = calloc(1, size);
    /* Disk space is allocated now: a later write into a hole of a full disk would kill us by a signal. */
    if (fd < 0 || !zeros || pwrite(fd, zeros, size, 0) != (ssize_t)size) die(table_path);
    table = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (table == MAP_FAILED) die(table_path);
    close(fd);
    free(zeros);
    free(slots);
    free(table_path);
}

/* Handles complete messages; false when the run is gone. */
static bool hear(void) {
    reserve(&arrived, 1 << 20);
    ssize_t got = read(link_fd, arrived.data + arrived.size, 1 << 20);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
    if (got <= 0) return false;
    arrived.size += (size_t)got;
    size_t at = 0;
    while (arrived.size - at >= 4) {
        uint32_t size;
        memcpy(&size, arrived.data + at, 4);
        if (arrived.size - at - 4 < size) break;
        Reader r = {arrived.data + at + 4, arrived.data + at + 4 + size};
        at += 4 + (size_t)size;
        if (!table) {
            settle_in(&r);
            continue;
        }
        read_count(&r);
        if (read_int(&r))
            take_kill(now_is(), &r);
        else
            take_start(now_is(), &r);
    }
    memmove(arrived.data, arrived.data + at, arrived.size - at);
    arrived.size -= at;
    return true;
}

/* ---- the loop --------------------------------------------------------------------------------------------------- */

/* Reports long-running commands and returns those that wait behind them. */
static void tick(double now) {
    collect_starts(now, false);
    start_waiting(now);
    if (measures) look_at_own_peak();
    if (output_full) begin_result(now, 1, "full");
    for (Running *r = running; r; r = r->next) {
        if (!r->told && !r->starting) {
            r->told = true;
            begin_result(now, 7, "running");
            write_int(&results, r->task);
            write_int(&results, r->attempt);
            write_double(&results, r->started);
            write_int(&results, r->pid);
            write_double(&results, r->boot_time);
            write_int(&results, r->slot);
        }
        if (now - r->started > PATIENCE)
            while (r->place->first) {
                Order *order = r->place->first;
                r->place->first = order->next;
                report_unstarted(now, order, "unbegun", 0, "");
                free_order(order);
            }
        if (!r->place->first) r->place->last = NULL;
    }
}

/* The next time when there is something to do that no event announces. */
static double next_moment(double now) {
    double nearest = next_tick, deadline = nearest_deadline(), look = next_look_at_limits();
    if (deadline && deadline < nearest) nearest = deadline;
    if (look && look < nearest) nearest = look;
    if (result_count && oldest_result + LATEST_WORD < nearest) nearest = oldest_result + LATEST_WORD;
    if (unsent.size && !push()) nearest = now + 0.001;
    return nearest;
}

static void report_if_due(double now) {
    if (result_count && (urgent || now - oldest_result >= LATEST_WORD)) report();
}

static void *mind_children(void *unused) {
    (void)unused;
    for (;;) {
        siginfo_t dead = {0};
        bool are_none = waitid(P_ALL, 0, &dead, WEXITED | WNOWAIT);
        pthread_mutex_lock(&lock);
        double now = now_is();
        bool is_odd = false;
        if (are_none) {
            /* A process that a seat is just starting could not be waited for. It is running without a pending
             * spawn: no hurry. */
            is_odd = !collect_starts(now, true) && running;
            while (!running) pthread_cond_wait(&something_started, &lock);
        } else {
            reap(now, dead.si_pid);
            report_if_due(now);
            if (asleep_until && next_moment(now) < asleep_until && eventfd_write(kick_fd, 1)) die("eventfd");
        }
        pthread_mutex_unlock(&lock);
        if (is_odd) usleep(1000);
    }
    return NULL;
}

/* Sleeps without the lock until there is something to do; returns whether the run has sent something. */
static bool sleep_well(double now) {
    struct pollfd watched[] = {{link_fd, POLLIN, 0}, {kick_fd, POLLIN, 0}};
    double until = table ? next_moment(now) : now;
    int pause = !table ? -1 : until > now ? (int)((until - now) * 1000) + 1 : 0;
    asleep_until = until;
    pthread_mutex_unlock(&lock);
    poll(watched, 2, pause);
    pthread_mutex_lock(&lock);
    asleep_until = 0;
    eventfd_t kicks;
    if (watched[1].revents && eventfd_read(kick_fd, &kicks) && errno != EAGAIN) die("eventfd");
    return watched[0].revents;
}

/* Returns with the lock held when the run has closed the connection: nothing is started any more. */
static void serve(void) {
    pthread_mutex_lock(&lock);
    double now = now_is();
    next_tick = now + TICK_SECONDS;
    for (;;) {
        if (sleep_well(now) && !hear()) return;
        now = now_is();
        if (!table) continue;
        enforce(now);
        bool is_tick = now >= next_tick;
        double look = next_look_at_limits();
        if (is_tick || (look && now >= look)) look_at_trees(now);
        if (is_tick) {
            next_tick = now + TICK_SECONDS;
            tick(now);
        }
        report_if_due(now);
    }
}

static void begin_minding_children(void) {
    pthread_t thread;
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, REAPER_STACK);
    if (pthread_create(&thread, &attributes, mind_children, NULL)) die("no thread");
}

/* The run has closed the connection: kills everything that was started, including processes that escaped from their
 * task. */
static void clear_up(void) {
    char mark[256], path[64];
    for (Place *place = places; place; place = place->next) place->first = NULL;
    collect_starts(now_is(), true);
    for (Running *r = running; r; r = r->next) {
        killpg(r->pid, SIGKILL);
        if (r->seat) seat_clear(r->seat);
    }
    if (run_name) {
        snprintf(mark, sizeof mark, MARK "%s:", run_name);
        end_marked(mark, 0);
    }
    do
        end_children(); /* the children of each killed process may become ours */
    while (waitpid(-1, NULL, 0) > 0);
    seats_close();
    for (int slot = 0; slot < slot_count; slot++) {
        snprintf(path, sizeof path, "%d", slot);
        unlinkat(slots_dir, path, 0);
        remove_script(spawn_of(slot));
    }
}

/* One descriptor per running task exceeds the usual soft limit on large machines. */
static void raise_descriptors(void) {
    if (getrlimit(RLIMIT_NOFILE, &descriptors)) die("the limit of descriptors");
    struct rlimit all = {descriptors.rlim_max, descriptors.rlim_max};
    setrlimit(RLIMIT_NOFILE, &all);
}

static void nothing(int number) { (void)number; }

int main(int argc, char **argv) {
    if (argc != 2) {
        fputs("usage: launcher DESCRIPTOR (started by shoal, not by hand)\n", stderr);
        return 2;
    }
    link_fd = atoi(argv[1]);
    fcntl(link_fd, F_SETFD, FD_CLOEXEC);
    fcntl(link_fd, F_SETFL, fcntl(link_fd, F_GETFL) | O_NONBLOCK);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    /* Handled by a function that does nothing; ignored signals would be inherited by the tasks. */
    struct sigaction no_matter = {.sa_handler = nothing, .sa_flags = SA_RESTART};
    int unheeded[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGPIPE, SIGXFSZ, 0};
    for (int *number = unheeded; *number; number++) sigaction(*number, &no_matter, NULL);
    const char *wish = getenv("SHOAL_MEASURE");
    measures = !wish || strcmp(wish, "off");
    signal(SIGCHLD, SIG_DFL); /* if it was ignored, the kernel would reap children for us */
    raise_descriptors();
    kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (kick_fd < 0) die("eventfd");
    first_thread = pthread_self();
    keep_environment();
    look_at_own_peak();
    begin_minding_children();
    serve();
    clear_up();
    return 0;
}
