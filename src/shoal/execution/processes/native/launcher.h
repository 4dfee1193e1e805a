/* What the parts of the launcher share. `launcher.c` is the program; `wire.c` reads and writes messages; `slots.c`
 * keeps output; `command.c` turns an order into a process; `tree.c` measures and kills whole process trees;
 * `disk.c` measures their disk usage; `series.c` and `course.c` record time series, in full on request and in few
 * points; `seat.c` gives a task with limits a control group of its own. A lock separates the two threads of
 * `launcher.c`; those of the seats only start processes. */
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
    int64_t memory; /* 0: no limit; negative: not enforced, but reported when exceeded */
    char *command, *directory;
    /* its words, each with a zero byte; none: /bin/sh. An empty one first: use the shell even for commands that
     * need none */
    char *shell;
    uint32_t shell_size;
    char *variables; /* NAME=value, each with a zero byte; empty at the end */
    uint32_t variables_size;
    int64_t disk; /* 0: no limit */
    char *paths;  /* its outputs, each path with a zero byte; NULL without a limit */
    uint32_t paths_size;
} Order;

/* Measurements of a task's whole tree while it ran; bytes, and zero where nothing was measured. */
typedef struct {
    int64_t resident, virtual, swap, most, all;
    double cores; /* maximum over any interval of a second */
} Peaks;

/* Usage, from wait4 and /proc, of the task's processes other than its first one, which became our children as
 * orphans. */
typedef struct {
    double user, system;
    long peak; /* in kilobytes */
    int64_t read, written, switches, faults;
} Spent;

typedef struct Running {
    struct Running *next;
    int64_t task, attempt;
    uint64_t serial; /* unique among the attempts of this launcher */
    Order *order;
    pid_t pid; /* negative while it is being started */
    int slot;
    double started, boot_time, deadline; /* deadline 0: none */
    /* by the clock of process start times in /proc; not later than the real start */
    double begun;
    bool is_of_first_thread;             /* which thread has started it */
    int64_t memory;                      /* limit in bytes; 0: none */
    int64_t expected;                    /* report growth above this number of bytes; 0: never */
    int64_t resident;                    /* bytes at the last measurement */
    Place *place;
    Seat *seat; /* NULL: it has none */
    bool starting, told;
    char *killed_as, *killed_why; /* set when it was told to end */
    double next_look, next_count; /* of its tree, of the counter of its seat */
    Disk *disk;                   /* NULL without a disk limit */
    Window *window;               /* its CPU time at the latest measurements; NULL: not measured */
    int series;                   /* descriptor of its time series; negative: none */
    Course *course;               /* NULL: not measured */
    int64_t kept_read, kept_written; /* highest I/O that was measured */
    Peaks peaks;
    Spent orphans;
} Running;

extern Running *running;
extern char *run_name;
extern int slots_dir;
extern char *slots_path;
extern struct rlimit descriptors; /* the original limit, which tasks get; ours is raised to the maximum */

extern bool measures; /* measure tasks without a limit, too */

double monotonic(clockid_t which);
/* Reports that a task uses more memory than expected. */
void report_growth(double now, const Running *r, int64_t resident, int64_t total);
void ask_to_end(double now, Running *r, const char *outcome, const char *why, bool at_once);

/* ---- slots.c ---------------------------------------------------------------------------------------------------- */

extern bool output_full; /* there was no disk space for some output; the run should stop */
extern char *output_path;
extern int *slot_fds, slot_count;
extern bool streams_are_ours; /* tasks write to our own output streams; nothing is captured */
extern bool *slot_busy;

/* The lowest free slot; negative, with `errno`, if there can be no other. */
int take_slot(void);
/* Gives a slot a new file: processes that have the old one open must not write into the output of the next task. */
void renew_slot(int slot);
/* Moves what a task wrote into the stream; the tail is for messages. */
void absorb(int source, off_t size, off_t *at, off_t *moved, Buffer *tail);

/* ---- command.c -------------------------------------------------------------------------------------------------- */

/* What is needed to start a task, and the result. One per slot: it lasts from the start to the end of its task. */
typedef struct {
    char path[4096], mark[256];
    const char *program; /* NULL: run by the shell only */
    char **words, **shell, **elsewhere; /* elsewhere: by the shell, in a directory that we cannot enter ourselves */
    size_t shell_room;
    char *script;          /* the file with a command that is too long for an argument; NULL if there is none */
    const char *directory; /* NULL: ours */
    bool in_shell;
    char **environment, *copy;
    size_t environment_room, copy_room;
    int streams[3];
    bool is_pinned;       /* to these processors; otherwise it inherits ours */
    cpu_set_t cpus;
    char *stack;          /* of the new process until exec */
    const char *trial;    /* what is being executed now */
    char **trial_words;
    pid_t pid;
    volatile int error;
    bool is_outside; /* it could not be started in its control group */
    double boot_time;
} Spawn;

