/* The cost of the checksums of a read of 1 MiB: the verified read against the same read without
 * them. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "cli/bench/bench.h"
#include "net/net.h"

#define BAR     1.10
#define OPS     200
#define ROUNDS  8
#define PLACES  64
#define READ_MS 10000

struct pair {
    struct bench_samples plain, checked;
};

static hl_status pair_init(struct pair *p)
{
    HL_TRY(bench_samples_init(&p->plain, OPS * ROUNDS));
    return bench_samples_init(&p->checked, OPS * ROUNDS);
}

static void pair_report(struct bench_report *r, struct pair *p, const char *system)
{
    char name[96];
    const struct bench_row *plain = bench_row(r, system, "get-unverified", HL_CHUNK, &p->plain);
    const struct bench_row *checked = bench_row(r, system, "get-verified", HL_CHUNK, &p->checked);
    snprintf(name, sizeof(name), "%s verified/unverified 1.0 MiB", system);
    bench_ratio(r, name, checked->p50_us / plain->p50_us, BAR, 1);
}

/* Mapping a shard verifies it and leaves its bytes in the cache, so all are mapped first. */
static hl_status map_all(helios_client *client, const helios_id *ids, size_t count,
                         const void **data)
{
    for (size_t i = 0; i < count; i++) {
        size_t size;
        HL_TRY((hl_status)helios_map(client, ids[i], &data[i], &size));
    }
    return HL_OK;
}

static hl_status unmap_all(helios_client *client, size_t count, const void *const *data)
{
    hl_status st = HL_OK;
    for (size_t i = 0; i < count && data[i] != NULL && st == HL_OK; i++)
        st = (hl_status)helios_unmap(client, data[i]);
    return st;
}

static hl_status read_shm(helios_client *client, const helios_id *ids, const void *const *data,
                          size_t count, void *buf, struct pair *p)
{
    for (size_t i = 0; i < OPS; i++) {
        uint64_t start = hl_now_ns();
        memcpy(buf, data[i % count], HL_CHUNK);
        __asm__ __volatile__("" : : "r"(buf) : "memory");
        bench_add(&p->plain, hl_now_ns() - start);
    }
    for (size_t i = 0; i < OPS; i++) {
        uint64_t start = hl_now_ns();
        HL_TRY((hl_status)helios_get(client, ids[i % count], buf, HL_CHUNK));
        bench_add(&p->checked, hl_now_ns() - start);
    }
    return HL_OK;
}

static hl_status read_net(struct hl_net_client *net, void *buf, const uint32_t *crcs,
                          struct pair *p)
{
    for (size_t i = 0; i < OPS; i++) {
        uint64_t at = i % PLACES * HL_CHUNK;
        uint64_t start = hl_now_ns();
        HL_TRY(hl_net_fetch(net, at, buf, HL_CHUNK, READ_MS));
        bench_add(&p->plain, hl_now_ns() - start);
    }
    for (size_t i = 1; i < OPS; i++) { /* the first holds the superblock, whose heartbeat changes */
        uint64_t at = i % PLACES * HL_CHUNK;
        if (at == 0)
            continue;
        uint64_t start = hl_now_ns();
        HL_TRY(hl_net_fetch_verified(net, at, buf, HL_CHUNK, &crcs[i % PLACES], READ_MS, NULL));
        bench_add(&p->checked, hl_now_ns() - start);
    }
    return HL_OK;
}

static hl_status over_shm(struct bench_report *r, helios_client *client, const helios_id *ids,
                          size_t count, void *buf)
{
    struct pair p = {0};
    const void **data = calloc(count, sizeof(*data));
    if (data == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu views", count);
    hl_status st = pair_init(&p);
    if (st == HL_OK)
        st = map_all(client, ids, count, data);
    for (int i = 0; i < ROUNDS && st == HL_OK; i++)
        st = read_shm(client, ids, data, count, buf, &p);
    if (st == HL_OK)
        st = unmap_all(client, count, data);
    if (st == HL_OK)
        pair_report(r, &p, "helios-shm");
    free(data);
    bench_samples_fini(&p.plain);
    bench_samples_fini(&p.checked);
    return st;
}

static hl_status over_net(struct bench_report *r, const char *address, void *buf)
{
    struct pair p = {0};
    struct hl_net_client *net = NULL;
    uint32_t crcs[PLACES] = {0};
    char system[24];
    HL_TRY(hl_net_connect(address, 5000, &net));
    hl_status st = pair_init(&p);
    for (size_t i = 1; i < PLACES && st == HL_OK; i++) {
        st = hl_net_fetch(net, i * HL_CHUNK, buf, HL_CHUNK, READ_MS);
        crcs[i] = hl_crc32(0, buf, HL_CHUNK);
    }
    for (int i = 0; i < ROUNDS && st == HL_OK; i++)
        st = read_net(net, buf, crcs, &p);
    snprintf(system, sizeof(system), "helios-%.15s", hl_net_path_name(net));
    if (st == HL_OK)
        pair_report(r, &p, system);
    hl_net_close(net);
    bench_samples_fini(&p.plain);
    bench_samples_fini(&p.checked);
    return st;
}

hl_status bench_verify(struct bench_report *r, const struct bench_verify_of *of)
{
    void *buf = malloc(HL_CHUNK);
    if (buf == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a read");
    memset(buf, 0, HL_CHUNK);
    hl_status st = HL_OK;
    if (of->shm != NULL)
        st = over_shm(r, of->shm, of->ids, of->count, buf);
    if (st == HL_OK && of->net)
        st = over_net(r, of->data, buf);
    free(buf);
    return st;
}
