/* What the parts of the launcher share. `launcher.c` is the program; `wire.c` reads and writes messages; `tree.c` looks at
 * and ends whole process trees; `seat.c` gives a task with limits a control group of its own. One thread works; those of
 * the seats only start processes while it waits for them. */
#ifndef SHOAL_LAUNCHER_H
#define SHOAL_LAUNCHER_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <spawn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/types.h>

#define MARK "SHOAL_TASK="

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

/* What was seen of a task's whole tree while it ran; bytes, and zero where nothing was seen. */
typedef struct {
    int64_t resident, virtual, swap, most, all;
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
    pid_t pid;
    int slot;
    double started, boot_time, deadline; /* deadline 0: none */
    int64_t memory;                      /* limit in bytes; 0: none */
    Place *place;
    Seat *seat; /* NULL: it has none */
    bool told;
    char *killed_as, *killed_why; /* set when we asked it to end */
    double next_look, next_count; /* at its tree, at the counter of its seat */
    Peaks peaks;
    Spent orphans;
} Running;

extern const int DEFAULTED[]; /* signals that tasks shall not find ignored or blocked because we do; ends with 0 */
extern Running *running;
extern char *run_name;

double monotonic(clockid_t which);
void ask_to_end(double now, Running *r, const char *outcome, const char *why, bool at_once);

/* ---- tree.c ----------------------------------------------------------------------------------------------------- */

/* The text of a small file below /proc, terminated; its size, or negative if it cannot be read. */
ssize_t read_small(const char *path, char *text, size_t room);
/* An amount of memory for a message; good until the next call. */
const char *in_mebibytes(int64_t bytes);

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
/* Ends whatever is left of a task whose first process is gone, wherever it went. */
void end_tree(const Running *r);
void end_marked(const char *mark, pid_t except);
void end_children(void);
/* Bytes read and written by a process and what it reaped, dead but not buried. */
void read_traffic(pid_t pid, int64_t *read, int64_t *written);

/* ---- seat.c ----------------------------------------------------------------------------------------------------- */

typedef struct {
    pid_t *pid;
    const char *program;
    char **words, **environment;
    const posix_spawn_file_actions_t *actions;
    const posix_spawnattr_t *attributes;
    const int *streams; /* the same as the actions: what becomes 0, 1 and 2 */
} Spawn;

/* A seat for the next task of a slot, with a memory limit or none; NULL where the system does not permit it. */
Seat *seat_for(int slot, int slots_dir, int64_t memory);
bool seat_limits_memory(const Seat *seat);
/* Starts a process in the seat's group; 0 or the error. */
int seat_spawn(Seat *seat, const Spawn *spawn);
/* Whether the system had to end something in there for want of memory since this was asked last. */
bool seat_ran_out(Seat *seat);
/* Ends all that is in there; true if there was anything. */
bool seat_clear(Seat *seat);
bool seat_holds(const Seat *seat, pid_t pid);
/* Removes all groups; nothing may be started afterwards. */
void seats_close(int slots_dir);

#endif
