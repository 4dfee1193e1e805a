/* Disk usage of tasks with a disk limit: what they made, and what they have open for writing.
 *
 * Two kinds of files count. Outputs, found by name: a file counts if it was changed since the task began; a
 * directory is walked, a little at each check. And regular files that its processes have open for writing and that
 * did not exist before, even if they have no name any more; they count until they are removed, even after they are
 * closed. The kernel could stop a file that grows too large (RLIMIT_FSIZE), but the task might continue with a
 * truncated file and return that as a result. Files elsewhere that are opened and closed between two checks are
 * missed. Sizes are those that `ls` shows, including holes. */
#include "launcher.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ENTRIES_PER_LOOK 1000  /* a few milliseconds */
#define ENTRIES_AT_END 50000   /* of a larger directory, the result of the previous walk counts */
#define OPEN_FILES_PER_LOOK 4096
#define REMEMBERED_FILES 4096  /* of files other than outputs that were open earlier */
#define CLOCK_GRAIN 0.02       /* resolution of file timestamps, which is coarser than that of the clock */
#define WORTH_TELLING (1 << 16)

typedef struct {
    uint64_t device, inode;
} Identity;

typedef struct {
    Identity identity;
    char *path;
} Written;

struct Disk {
    int64_t limit;
    double since; /* wall clock */
    const char *paths, *paths_end, *next_path;
    char **waiting, *directory; /* directories that are still to be walked; the current one */
    size_t waiting_size, waiting_room;
    DIR *listing;
    int64_t walked_bytes, walked_files; /* of the current walk */
    int64_t whole_bytes, whole_files;   /* of the last complete walk */
    Identity *known;                    /* outputs that are files, and open files that have been counted */
    size_t known_size, known_room;
    Written *written; /* files other than outputs that were seen open for writing */
    size_t written_size, written_room;
    int64_t open_bytes, open_files;
    bool has_directories;
    int64_t bytes, files; /* maxima so far */
};

static double moment_of(struct statx_timestamp t) { return (double)t.tv_sec + (double)t.tv_nsec / 1e9; }

static bool look_up(int directory, const char *name, int flags, struct statx *found) {
    return !statx(directory, name, flags, STATX_BASIC_STATS | STATX_BTIME, found);
}

static Identity identity_of(const struct statx *file) {
    return (Identity){(uint64_t)file->stx_dev_major << 32 | file->stx_dev_minor, file->stx_ino};
}

/* Remembers a file; false if it is already known. */
static bool note(Disk *d, const struct statx *file) {
    Identity this = identity_of(file);
    for (size_t i = 0; i < d->known_size; i++)
        if (d->known[i].inode == this.inode && d->known[i].device == this.device) return false;
    if (d->known_size == d->known_room) {
        d->known_room = d->known_room ? d->known_room * 2 : 16;
        d->known = realloc(d->known, sizeof *d->known * d->known_room);
        if (!d->known) die("no memory");
    }
    d->known[d->known_size++] = this;
    return true;
}

Disk *disk_for(const Order *order) {
    Disk *d = take(sizeof *d);
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    *d = (Disk){.limit = order->disk, .since = (double)t.tv_sec + (double)t.tv_nsec / 1e9 - CLOCK_GRAIN,
                .paths = order->paths, .paths_end = order->paths + order->paths_size, .next_path = order->paths};
    return d;
}

/* ---- outputs ---------------------------------------------------------------------------------------------------- */

static void close_listing(Disk *d) {
    if (d->listing) closedir(d->listing);
    free(d->directory);
    d->listing = NULL;
    d->directory = NULL;
}

static void begin_walk(Disk *d) {
    close_listing(d);
    while (d->waiting_size) free(d->waiting[--d->waiting_size]);
    d->next_path = d->paths;
    d->walked_bytes = d->walked_files = 0;
}

void disk_free(Disk *d) {
    if (!d) return;
    begin_walk(d);
    while (d->written_size) free(d->written[--d->written_size].path);
    free(d->written);
    free(d->waiting);
    free(d->known);
    free(d);
}

