/* The time series of an attempt in few points, from the measurements of its tree. When there are too many points,
 * pairs are merged. `time_series.py` does the same and defines the numbers. */
#include "launcher.h"

#include <stdlib.h>

#define MOST_POINTS 60
#define LEAST_SPACING 0.2 /* seconds between two points */
#define FIRST_AGE 0.1     /* age at the first point: shorter attempts cost nothing */
#define LEAST_AGE 1.0     /* minimum age of an attempt whose series is reported */

enum { AGE, MEMORY, CPU, READ, WRITTEN, FIGURES };

struct Course {
    int count;
    double last, spacing; /* age at the last point, and distance between points */
    uint32_t memory;      /* maximum since the last point */
    uint32_t points[MOST_POINTS][FIGURES];
};

static uint32_t cut(double value) { return value < 0 ? 0 : value > UINT32_MAX ? UINT32_MAX : (uint32_t)value; }

static void halve(Course *c) {
    for (int i = 0; i < MOST_POINTS / 2; i++) {
        const uint32_t *first = c->points[2 * i], *second = c->points[2 * i + 1];
        uint32_t memory = first[MEMORY] > second[MEMORY] ? first[MEMORY] : second[MEMORY];
        for (int at = 0; at < FIGURES; at++) c->points[i][at] = second[at];
        c->points[i][MEMORY] = memory;
    }
    c->count = MOST_POINTS / 2;
    c->spacing *= 2;
}

bool course_is_due(Running *r, double now, int64_t resident) {
    Course *c = r->course;
    double age = now - r->started;
    uint32_t memory = cut((double)resident / 1024);
    if (c && memory > c->memory) c->memory = memory;
    return c ? age - c->last >= 0.9 * c->spacing : age >= FIRST_AGE;
}

void course_add(Running *r, double now, const Look *look) {
    Course *c = r->course;
    double age = now - r->started;
    if (!c) {
        c = r->course = take(sizeof *c);
        *c = (Course){.spacing = LEAST_SPACING, .memory = cut((double)look->resident / 1024)};
    }
    if (c->count == MOST_POINTS) halve(c);
    uint32_t *p = c->points[c->count++];
    p[AGE] = cut(age * 1000);
    p[MEMORY] = c->memory;
    p[CPU] = cut(look->cpu * 100);
    p[READ] = cut((double)look->read / 1024);
    p[WRITTEN] = cut((double)look->written / 1024);
    c->last = age;
    c->memory = 0;
}

bool course_is_worth_telling(const Running *r, double now) { return r->course && now - r->started >= LEAST_AGE; }

void course_write(Buffer *b, Running *r, double now, const Look *end) {
    Course *c = r->course;
    uint32_t memory = c->points[c->count - 1][MEMORY]; /* the memory at the end is unknown by now */
    if (memory > c->memory) c->memory = memory;
    course_add(r, now, end);
    write_text(b, 's', c->points, sizeof c->points[0] * (size_t)c->count);
}
