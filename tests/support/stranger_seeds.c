#include "support/stranger_seeds.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"

enum {
    MUTATED = 1, /* most of the time */
    FRAMED = 2,  /* in a ZMTP frame of the resulting length */
    MORE = 4,    /* the frame says that another one follows */
    CARRIES = 8  /* a descriptor */
};

#define GROWTH 8192 /* mutations and a frame add less than this to a piece */

struct piece {
    uint32_t flags;
    uint32_t len;
    uint32_t sums;
    uint32_t sum[SEEDS_SUMS][2]; /* a CRC-32 of [0] to [1] is stored at [1] */
    const uint8_t *bytes;
};

struct seed {
    uint32_t count;
    struct piece pieces[SEEDS_PIECES];
};

struct seeds {
    uint8_t *file;
    size_t size, at;
    uint32_t count;
    struct seed *seeds;
    uint64_t state;
};

/* splitmix64 */
static uint64_t next_number(struct seeds *s)
{
    uint64_t z = s->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

uint64_t seeds_below(struct seeds *s, uint64_t n)
{
    return next_number(s) % n;
}

static bool take(struct seeds *s, uint32_t *out)
{
    if (s->size - s->at < sizeof(*out))
        return false;
    memcpy(out, s->file + s->at, sizeof(*out));
    s->at += sizeof(*out);
    return true;
}

static bool take_piece(struct seeds *s, struct piece *p)
{
    if (!take(s, &p->flags) || !take(s, &p->len) || !take(s, &p->sums) || p->sums > SEEDS_SUMS)
        return false;
    for (uint32_t i = 0; i < p->sums; i++)
        if (!take(s, &p->sum[i][0]) || !take(s, &p->sum[i][1]) || p->sum[i][0] > p->sum[i][1])
            return false;
    if (p->len > s->size - s->at)
        return false;
    p->bytes = s->file + s->at;
    s->at += p->len;
    return true;
}

static bool take_all(struct seeds *s)
{
    if (!take(s, &s->count) || s->count == 0 || s->count > s->size)
        return false;
    s->seeds = calloc(s->count, sizeof(*s->seeds));
    for (uint32_t i = 0; s->seeds != NULL && i < s->count; i++) {
        struct seed *seed = &s->seeds[i];
        if (!take(s, &seed->count) || seed->count == 0 || seed->count > SEEDS_PIECES)
            return false;
        for (uint32_t k = 0; k < seed->count; k++)
            if (!take_piece(s, &seed->pieces[k]))
                return false;
    }
    return s->seeds != NULL && s->at == s->size;
}

static bool read_file(const char *path, uint8_t **bytes, size_t *size)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    uint8_t *file = fstat(fd, &st) == 0 ? malloc((size_t)st.st_size + 1) : NULL;
    size_t at = 0;
    ssize_t n = 1;
    while (file != NULL && n > 0 && at < (size_t)st.st_size) {
        n = read(fd, file + at, (size_t)st.st_size - at);
        at += n > 0 ? (size_t)n : 0;
    }
    close(fd);
    if (file == NULL || at < (size_t)st.st_size) {
        free(file);
        return false;
    }
    *bytes = file;
    *size = at;
    return true;
}

struct seeds *seeds_open(const char *path, uint64_t seed)
{
    struct seeds *s = calloc(1, sizeof(*s));
    if (s == NULL || !read_file(path, &s->file, &s->size)) {
        fprintf(stderr, "strangers: %s: %s\n", path, strerror(errno));
    } else if (!take_all(s)) {
        fprintf(stderr, "strangers: %s is no file of seeds: byte %zu of %zu\n", path, s->at,
                s->size);
    } else {
        s->state = seed;
        return s;
    }
    seeds_close(s);
    return NULL;
}

void seeds_close(struct seeds *s)
{
    if (s == NULL)
        return;
    free(s->seeds);
    free(s->file);
    free(s);
}

