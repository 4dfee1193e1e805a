/* What the parts of the launcher share. `launcher.c` is the program; `wire.c` reads and writes messages; `slots.c`
 * keeps output; `command.c` turns an order into a process; `tree.c` looks at and ends whole process trees; `disk.c` looks
 * at what they have written; `series.c` and `course.c` write down what was seen of them, in full on request and in few
 * points; `seat.c` gives a task with limits a control group of its own. A lock keeps the two threads of `launcher.c` apart; those of the seats only start processes. */
#ifndef SHOAL_LAUNCHER_H
#define SHOAL_LAUNCHER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>

#define MARK "SHOAL_TASK="
#define CPUS "SHOAL_CPUS="

/* ---- wire.c ----------------------------------------------------------------------------------------------------- */

void die(const char *what) __attribute__((noreturn));
void *take(size_t size);

typedef struct {
    uint8_t *data;
    size_t size, room;
} Buffer;

void reserve(Buffer *b, size_t more);
void put(Buffer *b, const void *data, size_t size);
void put_byte(Buffer *b, uint8_t byte);
void put_u32(Buffer *b, uint32_t value);

void write_tuple(Buffer *b, uint32_t count);
void write_int(Buffer *b, int64_t value);
void write_double(Buffer *b, double value);
void write_text(Buffer *b, char type, const void *text, size_t size);
void write_string(Buffer *b, const char *text);

typedef struct {
    const uint8_t *at, *end;
} Reader;

uint32_t read_count(Reader *r); /* of a tuple or list */
int64_t read_int(Reader *r);
double read_double(Reader *r);
const char *read_bytes(Reader *r, uint32_t *size); /* not terminated */
char *read_text(Reader *r);

/* ---- launcher.c ------------------------------------------------------------------------------------------------- */

typedef struct Place Place;
typedef struct Seat Seat;
typedef struct Disk Disk;
typedef struct Window Window;
typedef struct Course Course;

typedef struct Order {
    struct Order *next;
    int64_t task, attempt;
    double timeout; /* negative: none */
    int64_t memory; /* 0: no limit; negative: not held, but to be told when it is passed */
    char *command, *directory;
    char *shell; /* its words, each with its zero; none: /bin/sh. An empty one first: no command does without it */
    uint32_t shell_size;
    char *variables; /* NAME=value, each with its zero; empty at the end */
    uint32_t variables_size;
    int64_t disk; /* 0: no limit */
    char *paths;  /* what it makes, each path with its zero; NULL without a limit */
    uint32_t paths_size;
} Order;

/* What was seen of a task's whole tree while it ran; bytes, and zero where nothing was seen. */
typedef struct {
    int64_t resident, virtual, swap, most, all;
    double cores; /* most over any stretch of a second */
} Peaks;

/* What wait4 and /proc told of processes of the task other than its first one, which fell to us as orphans. */
typedef struct {
    double user, system;
    long peak; /* in kilobytes */
    int64_t read, written, switches, faults;
} Spent;

typedef struct Running {
    struct Running *next;
    int64_t task, attempt;
    uint64_t serial; /* no other attempt of this launcher has it */
    Order *order;
    pid_t pid; /* negative while it is being started */
    int slot;
    double started, boot_time, deadline; /* deadline 0: none */
    double begun;                        /* by the clock that the system notes the start of processes with; not later */
    bool is_of_first_thread;             /* which has started it */
    int64_t memory;                      /* limit in bytes; 0: none */
    int64_t expected;                    /* bytes above which the engine wants to hear of it; 0: never */
    int64_t resident;                    /* bytes when it was last looked at */
    Place *place;
    Seat *seat; /* NULL: it has none */
    bool starting, told;
    char *killed_as, *killed_why; /* set when we asked it to end */
    double next_look, next_count; /* at its tree, at the counter of its seat */
    Disk *disk;                   /* NULL: it has no limit of disk */
    Window *window;               /* its CPU time at the last looks; NULL: it was not looked at */
    int series;                   /* descriptor of its time series; negative: it has none */
    Course *course;               /* NULL: it was not looked at */
    int64_t kept_read, kept_written; /* the most traffic that was seen of it */
    Peaks peaks;
    Spent orphans;
} Running;

extern Running *running;
extern char *run_name;
extern int slots_dir;
extern char *slots_path;
extern struct rlimit descriptors; /* as it was when we began: tasks have the same; ours is as high as it may be */

extern bool measures; /* look at tasks that have no limit, too */

double monotonic(clockid_t which);
/* Tells the engine that a task uses more memory than was expected of it. */
void report_growth(double now, const Running *r, int64_t resident, int64_t total);
void ask_to_end(double now, Running *r, const char *outcome, const char *why, bool at_once);

/* ---- slots.c ---------------------------------------------------------------------------------------------------- */

extern bool output_full; /* there was no room for some output; the run should stop */
extern char *output_path;
extern int *slot_fds, slot_count;
extern bool streams_are_ours; /* tasks write where we do; nothing is captured */
extern bool *slot_busy;

/* The lowest free slot; negative, with `errno`, if there is no room for another. */
int take_slot(void);
/* Gives a slot another file: what still has the old one open must not write into the output of the next task. */
void renew_slot(int slot);
/* Moves what a task wrote into the stream; the tail is for messages. */
void absorb(int source, off_t size, off_t *at, off_t *moved, Buffer *tail);

/* ---- command.c -------------------------------------------------------------------------------------------------- */

