#include "core/catalog/claim.h"

#include <string.h>

enum hl_api_claim_result hl_claim_judge(const struct hl_claimed *found,
                                        const struct hl_claimant *who, bool empty_is_free)
{
    if (who->mode == HL_API_CLAIM_MODE_TAKE || (found->shards == 0 && empty_is_free))
        return HL_API_CLAIM_RESULT_CLAIMED;
    if (found->damaged)
        return HL_API_CLAIM_RESULT_OTHER;
    if (hl_id_is_none(found->cluster))
        return found->shards == 0 || who->mode == HL_API_CLAIM_MODE_ADOPT
                   ? HL_API_CLAIM_RESULT_CLAIMED
                   : HL_API_CLAIM_RESULT_UNCLAIMED;
    if (!hl_id_equal(found->cluster, who->cluster))
        return HL_API_CLAIM_RESULT_OTHER;
    return found->revision > who->seen ? HL_API_CLAIM_RESULT_NEWER : HL_API_CLAIM_RESULT_CLAIMED;
}

bool hl_claim_is_of(const struct hl_claimed *found, struct hl_id cluster)
{
    return hl_id_equal(found->cluster, cluster) && !found->damaged;
}

bool hl_claim_stands(const struct hl_claimed *found, const struct hl_claimant *who,
                     uint64_t revision)
{
    return hl_claim_is_of(found, who->cluster) &&
           (who->mode != HL_API_CLAIM_MODE_TAKE || found->revision == revision);
}

uint64_t hl_claim_revision(const struct hl_claimed *found, const struct hl_claimant *who,
                           uint64_t revision)
{
    bool kept = hl_id_equal(found->cluster, who->cluster) && who->mode != HL_API_CLAIM_MODE_TAKE;
    return kept && found->revision > revision ? found->revision : revision;
}

bool hl_claim_is_strange(const struct hl_claimed *found, uint64_t known)
{
    return hl_id_is_none(found->cluster) && found->shards > 0 && known == 0;
}

bool hl_claim_is_told(hl_status st, bool is_ours)
{
    return st == HL_OK ? is_ours : st != HL_EUNSUPPORTED && st != HL_EBUSY;
}

struct hl_id hl_claim_heir(struct hl_id pool, struct hl_id archive, struct hl_id own)
{
    if (!hl_id_is_none(pool))
        return pool;
    return hl_id_is_none(archive) ? own : archive;
}

uint64_t hl_claim_recovered(uint64_t own, uint64_t pool, uint64_t archive, bool takes)
{
    uint64_t newest = own;
    if (!takes)
        return own - 1;
    if (newest < pool)
        newest = pool;
    return newest < archive ? archive : newest;
}

hl_status hl_claim_permit(const char *what, struct hl_id owner, const char *named)
{
    struct hl_id_text text = hl_id_format(owner);
    if (hl_id_is_none(owner) || strcmp(named, text.s) == 0)
        return HL_OK;
    if (named[0] == '\0')
        return hl_fail(HL_EPERM,
                       "the %s belongs to cluster %s; a call that removes shards from it has to "
                       "name its cluster",
                       what, text.s);
    return hl_fail(HL_EPERM,
                   "the %s belongs to cluster %s, not to %.40s, which must not change it; `helios "
                   "recover` takes it over",
                   what, text.s, named);
}

enum hl_claim_sign hl_claim_sign(const struct hl_claimed *pool, const struct hl_claimed *archive)
{
    bool same = hl_claim_is_of(archive, pool->cluster);
    if (hl_id_is_none(pool->cluster) || (same && archive->revision >= pool->revision))
        return HL_CLAIM_SIGNED;
    return same || archive->shards == 0 ? HL_CLAIM_SIGN : HL_CLAIM_FOREIGN;
}
