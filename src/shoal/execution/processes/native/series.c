/* Time series on request: a file per measured task, a row per measurement, in the columns of `shoal monitor`. */
#include "launcher.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int directory = -1;
static char *header; /* sent by the run, which knows the columns */

void series_go_to(const char *path, char *lines) {
    if (*path) directory = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    header = lines;
}

bool series_wanted(void) { return directory >= 0; }

/* On a full disk rows are dropped, and the run continues. */
static void write_all(int fd, const char *text) {
    if (write(fd, text, strlen(text)) < 0) return;
}

static void begin(Running *r) {
    char name[64], *about;
    snprintf(name, sizeof name, "%lld.%lld.series", (long long)r->task, (long long)r->attempt);
    r->series = openat(directory, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666);
    if (r->series < 0) return;
    long long task = r->task, attempt = r->attempt;
    if (asprintf(&about, "# task %lld, attempt %lld: %s", task, attempt, r->order->command) < 0) die("no memory");
    for (char *at = about; (at = strpbrk(at, "\r\n"));) *at = ' ';
    write_all(r->series, about);
    write_all(r->series, "\n");
    write_all(r->series, header);
    free(about);
}

/* Whole MiB; memory, which may be reserved from it, is rounded up, I/O is rounded down. */
static long long up(int64_t bytes) { return (bytes + (1 << 20) - 1) >> 20; }
static long long down(int64_t bytes) { return bytes >> 20; }

void series_add(Running *r, double now, const Look *look) {
    if (r->series < 0) begin(r);
    if (r->series < 0) return;
    char row[256];
    double load = 0;
    if (getloadavg(&load, 1) < 1) load = 0;
    snprintf(row, sizeof row, "%.6f %.6f %.3f %lld %lld %lld %lld %lld %lld 0 0 0.000 %d\n", now, look->cpu, look->cores,
             (long long)look->count, up(look->virtual), up(look->resident), up(look->swap), down(look->read),
             down(look->written), (int)load);
    write_all(r->series, row);
}