/* What is needed to start a task, and what came of it. One per slot: it lasts from the start to the end of its task. */
typedef struct {
    char path[4096], mark[256];
    const char *program; /* NULL: only the shell */
    char **words, **shell, **elsewhere; /* elsewhere: the shell, in a directory that we cannot enter ourselves */
    size_t shell_room;
    char *script;          /* the file with a command that is too long for an argument; NULL: it is not */
    const char *directory; /* NULL: ours */
    bool in_shell;
    char **environment, *copy;
    size_t environment_room, copy_room;
    int streams[3];
    bool is_pinned;       /* to these processors; else it may use ours */
    cpu_set_t cpus;
    char *stack;          /* of the new process until it executes its program */
    const char *trial;    /* what it is just being started as */
    char **trial_words;
    pid_t pid;
    volatile int error;
    bool is_outside; /* the group it was to be started in would not have it */
    double boot_time;
} Spawn;

/* Keeps our variables for the tasks, without our own mark. */
void keep_environment(void);
Spawn *spawn_of(int slot);
/* NULL: its command, which is too long for an argument, could not be written to a file; `error` of the spawn says why. */
Spawn *prepare(const Order *order, int slot);
/* Removes the file with the command, if there is one. */
void remove_script(Spawn *s);
/* Starts what was prepared; with the directory of a control group, right in there (negative: where we are). */
void spawn_prepared(Spawn *s, int group);

/* ---- tree.c ----------------------------------------------------------------------------------------------------- */

/* The text of a small file below /proc, terminated; its size, or negative if it cannot be read. */
ssize_t read_small(const char *path, char *text, size_t room);
/* The whole text of a file of any size, terminated, in the buffer; nothing if it cannot be read. */
char *read_whole(const char *path, Buffer *b);
/* The message of a task that had no memory left in its seat. */
void say_exhausted(char *text, size_t room, const Running *r, double now);

/* A task has just been started: when it is to be looked at. */
void tree_begins(Running *r);
/* Looks at the trees that are due and ends those above their memory limit. */
void look_at_trees(double now);
/* When that must be done for the sake of a limit; 0 if there is none. */
double next_look_at_limits(void);
/* Takes note of who belongs to whom, so that it is known when the parents are gone. */
void remember_trees(void);
/* The task that a process of ours without a parent belonged to; NULL if that cannot be told. */
Running *owner_of_orphan(pid_t pid);
/* Whether there may be orphans of a task whose first process and group are gone. */
bool may_leave_orphans(const Running *gone);
/* An orphan has been buried. */
void forget_orphan(pid_t pid);
/* Ends whatever is left of a task whose first process is gone, wherever it went; false if something does not end. */
bool end_tree(const Running *r);
void end_marked(const char *mark, pid_t except);
void end_children(void);
/* Bytes read and written by a process and what it reaped, dead but not buried. */
void read_traffic(pid_t pid, int64_t *read, int64_t *written);
const char *in_mebibytes(int64_t bytes);
/* Notes how much CPU time a task has used by now; its most cores are kept in its peaks. */
void note_cpu(Running *r, double now, double cpu);

/* ---- disk.c ----------------------------------------------------------------------------------------------------- */

/* What is to be known of the disk of a task that has just been started; NULL without a limit. */
Disk *disk_for(const Order *order);
void disk_free(Disk *d);
/* One look: first its outputs, of which a large directory is walked a little at a time, then each of its processes. */
void disk_look(Disk *d, int slot_fd);
void disk_look_at_process(Disk *d, pid_t pid);
bool disk_is_over(const Disk *d);
/* The last look, when nothing runs any more: whether it was over its limit. */
bool disk_was_over(Disk *d, int slot_fd);
void disk_say(const Disk *d, char *text, size_t room, double age);
/* The most that was seen. */
int64_t disk_bytes(const Disk *d);
int64_t disk_files(const Disk *d);

/* ---- series.c --------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t resident, virtual, swap, count, read, written;
    double cpu, cores;
} Look;

/* Where time series are kept, and the lines that begin each of them. */
void series_go_to(const char *directory, char *header);
bool series_wanted(void);
void series_add(Running *r, double now, const Look *look);

/* ---- course.c --------------------------------------------------------------------------------------------------- */

/* Takes note of the memory at a look; whether there is to be another point. */
bool course_is_due(Running *r, double now, int64_t resident);
void course_add(Running *r, double now, const Look *look);
bool course_is_worth_telling(const Running *r, double now);
/* The points, with one more for the end. */
void course_write(Buffer *b, Running *r, double now, const Look *end);

/* ---- seat.c ----------------------------------------------------------------------------------------------------- */

/* A seat for the next task of a slot, with a memory limit or none; NULL where the system does not permit it. */
Seat *seat_for(int slot, int64_t memory);
bool seat_limits_memory(const Seat *seat);
/* Has a task started in the seat's group; true if that goes on, and `seat_has_spawned` will tell. */
bool seat_spawns(Seat *seat, Spawn *s);
bool seat_has_spawned(Seat *seat, bool wait);
/* Whether the system had to end something in there for want of memory since this was asked last. */
bool seat_ran_out(Seat *seat);
/* Ends all that is in there; true if there was anything. */
bool seat_clear(Seat *seat);
bool seat_holds(const Seat *seat, pid_t pid);
/* Removes all groups; nothing may be started afterwards. */
void seats_close(void);

#endif
