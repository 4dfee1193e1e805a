/* From an order to a process: the words of its command, its environment variables and its descriptors. */
#include "launcher.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (64 << 10)
#define LONGEST_WORD (128 << 10) /* of an argument with its zero byte; a limit of the kernel */
#define PATH_NAME "PATH="

extern char **environ;

static char **base_environment;
static size_t base_size;
static const char *search_path;

void keep_environment(void) {
    size_t count = 0;
    while (environ[count]) count++;
    base_environment = take(sizeof(char *) * (count + 1));
    for (size_t i = 0; i < count; i++)
        if (strncmp(environ[i], MARK, strlen(MARK))) base_environment[base_size++] = environ[i];
    search_path = getenv("PATH");
    if (!search_path) search_path = "/bin:/usr/bin";
}

/* Whether no character has a meaning for any shell; `=` is allowed only after the first word, where it is no
 * assignment. */
static bool is_plain(const char *command) {
    bool first_word = true, any = false;
    for (const char *at = command; *at; at++) {
        unsigned char c = (unsigned char)*at;
        if (c == ' ' || c == '\t') {
            if (any) first_word = false;
            continue;
        }
        if (c == '=' && first_word) return false;
        if (!(isalnum(c) && c < 128) && !strchr("_@%+:,./=-", c)) return false;
        any = true;
    }
    return any;
}

/* Whether the search path is the same as in the last search. */
static bool is_same_path(const char *path) {
    static char *last;
    if (last && !strcmp(path, last)) return true;
    free(last);
    last = strdup(path);
    if (!last) die("no memory");
    return false;
}

/* Returns the executable that the search path leads to; NULL for shell builtins and missing programs, which the
 * shell reports best. The last result is cached: consecutive tasks mostly run the same program. */
static const char *find_program(const char *name, const char *search) {
    static char last_name[256], last_path[4096];
    if (strchr(name, '/')) return name;
    if (is_same_path(search) && last_name[0] && !strcmp(name, last_name)) return last_path;
    last_name[0] = 0;
    for (const char *at = search; *at;) {
        const char *colon = strchrnul(at, ':');
        char path[4096];
        struct stat found;
        int size = snprintf(path, sizeof path, "%.*s/%s", colon == at ? 1 : (int)(colon - at), colon == at ? "." : at, name);
        if (size > 0 && size < (int)sizeof path && !access(path, X_OK) && !stat(path, &found) && S_ISREG(found.st_mode)) {
            if (strlen(name) >= sizeof last_name) return NULL;
            strcpy(last_name, name);
            strcpy(last_path, path);
            return last_path;
        }
        at = *colon ? colon + 1 : colon;
    }
    return NULL;
}

/* The search path of a task: its own, if it has one. */
static const char *path_of(const Order *order) {
    const char *found = search_path;
    for (uint32_t at = 0; at < order->variables_size; at += (uint32_t)strlen(order->variables + at) + 1)
        if (!strncmp(order->variables + at, PATH_NAME, strlen(PATH_NAME))) found = order->variables + at + strlen(PATH_NAME);
    return found;
}

/* The environment of a task: its mark, our variables, and its own variables, which override ours. */
static void fill_environment(Spawn *s, const Order *order) {
    size_t count = base_size + 2, used = 0;
    for (uint32_t at = 0; at < order->variables_size; at += (uint32_t)strlen(order->variables + at) + 1) count++;
    if (count > s->environment_room) {
        s->environment_room = count * 2;
        s->environment = realloc(s->environment, sizeof *s->environment * s->environment_room);
        if (!s->environment) die("no memory");
    }
    snprintf(s->mark, sizeof s->mark, MARK "%s:%lld:%lld", run_name, (long long)order->task, (long long)order->attempt);
    s->environment[used++] = s->mark;
    for (size_t i = 0; i < base_size; i++) {
        size_t name = (size_t)(strchrnul(base_environment[i], '=') - base_environment[i]);
        bool replaced = false;
        for (uint32_t at = 0; at < order->variables_size && !replaced; at += (uint32_t)strlen(order->variables + at) + 1)
            replaced = !strncmp(order->variables + at, base_environment[i], name + 1);
        if (!replaced) s->environment[used++] = base_environment[i];
    }
    for (uint32_t at = 0; at < order->variables_size; at += (uint32_t)strlen(order->variables + at) + 1)
        s->environment[used++] = order->variables + at;
    s->environment[used] = NULL;
}

