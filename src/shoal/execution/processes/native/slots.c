/* Slots, into which tasks write their output, and the stream that keeps it; the same as
 * shoal/execution/processes/output.py. */
#include "launcher.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>

#define TAIL_BYTES 8192
#define SPARE_DESCRIPTORS 16 /* for measurements, seats, series and the stream */

bool output_full;
int *slot_fds, slot_count;
bool streams_are_ours;
bool *slot_busy;
char *output_path;
static int output_fd = -1;

/* Opens the file of a slot; negative, with `errno`, if it cannot be made. */
static int open_slot(int slot) {
    char name[16];
    snprintf(name, sizeof name, "%d", slot);
    int fd = openat(slots_dir, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_TRUNC, 0644);
    if (fd < 0 || (rlim_t)fd + SPARE_DESCRIPTORS < descriptors.rlim_max) return fd;
    close(fd); /* descriptors are numbered from the lowest free one, so too few are left */
    errno = EMFILE;
    return -1;
}

int take_slot(void) {
    for (int slot = 0; slot < slot_count; slot++)
        if (!slot_busy[slot]) {
            slot_busy[slot] = true;
            return slot;
        }
    int fd = open_slot(slot_count);
    if (fd < 0) return -1;
    slot_fds = realloc(slot_fds, sizeof *slot_fds * (size_t)(slot_count + 1));
    slot_busy = realloc(slot_busy, sizeof *slot_busy * (size_t)(slot_count + 1));
    if (!slot_fds || !slot_busy) die("no memory");
    slot_fds[slot_count] = fd;
    slot_busy[slot_count] = true;
    return slot_count++;
}

void renew_slot(int slot) {
    char name[16];
    snprintf(name, sizeof name, "%d", slot);
    unlinkat(slots_dir, name, 0);
    int fd = openat(slots_dir, name, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_TRUNC, 0644);
    if (fd < 0 || dup3(fd, slot_fds[slot], O_CLOEXEC) < 0) die("another file for output");
    close(fd);
}

/* Moves what a task wrote into the stream. The launcher and the run both append: a lock keeps each piece
 * contiguous. */
void absorb(int source, off_t size, off_t *at, off_t *moved, Buffer *tail) {
    static char piece[1 << 16];
    if (output_fd < 0) output_fd = open(output_path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    *at = *moved = 0;
    if (output_fd >= 0) {
        flock(output_fd, LOCK_EX);
        off_t begin = lseek(output_fd, 0, SEEK_END);
        while (*moved < size) {
            ssize_t got = pread(source, piece, sizeof piece, *moved);
            if (got <= 0) break;
            ssize_t written = 0;
            while (written < got) {
                ssize_t n = write(output_fd, piece + written, (size_t)(got - written));
                if (n < 0) break;
                written += n;
            }
            if (written < got) { /* disk full: removes what was written of this task, too */
                output_full = true;
                if (ftruncate(output_fd, begin) < 0) output_full = true;
                *moved = 0;
                break;
            }
            *moved += got;
        }
        *at = *moved ? begin : 0;
        flock(output_fd, LOCK_UN);
    } else {
        output_full = true;
    }
    off_t from = size > TAIL_BYTES ? size - TAIL_BYTES : 0;
    reserve(tail, TAIL_BYTES);
    ssize_t got = pread(source, tail->data, TAIL_BYTES, from);
    tail->size = got > 0 ? (size_t)got : 0;
    if (ftruncate(source, 0) < 0) output_full = true;
}
