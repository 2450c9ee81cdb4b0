#include "core/replace/recoveries.h"

struct hl_recovery_news hl_recovery_look(struct hl_recovery_seen *seen, uint32_t replaced,
                                         bool stepped)
{
    struct hl_recovery_news news = {0};
    uint32_t before = replaced > 0 ? replaced - 1 : 0; /* replacements before the last one */
    if (!seen->known || replaced < seen->replaced)
        *seen = (struct hl_recovery_seen){true, replaced, stepped ? replaced : before};
    news.lost = replaced - seen->replaced;
    seen->replaced = replaced;
    if (seen->settled < before) {
        news.merged = before - seen->settled;
        seen->settled = before;
    }
    news.recovered = stepped && seen->settled < replaced;
    if (news.recovered)
        seen->settled = replaced;
    return news;
}