/* The words of a command that needs no shell, split in a copy of the command. */
static void fill_words(Spawn *s, const Order *order) {
    size_t length = strlen(order->command), count = 0;
    if (length + 1 > s->copy_room) {
        s->copy_room = (length + 1) * 2;
        s->copy = realloc(s->copy, s->copy_room);
        s->words = realloc(s->words, sizeof *s->words * (s->copy_room / 2 + 2));
        if (!s->copy || !s->words) die("no memory");
    }
    char *rest = memcpy(s->copy, order->command, length + 1);
    for (char *word; (word = strsep(&rest, " \t"));)
        if (*word) s->words[count++] = word;
    s->words[count] = NULL;
    bool is_path = strchr(s->words[0], '/');
    const char *path = path_of(order);
    /* Some shells expand ~ in PATH to the user's home directory, others do not. */
    bool is_for_shell = !is_path && path && (*path == '~' || strstr(path, ":~"));
    const char *program = is_for_shell ? NULL : find_program(s->words[0], path);
    s->program = program && strlen(program) < sizeof s->path ? strcpy(s->path, program) : NULL;
    /* Relative directories in PATH are different ones in another directory. */
    if (s->directory && s->program && s->path[0] != '/' && !is_path) s->program = NULL;
    if (s->program) s->words[0] = s->path;
}

/* ---- the shell -------------------------------------------------------------------------------------------------- */

void remove_script(Spawn *s) {
    if (!s->script) return;
    unlink(s->script);
    free(s->script);
    s->script = NULL;
}

