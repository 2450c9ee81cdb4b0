/* unit/mem/archive/archive_rig.h - an archive in a directory of its own, and shards to put into it.
 *
 * Owns:    the archive and the directory, which the teardown removes.
 * Threads: the test's.
 * Errors:  cmocka assertions.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_TESTS_ARCHIVE_RIG_H
#define HL_TESTS_ARCHIVE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <stdbool.h>
#include <sys/xattr.h>

#include "base/crc32.h"
#include "core/safetensors/safetensors.h"
#include "mem/archive/archive.h"
#include "os/file.h"

struct rig {
    struct hl_archive *archive;
    char dir[32];
    char url[160];
    uint64_t quota;
    const char *endpoint; /* of an S3 store */
    uint64_t part;
    unsigned timeout_ms;
    unsigned rounds; /* of the test with threads */
    bool keeps_crc;  /* the medium stores checksums beside the bytes */
};

struct shard {
    struct hl_id id;
    char *bytes;
    uint64_t size;
    uint32_t crc;
};

static inline hl_status rig_try_open(struct rig *r)
{
    return hl_archive_open(&(struct hl_archive_options){.url = r->url,
                                                        .quota_bytes = r->quota,
                                                        .s3_endpoint = r->endpoint,
                                                        .s3_part = r->part,
                                                        .timeout_ms = r->timeout_ms},
                           &r->archive);
}

static inline void rig_open(struct rig *r)
{
    hl_status st = rig_try_open(r);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
}

static inline void rig_close(struct rig *r)
{
    hl_archive_close(r->archive);
    r->archive = NULL;
}

static inline void rig_reopen(struct rig *r, uint64_t quota)
{
    rig_close(r);
    r->quota = quota;
    rig_open(r);
}

static inline int rig_setup(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return -1;
    snprintf(r->dir, sizeof(r->dir), "/tmp/hl-archive-XXXXXX");
    if (mkdtemp(r->dir) == NULL)
        return -1;
    snprintf(r->url, sizeof(r->url), "dir:%s", r->dir);
    r->rounds = 15;
    r->keeps_crc = setxattr(r->dir, "user.test", "", 0, 0) == 0; /* a tmpfs may not */
    *state = r;
    return rig_try_open(r);
}

static inline int rig_teardown(void **state)
{
    struct rig *r = *state;
    rig_close(r);
    hl_status st = hl_dir_remove(r->dir);
    free(r);
    return st;
}

/* A shard of two tensors with `data` bytes together; with_crc: it contains their checksums. */
static inline struct shard shard_make(struct hl_id id, uint64_t data, unsigned seed, int with_crc)
{
    struct hl_tensor t[2] = {{.name = "a", .dtype = HL_DTYPE_U8, .rank = 1, .shape = {data / 3}},
                             {.name = "b", .dtype = HL_DTYPE_U8, .rank = 1}};
    t[1].shape[0] = data - data / 3;
    struct hl_safetensors_layout layout = {.tensors = t, .count = 2, .crc_fields = with_crc};
    struct hl_safetensors_image image;
    assert_int_equal(hl_safetensors_write(&layout, &image), HL_OK);
    struct shard s = {.id = id, .size = image.size + data};
    s.bytes = malloc(s.size);
    assert_non_null(s.bytes);
    memcpy(s.bytes, image.bytes, image.size);
    for (uint64_t i = 0; i < data; i++)
        s.bytes[image.size + i] = (char)((i * 2654435761u + seed * 40503u) >> 7);
    if (with_crc)
        for (size_t i = 0; i < 2; i++)
            hl_safetensors_patch_crc(&image, s.bytes, i,
                                     hl_crc32(0, s.bytes + image.size + t[i].offset, t[i].size));
    hl_safetensors_image_fini(&image);
    s.crc = hl_crc32(0, s.bytes, s.size);
    return s;
}

static inline struct hl_id id_of(uint64_t n)
{
    return (struct hl_id){n * UINT64_C(0x9e3779b97f4a7c15), n};
}

static inline hl_status put(struct rig *r, const struct shard *s)
{
    return hl_archive_put(r->archive, s->id, s->bytes, s->size, s->crc);
}

static inline void assert_readable(struct rig *r, const struct shard *s)
{
    char *back = calloc(1, s->size);
    assert_non_null(back);
    hl_status st = hl_archive_get(r->archive, s->id, back, s->size, s->crc);
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    assert_int_equal(st, HL_OK);
    assert_memory_equal(back, s->bytes, s->size);
    free(back);
}

static inline hl_status get_status(struct rig *r, const struct shard *s)
{
    char *back = malloc(s->size);
    hl_status st = hl_archive_get(r->archive, s->id, back, s->size, s->crc);
    free(back);
    return st;
}

static inline struct hl_archive_info info(struct rig *r)
{
    struct hl_archive_info i;
    hl_archive_stat(r->archive, &i);
    return i;
}

#define assert_error_has(part)                                                                     \
    do {                                                                                           \
        if (strstr(hl_error_text(), (part)) == NULL)                                               \
            fail_msg("\"%s\" is not in \"%s\"", (part), hl_error_text());                          \
    } while (0)

#endif
