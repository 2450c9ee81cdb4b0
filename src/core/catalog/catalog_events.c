/* Notifies observers of shards that are added and removed. */
#include "core/catalog/catalog_private.h"

void hl_catalog_watch(struct hl_catalog *c, const struct hl_catalog_events *events, void *arg)
{
    c->events = events;
    c->events_arg = arg;
}

void hl_shards_came(const struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n)
{
    for (size_t i = 0; c->events != NULL && i < n; i++)
        c->events->came(c->events_arg, list[i]);
}

void hl_shards_unlink(struct hl_catalog *c, struct hl_shard_rec *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (c->events != NULL)
            c->events->leaves(c->events_arg, list[i]);
        HASH_DEL(c->shards, list[i]);
    }
    c->shards_left += n;
}
