#include "core/claim.h"

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
