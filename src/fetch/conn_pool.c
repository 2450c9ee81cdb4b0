#include "fetch/conn_pool.h"

#include <stdio.h>
#include <string.h>

bool hl_conn_is_broken(hl_status st)
{
    return st == HL_EUNAVAIL || st == HL_ETIMEDOUT || st == HL_EPROTO || st == HL_ESTALE ||
           st == HL_ECANCELED;
}

static struct hl_net_client *remove_kept(struct hl_conn_pool *pool, unsigned i)
{
    struct hl_net_client *client = pool->kept[i].client;
    pool->count--;
    memmove(&pool->kept[i], &pool->kept[i + 1], (pool->count - i) * sizeof(pool->kept[0]));
    return client;
}

struct hl_conn_lease hl_conn_pool_acquire(struct hl_conn_pool *pool, const char *key)
{
    struct hl_conn_lease lease = {.epoch = pool->epoch};
    for (unsigned i = pool->count; i > 0 && lease.client == NULL; i--)
        if (strcmp(pool->kept[i - 1].key, key) == 0)
            lease.client = remove_kept(pool, i - 1);
    return lease;
}

void hl_conn_pool_release(struct hl_conn_pool *pool, const char *key, struct hl_conn_lease *lease,
                          hl_status st)
{
    struct hl_net_client *out = NULL;
    if (lease->client == NULL || hl_conn_is_broken(st) || lease->epoch != pool->epoch ||
        pool->max == 0 || strlen(key) >= HL_CONN_POOL_KEY)
        return;
    if (pool->count == pool->max)
        out = remove_kept(pool, 0);
    struct hl_conn_pool_entry *to = &pool->kept[pool->count++];
    to->client = lease->client;
    snprintf(to->key, sizeof(to->key), "%s", key);
    lease->client = out;
}

unsigned hl_conn_pool_clear(struct hl_conn_pool *pool, struct hl_net_client **out)
{
    unsigned count = pool->count;
    for (unsigned i = 0; i < count; i++)
        out[i] = pool->kept[i].client;
    pool->count = 0;
    pool->epoch++;
    return count;
}
