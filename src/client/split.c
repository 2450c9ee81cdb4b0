/* Converts the split that a caller of libhelios gives into the Controller's form. */
#include "base/abi.h"
#include "client/client_private.h"

hl_status split_read(const helios_split *given, struct hl_api_split *out)
{
    helios_split s = {0};
    if (given != NULL)
        HL_TRY(HL_ABI_READ(helios_split, given, &s));
    if (s.tp < 0 || s.pp < 0 || s.virtual_stages < 0 || s.first_stage_layers < 0 ||
        s.last_stage_layers < 0 || s.ep < 0 || s.etp < 0)
        return hl_fail(
            HL_EINVAL,
            "a split of tp %d and pp %d, %d virtual stages, %d first and %d last layers, "
            "ep %d and etp %d can't have negative numbers",
            s.tp, s.pp, s.virtual_stages, s.first_stage_layers, s.last_stage_layers, s.ep, s.etp);
    *out = (struct hl_api_split){.tp = s.tp,
                                 .pp = s.pp,
                                 .virtual_stages = s.virtual_stages,
                                 .first_stage_layers = s.first_stage_layers,
                                 .last_stage_layers = s.last_stage_layers,
                                 .ep = s.ep,
                                 .etp = s.etp};
    return HL_OK;
}
