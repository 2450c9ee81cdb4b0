/* numa_pool FILE NODE NODE: is the memory of a two-region pool where it is said to be?
 *
 * Shards are put near one node and near the other, the kernel is asked for each of their pages.
 * Without prefault the pages are made by whoever grows the file, with it by threads on the nodes;
 * both ways are tried. Prints one line per shard; 0 when every page lies where it should. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mem/pool/pool.h"

#define REGION ((uint64_t)24 << 20)
#define SHARD  ((uint64_t)5 << 20)

/* Pages of [ptr, ptr + len) that are not on the node; -1 when the kernel does not tell. */
static long misplaced(uint8_t *ptr, uint64_t len, int node)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), n = len / page;
    void **at = calloc(n, sizeof(*at));
    int *where = calloc(n, sizeof(*where));
    long wrong = -1;
    for (uint64_t i = 0; at != NULL && i < n; i++)
        at[i] = ptr + i * page;
    if (at != NULL && where != NULL &&
        syscall(SYS_move_pages, 0, (unsigned long)n, at, NULL, where, 0) == 0) {
        wrong = 0;
        for (uint64_t i = 0; i < n; i++)
            wrong += where[i] != node;
    }
    free(at);
    free(where);
    return wrong;
}

static int check_shard(struct hl_pool *pool, int node)
{
    struct hl_pool_extent x;
    if (hl_pool_alloc_at(pool, hl_id_random(), SHARD, node, &x) != HL_OK) {
        printf("near %d: %s\n", node, hl_error_text());
        return 1;
    }
    memset(x.ptr, node + 1, x.size);
    long wrong = misplaced(x.ptr, x.size, node);
    int said = hl_pool_numa_of(pool, x.offset);
    printf("near %d: offset %" PRIu64 " said %d misplaced %ld\n", node, x.offset, said, wrong);
    return wrong != 0 || said != node;
}

static int check_pool(const char *path, const int nodes[2], int prefault)
{
    const struct hl_pool_region_options regions[] = {{nodes[0], REGION}, {nodes[1], REGION}};
    struct hl_pool *pool = NULL;
    struct hl_pool_region r[2];
    struct hl_pool_info info;
    int bad = 0;
    struct hl_pool_options o = {
        .path = path, .prefault = prefault, .regions = regions, .region_count = 2};
    if (hl_pool_open(&o, NULL, &pool) != HL_OK) {
        printf("%s\n", hl_error_text());
        return 1;
    }
    hl_pool_info(pool, &info);
    hl_pool_regions(pool, r, 2);
    printf("prefault %d: bound %d %d, %s\n", prefault, r[0].bound, r[1].bound, info.backing);
    bad |= !r[0].bound || !r[1].bound;
    for (int i = 0; i < 3; i++)
        for (int k = 0; k < 2; k++)
            bad |= check_shard(pool, nodes[k]);
    hl_pool_remove(pool);
    return bad;
}

int main(int argc, char **argv)
{
    if (argc != 4) {
        fprintf(stderr, "usage: numa_pool FILE NODE NODE\n");
        return 2;
    }
    const int nodes[2] = {atoi(argv[2]), atoi(argv[3])};
    int bad = check_pool(argv[1], nodes, 0);
    bad |= check_pool(argv[1], nodes, 1);
    return bad;
}