static void remember_directory(Disk *d, const char *above, const char *name) {
    char *path;
    if (asprintf(&path, "%s%s%s", above, *above ? "/" : "", name) < 0) die("no memory");
    if (d->waiting_size == d->waiting_room) {
        d->waiting_room = d->waiting_room ? d->waiting_room * 2 : 16;
        d->waiting = realloc(d->waiting, sizeof *d->waiting * d->waiting_room);
        if (!d->waiting) die("no memory");
    }
    d->waiting[d->waiting_size++] = path;
}

static void count(Disk *d, const struct statx *file) {
    if (!S_ISREG(file->stx_mode) || moment_of(file->stx_ctime) < d->since) return;
    d->walked_bytes += (int64_t)file->stx_size;
    d->walked_files++;
}

static void take_entry(Disk *d, const char *name) {
    struct statx found;
    if (!strcmp(name, ".") || !strcmp(name, "..")) return;
    if (!look_up(dirfd(d->listing), name, AT_SYMLINK_NOFOLLOW, &found)) return;
    if (S_ISDIR(found.stx_mode))
        remember_directory(d, d->directory, name);
    else
        count(d, &found);
}

/* The next output by name. */
static void take_path(Disk *d) {
    struct statx found;
    const char *path = d->next_path;
    d->next_path += strlen(path) + 1;
    if (!look_up(AT_FDCWD, path, 0, &found)) return;
    if (S_ISDIR(found.stx_mode)) {
        d->has_directories = true;
        remember_directory(d, "", path);
    } else {
        note(d, &found);
        count(d, &found);
    }
}

/* Continues the walk for at most `entries` entries; true if it is complete. */
static bool walk(Disk *d, int entries) {
    for (; entries > 0; entries--) {
        struct dirent *entry;
        if (d->listing && (entry = readdir(d->listing))) {
            take_entry(d, entry->d_name);
        } else if (d->listing) {
            close_listing(d);
        } else if (d->waiting_size) {
            d->directory = d->waiting[--d->waiting_size];
            d->listing = opendir(d->directory);
            if (d->listing)
                d->walked_files++; /* a directory is a file, too */
            else
                close_listing(d);
        } else if (d->next_path < d->paths_end) {
            take_path(d);
        } else {
            d->whole_bytes = d->walked_bytes;
            d->whole_files = d->walked_files;
            begin_walk(d);
            return true;
        }
    }
    return false;
}

static int64_t larger(int64_t one, int64_t other) { return one > other ? one : other; }

static int64_t size_of_slot(int slot_fd) {
    struct stat slot;
    return !streams_are_ours && !fstat(slot_fd, &slot) ? slot.st_size : 0;
}

static void take_sum(Disk *d) {
    d->bytes = larger(d->bytes, larger(d->whole_bytes, d->walked_bytes) + d->open_bytes);
    d->files = larger(d->files, larger(d->whole_files, d->walked_files) + d->open_files);
}

/* False if it has already been counted. */
static bool count_other(Disk *d, const struct statx *file) {
    if (!note(d, file)) return false;
    d->open_bytes += (int64_t)file->stx_size;
    d->open_files++;
    return true;
}

/* Counts captured output, and files other than outputs that were open at an earlier check. */
static void look_at_others(Disk *d, int slot_fd) {
    d->open_files = 0;
    d->open_bytes = size_of_slot(slot_fd);
    for (size_t i = 0; i < d->written_size; i++) {
        struct statx found;
        if (!look_up(AT_FDCWD, d->written[i].path, AT_SYMLINK_NOFOLLOW, &found)) continue;
        Identity this = identity_of(&found), then = d->written[i].identity;
        if (this.inode == then.inode && this.device == then.device) count_other(d, &found);
    }
}

/* Marks what is counted elsewhere: captured output, and outputs that are files, which a long walk has passed long
 * ago. */
static void note_others(Disk *d, int slot_fd) {
    struct statx found;
    d->known_size = 0;
    if (look_up(slot_fd, "", AT_EMPTY_PATH, &found)) note(d, &found);
    for (const char *at = d->paths; d->has_directories && at < d->paths_end; at += strlen(at) + 1)
        if (look_up(AT_FDCWD, at, 0, &found) && !S_ISDIR(found.stx_mode)) note(d, &found);
}