/* Stores our environment variables for the tasks, without our own mark. */
void keep_environment(void);
Spawn *spawn_of(int slot);
/* NULL: its command, which is too long for an argument, could not be written to a file; `error` of the spawn holds
 * the reason. */
Spawn *prepare(const Order *order, int slot);
/* Removes the file with the command, if there is one. */
void remove_script(Spawn *s);
/* Starts what was prepared, in the control group with this directory (negative: in ours). */
void spawn_prepared(Spawn *s, int group);

/* ---- tree.c ----------------------------------------------------------------------------------------------------- */

/* The text of a small file below /proc, terminated; its size, or negative if it cannot be read. */
ssize_t read_small(const char *path, char *text, size_t room);
/* Reads a whole file of any size, terminated, into the buffer; empty if it cannot be read. */
char *read_whole(const char *path, Buffer *b);
/* The message for a task that ran out of memory in its seat. */
void say_exhausted(char *text, size_t room, const Running *r, double now);

/* A task has just been started: schedules its first measurement. */
void tree_begins(Running *r);
/* Measures the trees that are due and kills those above their memory limit. */
void look_at_trees(double now);
/* When the next tree with a limit is due; 0 if there is none. */
double next_look_at_limits(void);
/* Records the owners of processes while their parents exist. */
void remember_trees(void);
/* The task of an orphan that is our child; NULL if it cannot be determined. */
Running *owner_of_orphan(pid_t pid);
/* Whether there may be orphans of a task whose first process and group are gone. */
bool may_leave_orphans(const Running *gone);
/* An orphan has been reaped. */
void forget_orphan(pid_t pid);
/* Kills the rest of a task whose first process is gone, including processes that left its group; false if a process
 * does not end. */
bool end_tree(const Running *r);
void end_marked(const char *mark, pid_t except);
void end_children(void);
/* Bytes read and written by a process and the children it reaped; a zombie still shows them. */
void read_traffic(pid_t pid, int64_t *read, int64_t *written);
const char *in_mebibytes(int64_t bytes);
/* Records the CPU time of a task; the maximum number of cores goes into its peaks. */
void note_cpu(Running *r, double now, double cpu);

/* ---- disk.c ----------------------------------------------------------------------------------------------------- */

/* State for measuring the disk usage of a task that has just been started; NULL without a limit. */
Disk *disk_for(const Order *order);
void disk_free(Disk *d);
/* One check: first its outputs, of which a large directory is walked a little at a time, then each of its
 * processes. */
void disk_look(Disk *d, int slot_fd);
void disk_look_at_process(Disk *d, pid_t pid);
bool disk_is_over(const Disk *d);
/* The last check, after all processes have ended: whether the limit was exceeded. */
bool disk_was_over(Disk *d, int slot_fd);
void disk_say(const Disk *d, char *text, size_t room, double age);
/* The maximum so far. */
int64_t disk_bytes(const Disk *d);
int64_t disk_files(const Disk *d);

/* ---- series.c --------------------------------------------------------------------------------------------------- */

typedef struct {
    int64_t resident, virtual, swap, count, read, written;
    double cpu, cores;
} Look;

/* Sets the directory of time series files, and their header. */
void series_go_to(const char *directory, char *header);
bool series_wanted(void);
void series_add(Running *r, double now, const Look *look);

/* ---- course.c --------------------------------------------------------------------------------------------------- */

/* Records the memory at a measurement; returns whether a new point is due. */
bool course_is_due(Running *r, double now, int64_t resident);
void course_add(Running *r, double now, const Look *look);
bool course_is_worth_telling(const Running *r, double now);
/* Writes the points, with one more for the end. */
void course_write(Buffer *b, Running *r, double now, const Look *end);

/* ---- seat.c ----------------------------------------------------------------------------------------------------- */

/* A seat for the next task of a slot, with or without a memory limit; NULL where the system does not permit it. */
Seat *seat_for(int slot, int64_t memory);
bool seat_limits_memory(const Seat *seat);
/* Starts a task in the seat's group; true if that is in progress, and `seat_has_spawned` will report it. */
bool seat_spawns(Seat *seat, Spawn *s);
bool seat_has_spawned(Seat *seat, bool wait);
/* Whether the kernel had to kill something in there for lack of memory since the last call. */
bool seat_ran_out(Seat *seat);
/* Kills all processes in there; true if there were any. */
bool seat_clear(Seat *seat);
bool seat_holds(const Seat *seat, pid_t pid);
/* Removes all groups; nothing may be started afterwards. */
void seats_close(void);

#endif
