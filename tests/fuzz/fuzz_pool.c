/* A pool whose bytes anybody may have changed: a good file with patches. A reader maps it as ranks
 * do; every fourth input is adopted by an owner, live or after a restart. What is read without an
 * error has the CRC that its entry says and lies inside of the file; an owner's sums are right.
 * The first byte chooses (1: make the superblock's CRC right again, 2: those of the entries, 12:
 * adopt), then come patches: where, a length and bytes. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/crc32.h"
#include "base/log.h"
#include "mem/pool/pool_private.h"

#define CAPACITY ((uint64_t)1536 << 10)
#define SHARDS   3
#define PATCHES  64

enum { SUPER_CRC = 1, ENTRY_CRC = 2, ADOPT = 12 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const uint64_t sizes[SHARDS] = {100, 70000, (1 << 20) + 5};
static struct hl_id ids[SHARDS];
static char path[48];
static uint8_t *good, *file; /* what it is, and what is mapped of the file */
static size_t file_size;
static int fd;

static struct {
    uint64_t at;
    size_t len;
} patched[PATCHES];

static size_t patched_count;

static void check_at(int ok, int line)
{
    if (!ok) {
        fprintf(stderr, "line %d: %s\n", line, hl_error_text());
        abort();
    }
}

#define check(ok) check_at(ok, __LINE__)

static void put_shard(struct hl_pool *pool, int i)
{
    struct hl_pool_extent x;
    uint32_t chunks[2] = {0, 0};
    check(hl_pool_alloc(pool, sizes[i], &x) == HL_OK);
    for (uint64_t at = 0; at < sizes[i]; at++)
        ((uint8_t *)x.ptr)[at] = (uint8_t)(at * 7 + (uint64_t)i);
    for (uint64_t at = 0; at < sizes[i]; at += HL_CHUNK) {
        uint64_t n = sizes[i] - at < HL_CHUNK ? sizes[i] - at : HL_CHUNK;
        chunks[at / HL_CHUNK] = hl_crc32(0, (uint8_t *)x.ptr + at, n);
    }
    uint32_t crc = hl_crc32(0, x.ptr, sizes[i]);
    check(hl_pool_seal(pool, &x, crc, chunks, hl_chunk_count(sizes[i]), NULL) == HL_OK);
    ids[i] = x.id;
}

static struct hl_pool_options options(void)
{
    return (struct hl_pool_options){
        .path = path, .capacity = CAPACITY, .index_slots = 16, .quarantine_ms = 1};
}

static void remove_file(void)
{
    unlink(path);
}