void disk_look(Disk *d, int slot_fd) {
    note_others(d, slot_fd);
    walk(d, ENTRIES_PER_LOOK);
    look_at_others(d, slot_fd);
    take_sum(d);
}

/* ---- open files ------------------------------------------------------------------------------------------------- */

static bool is_for_writing(pid_t pid, const char *name) {
    char path[64], text[256], *flags;
    snprintf(path, sizeof path, "/proc/%d/fdinfo/%.16s", pid, name);
    if (read_small(path, text, sizeof text) <= 0 || !(flags = strstr(text, "flags:"))) return false;
    return strtol(flags + 6, NULL, 8) & O_ACCMODE;
}

/* Whether a file lies in one of the walked directories, and so has been counted there. */
static bool is_walked(const Disk *d, const char *path) {
    char above[4096];
    for (const char *at = d->paths; d->has_directories && at < d->paths_end; at += strlen(at) + 1) {
        size_t length = realpath(at, above) ? strlen(above) : 0;
        if (length && !strncmp(path, above, length) && path[length] == '/') return true;
    }
    return false;
}

static void remember_file(Disk *d, const struct statx *file, const char *path) {
    Identity this = identity_of(file);
    for (size_t i = 0; i < d->written_size; i++)
        if (d->written[i].identity.inode == this.inode && d->written[i].identity.device == this.device) return;
    if (d->written_size == REMEMBERED_FILES) return;
    if (d->written_size == d->written_room) {
        d->written_room = d->written_room ? d->written_room * 2 : 16;
        d->written = realloc(d->written, sizeof *d->written * d->written_room);
        if (!d->written) die("no memory");
    }
    char *copy = strdup(path);
    if (!copy) die("no memory");
    d->written[d->written_size++] = (Written){this, copy};
}

void disk_look_at_process(Disk *d, pid_t pid) {
    char above[64];
    snprintf(above, sizeof above, "/proc/%d/fd", pid);
    DIR *listing = opendir(above);
    if (!listing) return;
    struct dirent *entry;
    for (int left = OPEN_FILES_PER_LOOK; left > 0 && (entry = readdir(listing)); left--) {
        struct statx found;
        if (entry->d_name[0] == '.' || !look_up(dirfd(listing), entry->d_name, 0, &found)) continue;
        /* Files that existed before do not count; some file systems do not record when a file was created. */
        bool tells_birth = found.stx_mask & STATX_BTIME;
        double begun = moment_of(tells_birth ? found.stx_btime : found.stx_ctime);
        if (!S_ISREG(found.stx_mode) || begun < d->since || !is_for_writing(pid, entry->d_name)) continue;
        char path[4096];
        ssize_t size = readlinkat(dirfd(listing), entry->d_name, path, sizeof path - 1);
        path[size > 0 ? size : 0] = 0;
        if (found.stx_nlink && is_walked(d, path)) continue;
        if (count_other(d, &found) && found.stx_nlink) remember_file(d, &found, path);
    }
    closedir(listing);
    take_sum(d);
}

/* ---- verdict ---------------------------------------------------------------------------------------------------- */

bool disk_is_over(const Disk *d) { return d->bytes > d->limit; }

bool disk_was_over(Disk *d, int slot_fd) {
    note_others(d, slot_fd);
    begin_walk(d);
    walk(d, ENTRIES_AT_END);
    look_at_others(d, slot_fd);
    take_sum(d);
    return disk_is_over(d);
}

void disk_say(const Disk *d, char *text, size_t room, double age) {
    char used[32];
    snprintf(used, sizeof used, "%s", in_mebibytes(d->bytes));
    const char *limit = in_mebibytes(d->limit);
    if (d->bytes - d->limit < WORTH_TELLING) /* both numbers would look the same */
        snprintf(text, room, "used more than its %s of disk, after %.2f s", limit, age);
    else
        snprintf(text, room, "used %s of disk, more than its %s, after %.2f s", used, limit, age);
}

int64_t disk_bytes(const Disk *d) { return d->bytes; }
int64_t disk_files(const Disk *d) { return d->files; }