static void set_word(struct seeds *s, uint8_t *bytes, size_t len, size_t at)
{
    static const uint32_t numbers[] = {0,    1,    2,      3,          4,           0x7f,
                                       0x80, 0xff, 0xffff, 0x7fffffff, 0x80000000u, 0xffffffffu};
    uint32_t n = numbers[seeds_below(s, sizeof(numbers) / sizeof(numbers[0]))];
    uint8_t word[4] = {(uint8_t)n, (uint8_t)(n >> 8), (uint8_t)(n >> 16), (uint8_t)(n >> 24)};
    at = at / 4 * 4;
    memcpy(bytes + at, word, len - at < 4 ? len - at : 4);
}

/* Repeats a few bytes, in front of themselves. */
static size_t repeat(struct seeds *s, uint8_t *bytes, size_t len, size_t at)
{
    size_t more = seeds_below(s, 64);
    if (more > len - at)
        more = len - at;
    memmove(bytes + at + more, bytes + at, len - at);
    return len + more;
}

/* Returns the new length. There must be room for GROWTH more bytes. */
static size_t mutate(struct seeds *s, uint8_t *bytes, size_t len)
{
    static const uint8_t how_many[] = {0, 1, 1, 2, 3, 8};
    unsigned n = how_many[seeds_below(s, sizeof(how_many))];
    for (unsigned i = 0; i < n && len > 0; i++) {
        size_t at = seeds_below(s, len);
        unsigned what = (unsigned)seeds_below(s, 30);
        if (what < 5)
            bytes[at] ^= (uint8_t)(1u << seeds_below(s, 8));
        else if (what < 10)
            bytes[at] = (uint8_t)next_number(s);
        else if (what < 20)
            set_word(s, bytes, len, at);
        else if (what == 20)
            len = at > 0 ? at : 1;
        else if (what == 21)
            len = repeat(s, bytes, len, at);
    }
    return len;
}

static void mend_sums(const struct piece *p, uint8_t *bytes, size_t len)
{
    for (uint32_t i = 0; i < p->sums; i++) {
        size_t start = p->sum[i][0], end = p->sum[i][1];
        if (len < end + 4)
            continue;
        uint32_t crc = hl_crc32(0, bytes + start, end - start);
        for (int k = 0; k < 4; k++)
            bytes[end + (size_t)k] = (uint8_t)(crc >> 8 * k);
    }
}

static size_t frame(uint8_t *bytes, size_t len, bool more)
{
    uint8_t head[9] = {more};
    size_t n = 2;
    if (len < 256) {
        head[1] = (uint8_t)len;
    } else {
        head[0] |= 2;
        for (n = 1; n < 9; n++)
            head[n] = (uint8_t)((uint64_t)len >> 8 * (8 - n));
    }
    memmove(bytes + n, bytes, len);
    memcpy(bytes, head, n);
    return len + n;
}

static bool reserve(struct message *m, size_t more)
{
    if (m->capacity - m->len >= more)
        return true;
    uint8_t *grown = realloc(m->bytes, m->len + 2 * more);
    if (grown == NULL)
        return false;
    m->bytes = grown;
    m->capacity = m->len + 2 * more;
    return true;
}

bool seeds_next(struct seeds *s, struct message *out)
{
    const struct seed *seed = &s->seeds[seeds_below(s, s->count)];
    out->len = 0;
    for (uint32_t i = 0; i < seed->count; i++) {
        const struct piece *p = &seed->pieces[i];
        if (!reserve(out, p->len + GROWTH))
            return false;
        uint8_t *bytes = out->bytes + out->len;
        size_t len = p->len;
        memcpy(bytes, p->bytes, len);
        if (p->flags & MUTATED)
            len = mutate(s, bytes, len);
        if ((p->flags & MUTATED) && seeds_below(s, 5) > 0)
            mend_sums(p, bytes, len);
        if (p->flags & FRAMED)
            len = frame(bytes, len, (p->flags & MORE) != 0);
        out->pieces[i] = (struct message_piece){out->len, len, (p->flags & CARRIES) != 0};
        out->len += len;
    }
    out->count = seed->count;
    return true;
}

void message_fini(struct message *m)
{
    free(m->bytes);
    *m = (struct message){0};
}