static void make_good(void)
{
    struct hl_pool *pool;
    hl_log_set_level(HL_LOG_ERROR);
    snprintf(path, sizeof(path), "/dev/shm/helios-test-fuzz-pool-%d", (int)getpid());
    struct hl_pool_options o = options();
    check(hl_pool_open(&o, NULL, &pool) == HL_OK);
    atexit(remove_file);
    for (int i = 0; i < SHARDS; i++)
        put_shard(pool, i);
    struct hl_pool_super *s = (struct hl_pool_super *)hl_pool_base(pool, &file_size);
    uint64_t incarnation = s->incarnation;
    hl_pool_close(pool);
    fd = open(path, O_RDWR | O_CLOEXEC);
    good = malloc(file_size);
    check(fd >= 0 && good != NULL);
    file = mmap(NULL, file_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    check(file != MAP_FAILED);
    ((struct hl_pool_super *)file)->incarnation = incarnation; /* as if its owner lived */
    memcpy(good, file, file_size);
}

static void patch(const uint8_t *data, size_t size)
{
    const struct hl_pool_super *s = (const void *)good;
    while (size >= 4 && patched_count < PATCHES) {
        uint64_t at = data[1] | (uint64_t)data[2] << 8;
        size_t n = 1 + data[3] % 16;
        switch (data[0] % 4) {
        case 0:
            at %= 512; /* superblock and regions */
            break;
        case 1:
            at = s->index_offset + at % (s->index_slots * sizeof(struct hl_pool_entry));
            break;
        case 2:
            at += s->data_offset;
            break;
        default:
            at = file_size - 1 - at;
        }
        data += 4;
        size -= 4;
        if (n > size)
            n = size;
        if (n > file_size - at)
            n = file_size - at;
        memcpy(file + at, data, n);
        patched[patched_count].at = at;
        patched[patched_count++].len = n;
        data += n;
        size -= n;
    }
}

/* What an input has changed; an owner may have changed anything. */
static void restore(int all)
{
    const struct hl_pool_super *s = (const void *)good;
    for (; patched_count > 0; patched_count--)
        memcpy(file + patched[patched_count - 1].at, good + patched[patched_count - 1].at,
               patched[patched_count - 1].len);
    memcpy(file, good, all ? file_size : s->data_offset);
}

static void repair_sums(uint8_t choice)
{
    struct hl_pool_super *s = (void *)file;
    struct hl_pool_entry *e = (void *)(file + ((struct hl_pool_super *)good)->index_offset);
    for (int i = 0; i < 16 && (choice & ENTRY_CRC); i++) {
        struct hl_pool_ref r = {.id = {e[i].id_hi, e[i].id_lo},
                                .offset = e[i].offset,
                                .size = e[i].size,
                                .crc32 = e[i].crc32,
                                .table_crc = e[i].table_crc};
        e[i].entry_crc = pool_entry_crc(&r);
    }
    if (choice & SUPER_CRC)
        s->fixed_crc = pool_super_crc(s);
}

/* `sums`: the entries' CRCs were made right, and the CRC of a shard of several chunks, which are
 * checked by those of the chunks, is anything. */
static void read_shard(const struct hl_pool_view *v, const struct hl_pool_ref *ref, int sums)
{
    int any = sums && ref->size > HL_CHUNK;
    if (hl_pool_view_bounds(v, ref) == HL_OK)
        check(ref->offset <= file_size && ref->size <= file_size - ref->offset);
    if (ref->size > file_size)
        return;
    uint8_t *bytes = malloc(ref->size + 1);
    check(bytes != NULL);
    if (hl_pool_view_read(v, ref, 0, bytes, ref->size) == HL_OK)
        check(any || hl_crc32(0, bytes, ref->size) == ref->crc32);
    if (ref->size > 9)
        (void)!hl_pool_view_read(v, ref, ref->size - 9, bytes, 9);
    free(bytes);
    if (hl_pool_view_verify(v, ref, NULL) == HL_OK)
        check(any || hl_crc32(0, hl_pool_view_data(v, ref), ref->size) == ref->crc32);
}

static void read_all(int sums)
{
    struct hl_pool_view *v;
    const struct hl_pool_entry *e = (void *)(file + ((struct hl_pool_super *)good)->index_offset);
    if (hl_pool_view_open(fd, &v) != HL_OK)
        return;
    for (int i = 0; i < 16 + SHARDS; i++) {
        struct hl_pool_ref ref;
        struct hl_id id =
            i < SHARDS ? ids[i] : (struct hl_id){e[i - SHARDS].id_hi, e[i - SHARDS].id_lo};
        if (hl_pool_view_find(v, id, &ref) == HL_OK)
            read_shard(v, &ref, sums);
    }
    hl_pool_view_put(v);
}

/* An owner reads, lists and frees what it takes over, and has room for new ones. `sums`: as above.
 */
static void adopt(int sums)
{
    struct hl_pool *pool;
    struct hl_pool_ref refs[16];
    struct hl_pool_extent x;
    struct hl_pool_options o = options();
    uint64_t cursor = 0;
    if (hl_pool_open(&o, NULL, &pool) != HL_OK)
        return;
    check(hl_pool_audit(pool) == HL_OK);
    size_t n = hl_pool_list(pool, &cursor, refs, HL_ARRAY_LEN(refs));
    for (size_t i = 0; i < n; i++) {
        int any = sums && refs[i].size > HL_CHUNK;
        uint8_t *bytes = malloc(refs[i].size);
        check(bytes != NULL);
        if (hl_pool_read(pool, &refs[i], 0, bytes, refs[i].size) == HL_OK)
            check(any || hl_crc32(0, bytes, refs[i].size) == refs[i].crc32);
        free(bytes);
        check(hl_pool_free(pool, refs[i].id) == HL_OK);
    }
    if (hl_pool_alloc(pool, 1000, &x) == HL_OK)
        hl_pool_abort(pool, &x);
    check(hl_pool_audit(pool) == HL_OK);
    hl_pool_close(pool);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (good == NULL)
        make_good();
    if (size < 1)
        return 0;
    patch(data + 1, size - 1);
    repair_sums(data[0]);
    if ((data[0] & ADOPT) == ADOPT)
        adopt(data[0] & ENTRY_CRC);
    else
        read_all(data[0] & ENTRY_CRC);
    restore((data[0] & ADOPT) == ADOPT);
    return 0;
}
