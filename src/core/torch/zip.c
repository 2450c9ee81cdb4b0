/* Finds the entries of the zip. The directory at the end of the file gives sizes and the offset of
 * each entry's local header. Only that header says where the data begins, because its padding
 * differs from the directory's. */
#include "core/torch/zip.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define END_SIZE        22u /* end of the central directory */
#define COMMENT_MAX     65535u
#define LOCATOR_SIZE    20u /* says where the zip64 end record is */
#define END64_SIZE      56u
#define CENTRAL_SIZE    46u /* an entry of the directory, without its name */
#define LOCAL_SIZE      30u
#define DIRECTORY_MAX   ((uint64_t)256 << 20)
#define NAME_MAX_BYTES  4095u
#define FLAG_ENCRYPTED  1u
#define ZIP64_EXTRA     1u
#define SAYS_WHAT_TO_DO "save the model again with torch.save"

struct directory {
    uint64_t offset;
    uint64_t size;
    uint64_t count;
};

/* An entry whose name and place have not been checked yet. */
struct found {
    uint64_t header; /* of its local header */
    uint64_t end;    /* of its data */
    struct hl_torch_zip_entry entry;
};

struct opener {
    const struct hl_torch_source *source;
    struct hl_torch_zip *zip;
    struct found *list;
    const char *stem; /* of the first entry; its length is stem_len */
    size_t stem_len;
    uint64_t directory;
};

static uint64_t little_endian(const uint8_t *p, size_t bytes)
{
    uint64_t v = 0;
    memcpy(&v, p, bytes); /* little endian, as everything here */
    return v;
}

HL_CHECK static hl_status read_source(const struct hl_torch_source *s, uint64_t at, void *to,
                                      size_t len)
{
    if (at > s->size || len > s->size - at)
        return hl_fail(HL_EINVAL,
                       "bytes %" PRIu64 " to %" PRIu64 " are beyond the file's %" PRIu64
                       ": it is truncated",
                       at, at + len, s->size);
    return s->read(s->arg, at, to, len);
}

/* ---- the end of the file --------------------------------------------------------------------- */

/* Finds the end record in the file's last bytes; a comment can follow it. */
static bool find_end(const uint8_t *tail, size_t len, size_t *out)
{
    for (size_t i = len - END_SIZE + 1; i-- > 0;) {
        if (memcmp(tail + i, "PK\5\6", 4) == 0 &&
            little_endian(tail + i + 20, 2) == len - i - END_SIZE) {
            *out = i;
            return true;
        }
    }
    return false;
}

HL_CHECK static hl_status read_end64(const struct hl_torch_source *s, uint64_t at,
                                     struct directory *out)
{
    uint8_t end[END64_SIZE];
    HL_TRY(read_source(s, at, end, sizeof(end)));
    if (memcmp(end, "PK\6\6", 4) != 0)
        return hl_fail(HL_EINVAL, "no zip64 end record at byte %" PRIu64, at);
    if (little_endian(end + 16, 4) != 0 || little_endian(end + 20, 4) != 0 ||
        little_endian(end + 24, 8) != little_endian(end + 32, 8))
        return hl_fail(HL_EINVAL, "the zip has several parts");
    *out = (struct directory){.count = little_endian(end + 32, 8),
                              .size = little_endian(end + 40, 8),
                              .offset = little_endian(end + 48, 8)};
    return HL_OK;
}

