/* Messages: growing buffers and Python's `marshal`, version 2, as far as the launcher needs it. */
#include "launcher.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- memory and bytes ------------------------------------------------------------------------------------------- */

void die(const char *what) {
    fprintf(stderr, "shoal launcher: %s: %s\n", what, strerror(errno));
    _exit(1);
}

void *take(size_t size) {
    void *p = malloc(size ? size : 1);
    if (!p) die("no memory");
    return p;
}

void reserve(Buffer *b, size_t more) {
    if (b->size + more <= b->room) return;
    size_t room = b->room ? b->room : 4096;
    while (room < b->size + more) room *= 2;
    b->data = realloc(b->data, room);
    if (!b->data) die("no memory");
    b->room = room;
}

void put(Buffer *b, const void *data, size_t size) {
    reserve(b, size);
    if (size) memcpy(b->data + b->size, data, size);
    b->size += size;
}

void put_byte(Buffer *b, uint8_t byte) { put(b, &byte, 1); }
void put_u32(Buffer *b, uint32_t value) { put(b, &value, 4); } /* little-endian machines only, as marshal */

/* ---- marshal: writing ------------------------------------------------------------------------------------------- */

void write_tuple(Buffer *b, uint32_t count) { put_byte(b, '('); put_u32(b, count); }

void write_int(Buffer *b, int64_t value) {
    if (value >= INT32_MIN && value <= INT32_MAX) {
        put_byte(b, 'i');
        put_u32(b, (uint32_t)(int32_t)value);
        return;
    }
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint16_t digits[5];
    int32_t count = 0;
    for (; rest; rest >>= 15) digits[count++] = rest & 0x7fff;
    put_byte(b, 'l');
    put_u32(b, (uint32_t)(value < 0 ? -count : count));
    put(b, digits, 2 * (size_t)count);
}

void write_double(Buffer *b, double value) { put_byte(b, 'g'); put(b, &value, 8); }

void write_text(Buffer *b, char type, const void *text, size_t size) {
    put_byte(b, (uint8_t)type);
    put_u32(b, (uint32_t)size);
    put(b, text, size);
}

void write_string(Buffer *b, const char *text) { write_text(b, 'u', text, strlen(text)); }

/* ---- marshal: reading ------------------------------------------------------------------------------------------- */

static const uint8_t *get(Reader *r, size_t size) {
    if ((size_t)(r->end - r->at) < size) die("message cut short");
    const uint8_t *found = r->at;
    r->at += size;
    return found;
}

static uint32_t get_u32(Reader *r) {
    uint32_t value;
    memcpy(&value, get(r, 4), 4);
    return value;
}

uint32_t read_count(Reader *r) { /* of a tuple or list */
    uint8_t type = *get(r, 1);
    if (type != '(' && type != '[') die("a sequence was expected");
    return get_u32(r);
}

int64_t read_int(Reader *r) {
    uint8_t type = *get(r, 1);
    if (type == 'T' || type == 'F') return type == 'T';
    if (type == 'i') return (int32_t)get_u32(r);
    if (type != 'l') die("a number was expected");
    int32_t count = (int32_t)get_u32(r);
    int64_t value = 0;
    for (int32_t i = 0, n = abs(count); i < n; i++) {
        uint16_t digit;
        memcpy(&digit, get(r, 2), 2);
        value |= (int64_t)digit << (15 * i);
    }
    return count < 0 ? -value : value;
}

double read_double(Reader *r) {
    double value;
    if (*get(r, 1) != 'g') die("a real number was expected");
    memcpy(&value, get(r, 8), 8);
    return value;
}

const char *read_bytes(Reader *r, uint32_t *size) { /* not terminated */
    uint8_t type = *get(r, 1);
    if (type != 's' && type != 'u' && type != 't') die("text was expected");
    *size = get_u32(r);
    return (const char *)get(r, *size);
}

char *read_text(Reader *r) {
    uint32_t size;
    const char *text = read_bytes(r, &size);
    char *copy = take((size_t)size + 1);
    memcpy(copy, text, size);
    copy[size] = 0;
    return copy;
}
