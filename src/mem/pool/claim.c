/* The pool's claim (cluster id and revision) in the superblock. The checksum of the cluster id is
 * cleared before the id changes and written after it, so an owner that dies in between can't leave
 * a mixture of two ids. The revision is a single word that changes often; it has no checksum. */
#include "base/crc32.h"
#include "mem/pool/pool_private.h"

static uint32_t crc_of(const struct hl_id *cluster)
{
    return hl_crc32(0, cluster, sizeof(*cluster));
}

void hl_pool_claimed(struct hl_pool *pool, struct hl_pool_claim *out)
{
    const struct hl_pool_super *s = pool->super;
    struct hl_pool_claim found = {{0, 0}, 0};
    pthread_mutex_lock(&pool->lock);
    if (!hl_id_is_none(s->cluster) && s->claim_crc == crc_of(&s->cluster))
        found = (struct hl_pool_claim){s->cluster, s->revision};
    pthread_mutex_unlock(&pool->lock);
    *out = found;
}

void hl_pool_claim(struct hl_pool *pool, const struct hl_pool_claim *claim)
{
    struct hl_pool_super *s = pool->super;
    pthread_mutex_lock(&pool->lock);
    if (!hl_id_equal(s->cluster, claim->cluster) || s->claim_crc != crc_of(&s->cluster)) {
        s->claim_crc = ~crc_of(&s->cluster);
        atomic_thread_fence(memory_order_seq_cst);
        s->cluster = claim->cluster;
        s->revision = claim->revision;
        atomic_thread_fence(memory_order_seq_cst);
        s->claim_crc = crc_of(&claim->cluster);
    }
    s->revision = claim->revision;
    pthread_mutex_unlock(&pool->lock);
}
