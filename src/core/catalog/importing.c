#include "core/catalog/importing.h"

#include "core/model/split.h"

#define NS_PER_MS 1000000

enum hl_import_turn hl_import_judge(const struct hl_import_answer *answer)
{
    if (answer->st == HL_ENOENT)
        return HL_IMPORT_FORGOTTEN;
    if (answer->st != HL_OK)
        return answer->silent_ns > HL_IMPORT_SILENCE_NS ? HL_IMPORT_SILENT : HL_IMPORT_UNHEARD;
    if (answer->state == HL_API_IMPORT_STATE_DONE)
        return HL_IMPORT_MADE;
    return answer->state == HL_API_IMPORT_STATE_FAILED ? HL_IMPORT_FAILED : HL_IMPORT_GOES_ON;
}

bool hl_import_is_evicted(size_t remembered, bool in_use)
{
    return remembered >= HL_IMPORTS_MAX && !in_use;
}

bool hl_import_has_place(int imports, int cuts, bool is_cut)
{
    const int places = HL_IMPORT_PLACES - (cuts == 0 && !is_cut ? 1 : 0);
    return imports + cuts < places;
}

bool hl_import_may_wait(uint64_t waited_ns, uint64_t wait_ms)
{
    return waited_ns / NS_PER_MS < wait_ms;
}

static hl_status check_sizes(const struct hl_api_split *base, const struct hl_api_import_request *r)
{
    const int sizes[][2] = {{r->tp > 1 ? r->tp : 0, base->tp},
                            {r->pp > 1 ? r->pp : 0, base->pp},
                            {r->ep > 1 ? r->ep : 0, hl_split_ep(base)},
                            {r->etp, hl_split_etp(base)},
                            {r->virtual_stages > 1 ? r->virtual_stages : 0, hl_split_chunks(base)},
                            {r->first_stage_layers, base->first_stage_layers},
                            {r->last_stage_layers, base->last_stage_layers}};
    char text[HL_SPLIT_TEXT_MAX];
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++)
        if (sizes[i][0] != 0 && sizes[i][0] != sizes[i][1])
            return hl_fail(HL_EINVAL,
                           "an adapter has the layout of its base '%s', %s; leave the sizes out: "
                           "every reader gives its own",
                           r->base, hl_split_text(base, text));
    return HL_OK;
}

hl_status hl_import_as_base(const struct hl_api_split *base, struct hl_api_import_request *r)
{
    HL_TRY(check_sizes(base, r));
    r->tp = base->tp;
    r->pp = base->pp;
    r->ep = base->ep;
    r->etp = base->etp;
    r->virtual_stages = base->virtual_stages;
    r->first_stage_layers = base->first_stage_layers;
    r->last_stage_layers = base->last_stage_layers;
    return HL_OK;
}