HL_CHECK static hl_status read_end(const struct hl_torch_source *s, struct directory *out)
{
    size_t len = s->size < END_SIZE + COMMENT_MAX ? s->size : END_SIZE + COMMENT_MAX, at;
    if (len < END_SIZE)
        return hl_fail(HL_EINVAL, "%" PRIu64 " bytes are not a zip file", s->size);
    HL_AUTO(hl_freep) uint8_t *tail = malloc(len);
    if (tail == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the last %zu bytes of a zip", len);
    HL_TRY(read_source(s, s->size - len, tail, len));
    if (!find_end(tail, len, &at))
        return hl_fail(HL_EINVAL, "the zip's directory is missing: the file is truncated");
    const uint8_t *end = tail + at;
    uint64_t limit = s->size - len + at;
    if (at >= LOCATOR_SIZE && memcmp(end - LOCATOR_SIZE, "PK\6\7", 4) == 0) {
        limit = little_endian(end - LOCATOR_SIZE + 8, 8);
        HL_TRY(read_end64(s, limit, out));
    } else {
        if (little_endian(end + 4, 2) != 0 || little_endian(end + 6, 2) != 0 ||
            little_endian(end + 8, 2) != little_endian(end + 10, 2))
            return hl_fail(HL_EINVAL, "the zip has several parts");
        *out = (struct directory){.count = little_endian(end + 10, 2),
                                  .size = little_endian(end + 12, 4),
                                  .offset = little_endian(end + 16, 4)};
    }
    if (out->offset > limit || out->size > limit - out->offset || out->size > DIRECTORY_MAX)
        return hl_fail(HL_EINVAL,
                       "the zip's directory, %" PRIu64 " bytes at %" PRIu64
                       ", does not end before byte %" PRIu64 " or exceeds 256 MiB",
                       out->size, out->offset, limit);
    if (out->count > out->size / CENTRAL_SIZE)
        return hl_fail(HL_EINVAL,
                       "a zip directory of %" PRIu64 " bytes can't hold %" PRIu64 " entries",
                       out->size, out->count);
    return HL_OK;
}

/* ---- entries --------------------------------------------------------------------------------- */

/* Takes the name without its stem, which all entries share. */
HL_CHECK static hl_status take_name(struct opener *o, const uint8_t *text, size_t len,
                                    struct found *f)
{
    const uint8_t *slash = memchr(text, '/', len);
    if (len > NAME_MAX_BYTES || memchr(text, '\0', len) != NULL)
        return hl_fail(HL_EINVAL, "an entry's name is longer than %u bytes or holds a NUL",
                       NAME_MAX_BYTES);
    size_t stem = slash != NULL ? (size_t)(slash - text) : len;
    if (o->stem == NULL) {
        o->stem = (const char *)text;
        o->stem_len = stem;
    }
    if (slash == NULL || stem != o->stem_len || memcmp(text, o->stem, stem) != 0)
        return hl_fail(HL_EINVAL,
                       "entry '%.*s' is not in the folder '%.*s': this zip is not torch.save's",
                       (int)(len < 200 ? len : 200), text,
                       (int)(o->stem_len < 200 ? o->stem_len : 200), o->stem);
    f->entry.name = hl_arena_text(&o->zip->arena, (const char *)slash + 1, len - stem - 1);
    return f->entry.name != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating the names of a zip");
}

/* Reads sizes and the header's offset. Those that do not fit into 32 bits are in an extra field, in
 * the order of `fields`; it contains no others. */
HL_CHECK static hl_status take_zip64(const uint8_t *extra, size_t len, const uint8_t *central,
                                     struct found *f)
{
    uint64_t packed = little_endian(central + 20, 4);
    f->entry.size = little_endian(central + 24, 4);
    f->header = little_endian(central + 42, 4);
    for (size_t at = 0; at + 4 <= len; at += 4 + little_endian(extra + at + 2, 2)) {
        size_t n = little_endian(extra + at + 2, 2);
        if (n > len - at - 4)
            break;
        if (little_endian(extra + at, 2) != ZIP64_EXTRA)
            continue;
        const uint8_t *p = extra + at + 4, *end = p + n;
        uint64_t *const fields[] = {&f->entry.size, &packed, &f->header};
        for (size_t i = 0; i < HL_ARRAY_LEN(fields); i++) {
            if (*fields[i] != UINT32_MAX || end - p < 8)
                continue;
            *fields[i] = little_endian(p, 8);
            p += 8;
        }
        break;
    }
    if (packed != f->entry.size)
        return hl_fail(HL_EINVAL, "%" PRIu64 " bytes are stored of %" PRIu64, packed,
                       f->entry.size);
    return HL_OK;
}

/* Finds the start of the data, which only the local header gives. */
HL_CHECK static hl_status find_data(const struct opener *o, const uint8_t *name, size_t name_len,
                                    struct found *f)
{
    uint8_t local[LOCAL_SIZE + NAME_MAX_BYTES];
    HL_TRY(read_source(o->source, f->header, local, LOCAL_SIZE + name_len));
    if (memcmp(local, "PK\3\4", 4) != 0 || little_endian(local + 26, 2) != name_len ||
        memcmp(local + LOCAL_SIZE, name, name_len) != 0)
        return hl_fail(HL_EINVAL, "no local header of it at byte %" PRIu64, f->header);
    uint64_t skip = LOCAL_SIZE + name_len + little_endian(local + 28, 2);
    if (f->header > o->directory || skip > o->directory - f->header ||
        f->entry.size > o->directory - f->header - skip)
        return hl_fail(HL_EINVAL,
                       "%" PRIu64 " bytes at %" PRIu64 " end beyond the directory at %" PRIu64,
                       f->entry.size, f->header, o->directory);
    f->entry.offset = f->header + skip;
    f->end = f->entry.offset + f->entry.size;
    return HL_OK;
}

HL_CHECK static hl_status read_entry(struct opener *o, const uint8_t *at, size_t left,
                                     struct found *f, size_t *used)
{
    if (left < CENTRAL_SIZE || memcmp(at, "PK\1\2", 4) != 0)
        return hl_fail(HL_EINVAL, "the zip's directory ends early");
    size_t name = little_endian(at + 28, 2), extra = little_endian(at + 30, 2),
           comment = little_endian(at + 32, 2);
    if (name + extra + comment > left - CENTRAL_SIZE)
        return hl_fail(HL_EINVAL, "the zip's directory ends inside an entry");
    HL_TRY(take_name(o, at + CENTRAL_SIZE, name, f));
    if (little_endian(at + 8, 2) & FLAG_ENCRYPTED)
        return hl_fail(HL_EUNSUPPORTED, "entry '%.200s' is encrypted: " SAYS_WHAT_TO_DO,
                       f->entry.name);
    if (little_endian(at + 10, 2) != 0)
        return hl_fail(HL_EUNSUPPORTED, "entry '%.200s' is compressed: " SAYS_WHAT_TO_DO,
                       f->entry.name);
    hl_status st = take_zip64(at + CENTRAL_SIZE + name, extra, at, f);
    if (st == HL_OK)
        st = find_data(o, at + CENTRAL_SIZE, name, f);
    *used = CENTRAL_SIZE + name + extra + comment;
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "entry '%.200s': ", f->entry.name);
}