/* Writes a command that is too long for an argument to a file beside the slots, from which the shell reads it. */
static bool write_script(Spawn *s, const char *command, size_t size, int slot) {
    if (asprintf(&s->script, "%s/%d.command", slots_path, slot) < 0) die("no memory");
    int fd = open(s->script, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t done = 0;
    for (ssize_t n = 0; fd >= 0 && n >= 0 && done < size; done += n > 0 ? (size_t)n : 0)
        n = write(fd, command + done, size - done);
    int error = errno;
    if (fd >= 0) close(fd);
    if (fd >= 0 && done == size) return true;
    remove_script(s);
    s->error = error;
    return false;
}

/* The words that make a shell run the command, in our directory or in another one, which may not exist. False if
 * the command cannot be written to a file. */
static bool fill_shell(Spawn *s, const Order *order, int slot) {
    size_t count = 0, length = strlen(order->command);
    for (uint32_t at = 0; at < order->shell_size; at += (uint32_t)strlen(order->shell + at) + 1) count++;
    if (count + 4 > s->shell_room) {
        s->shell_room = count + 4;
        s->shell = realloc(s->shell, sizeof *s->shell * s->shell_room);
        s->elsewhere = realloc(s->elsewhere, sizeof *s->elsewhere * (s->shell_room + 5));
        if (!s->shell || !s->elsewhere) die("no memory");
    }
    count = 0;
    for (uint32_t at = 0; at < order->shell_size; at += (uint32_t)strlen(order->shell + at) + 1)
        if (order->shell[at]) s->shell[count++] = order->shell + at;
    if (!count) s->shell[count++] = "/bin/sh";
    if (length + 1 >= LONGEST_WORD) {
        if (!write_script(s, order->command, length, slot)) return false;
        s->shell[count++] = s->script;
    } else {
        s->shell[count++] = "-c";
        s->shell[count++] = order->command;
    }
    s->shell[count++] = NULL;
    char *there[] = {"/bin/sh", "-c", "cd -- \"$1\" && shift && exec \"$@\"", "shoal", order->directory};
    memcpy(s->elsewhere, there, sizeof there);
    memcpy(s->elsewhere + 5, s->shell, sizeof *s->shell * count);
    return true;
}

/* What is the same for all tasks of a slot; made once. Standard input is /dev/null, both outputs go into the slot. */
Spawn *spawn_of(int slot) {
    static Spawn **spawns;
    static int count, null_fd = -1;
    if (slot < count) return spawns[slot];
    spawns = realloc(spawns, sizeof *spawns * (size_t)(slot + 1));
    if (!spawns) die("no memory");
    if (null_fd < 0 && (null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) die("/dev/null");
    for (; count <= slot; count++) {
        Spawn *s = take(sizeof *s);
        *s = (Spawn){.streams = {null_fd, slot_fds[count], slot_fds[count]}, .stack = take(STACK_BYTES)};
        if (streams_are_ours) s->streams[1] = 1, s->streams[2] = 2;
        spawns[count] = s;
    }
    return spawns[slot];
}

/* The processors in an order's variable SHOAL_CPUS, such as 0-3,8. Most orders have no variables. */
static void fill_cpus(Spawn *s, const Order *order) {
    s->is_pinned = false;
    for (uint32_t at = 0; at < order->variables_size; at += (uint32_t)strlen(order->variables + at) + 1) {
        if (strncmp(order->variables + at, CPUS, strlen(CPUS))) continue;
        CPU_ZERO(&s->cpus);
        for (char *text = order->variables + at + strlen(CPUS); isdigit((unsigned char)*text); text += *text == ',') {
            unsigned long first = strtoul(text, &text, 10), last = first;
            if (*text == '-') last = strtoul(text + 1, &text, 10);
            for (unsigned long cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) CPU_SET(cpu, &s->cpus);
        }
        s->is_pinned = true;
    }
}

Spawn *prepare(const Order *order, int slot) {
    Spawn *s = spawn_of(slot);
    s->error = 0;
    s->directory = order->directory[0] ? order->directory : NULL;
    s->program = NULL;
    if (!fill_shell(s, order, slot)) return NULL;
    bool is_shell_wanted = order->shell_size && !order->shell[0];
    if (!is_shell_wanted && is_plain(order->command)) fill_words(s, order);
    fill_environment(s, order);
    fill_cpus(s, order);
    return s;
}

/* Runs in the new process, which shares our memory until exec: it must not allocate any. Signals need no attention:
 * we ignore none, we only have handlers for some, and exec resets those. */
static int become(void *argument) {
    Spawn *s = argument;
    sigset_t none;
    setpgid(0, 0);
    /* processors that went offline are no reason to fail */
    if (s->is_pinned) sched_setaffinity(0, sizeof s->cpus, &s->cpus);
    setrlimit(RLIMIT_NOFILE, &descriptors);
    for (int stream = 0; stream < 3; stream++) {
        bool is_there = s->streams[stream] == stream;
        if ((is_there ? fcntl(stream, F_SETFD, 0) : dup2(s->streams[stream], stream)) < 0) _exit(127);
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    char **words = s->trial_words;
    const char *program = s->trial;
    if (s->directory && chdir(s->directory) < 0) {
        if (!s->in_shell) {
            s->error = ENOENT;
            _exit(127);
        }
        words = s->elsewhere; /* the shell reports best what is wrong with the directory */
        program = words[0];
    }
    execve(program, words, s->environment);
    s->error = errno;
    _exit(127);
}

/* Creates a child in another control group. The C library has no function that takes both a stack and a group, so
 * memory is copied instead of shared, and a shared page reports errors. */
static bool clone_into(int group, Spawn *s) {
    Spawn *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return false;
    memcpy(shared, s, sizeof *s);
    struct clone_args how = {.flags = CLONE_INTO_CGROUP | CLONE_VFORK, .exit_signal = SIGCHLD, .cgroup = (uint64_t)group};
    s->pid = (pid_t)syscall(SYS_clone3, &how, sizeof how);
    if (!s->pid) become(shared);
    s->error = shared->error;
    munmap(shared, sizeof *shared);
    return s->pid > 0;
}

static int spawn_one(Spawn *s, int group, const char *program, char **words) {
    s->trial = program;
    s->trial_words = words;
    s->in_shell = words == s->shell;
    s->error = 0;
    s->is_outside = group >= 0 && !clone_into(group, s);
    if (group < 0 || s->is_outside) {
        s->pid = clone(become, s->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, s);
        if (s->pid < 0) return errno;
    }
    if (s->error) waitpid(s->pid, NULL, 0);
    return s->error;
}

/* Also runs in the thread of a seat: uses only what was prepared. */
void spawn_prepared(Spawn *s, int group) {
    int error = s->program ? spawn_one(s, group, s->program, s->words) : ENOENT;
    /* A script without an interpreter line, or nothing to execute: the shell runs the former and reports the
     * latter. */
    if (error == ENOEXEC || error == ENOENT || error == EACCES || error == ENOTDIR || (error == E2BIG && s->script))
        error = spawn_one(s, group, s->shell[0], s->shell);
    s->error = error;
    s->boot_time = monotonic(CLOCK_BOOTTIME);
}