static int by_header(const void *a, const void *b)
{
    const struct found *x = a, *y = b;
    return (x->header > y->header) - (x->header < y->header);
}

static int by_name(const void *a, const void *b)
{
    const struct hl_torch_zip_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Checks that no byte of the file belongs to two entries and that no name is used twice. */
HL_CHECK static hl_status check_entries(struct opener *o)
{
    struct hl_torch_zip *zip = o->zip;
    qsort(o->list, zip->count, sizeof(*o->list), by_header);
    for (size_t i = 1; i < zip->count; i++)
        if (o->list[i].header < o->list[i - 1].end)
            return hl_fail(HL_EINVAL, "entries '%.200s' and '%.200s' overlap",
                           o->list[i - 1].entry.name, o->list[i].entry.name);
    for (size_t i = 0; i < zip->count; i++)
        zip->entries[i] = o->list[i].entry;
    qsort(zip->entries, zip->count, sizeof(*zip->entries), by_name);
    for (size_t i = 1; i < zip->count; i++)
        if (strcmp(zip->entries[i - 1].name, zip->entries[i].name) == 0)
            return hl_fail(HL_EINVAL, "entry '%.200s' appears twice", zip->entries[i].name);
    return HL_OK;
}

HL_CHECK static hl_status read_directory(const struct hl_torch_source *source,
                                         const struct directory *d, struct hl_torch_zip *zip)
{
    HL_AUTO(hl_freep) uint8_t *bytes = malloc(d->size + 1);
    HL_AUTO(hl_freep) struct found *list = calloc(d->count + 1, sizeof(*list));
    zip->entries = hl_arena_array(&zip->arena, d->count + 1, sizeof(*zip->entries));
    if (bytes == NULL || list == NULL || zip->entries == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a zip directory of %" PRIu64 " bytes",
                       d->size);
    HL_TRY(read_source(source, d->offset, bytes, d->size));
    struct opener o = {.source = source, .zip = zip, .list = list, .directory = d->offset};
    for (uint64_t at = 0; zip->count < d->count; zip->count++) {
        size_t used = 0;
        HL_TRY(read_entry(&o, bytes + at, d->size - at, &list[zip->count], &used));
        at += used;
    }
    return check_entries(&o);
}

hl_status hl_torch_zip_open(const struct hl_torch_source *source, struct hl_torch_zip *out)
{
    struct directory d = {0};
    struct hl_torch_zip zip = {0};
    HL_TRY(read_end(source, &d));
    hl_status st = read_directory(source, &d, &zip);
    if (st != HL_OK) {
        hl_torch_zip_fini(&zip);
        return st;
    }
    *out = zip;
    return HL_OK;
}

void hl_torch_zip_fini(struct hl_torch_zip *zip)
{
    hl_arena_fini(&zip->arena);
    *zip = (struct hl_torch_zip){0};
}

const struct hl_torch_zip_entry *hl_torch_zip_find(const struct hl_torch_zip *zip, const char *name)
{
    const struct hl_torch_zip_entry key = {.name = name};
    return zip->count > 0 ? bsearch(&key, zip->entries, zip->count, sizeof(*zip->entries), by_name)
                          : NULL;
}
