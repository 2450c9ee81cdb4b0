/* Models of no known family: stored whole, one shard per layer. They are told from a family's by
 * the config alone, never because slicing failed: that stays an error. */
#include <stdio.h>

#include "core/families/family.h"
#include "mem/import/import_private.h"

#define PART_BYTES ((uint64_t)1 << 30)

bool hl_import_unsliced_because(const json_t *hf, char *buf, size_t cap)
{
    const char *name, *class;
    if (hl_hf_names(hf, "config.json", &name, &class) != HL_OK) {
        hl_error_clear(); /* who reads the config fails the same way */
        return false;
    }
    if (hl_family_find(name, class) != NULL)
        return false;
    if (name != NULL || class != NULL)
        snprintf(buf, cap, "no family is known for '%.100s'", name != NULL ? name : class);
    else
        snprintf(buf, cap, "config.json has no model_type");
    return true;
}

HL_CHECK static hl_status check_options(const struct hl_import *im,
                                        const struct hl_partition_options *o)
{
    const char *what = o->tp > 1                                ? "tp"
                       : o->pp > 1                              ? "pp"
                       : o->ep > 1                              ? "ep"
                       : o->etp > 0                             ? "etp"
                       : o->virtual_stages > 1                  ? "virtual stages"
                       : o->first_stage_layers > 0              ? "first stage layers"
                       : o->last_stage_layers > 0               ? "last stage layers"
                       : o->naming != HL_API_LAYER_NAMING_LOCAL ? "naming"
                       : o->pad != HL_API_VOCAB_PADDING_REPEAT  ? "pad"
                       : o->vocab_divisor > 0 && o->vocab_divisor != HL_VOCAB_DIVISOR_DEFAULT
                           ? "vocab divisor"
                           : NULL;
    if (what == NULL)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "%s, so the model can only be stored unsliced, where '%s' has no meaning: leave "
                   "it out, or use a model of docs/families.md",
                   im->unsliced_because, what);
}

hl_status hl_import_plan_unsliced(struct hl_import *im, const struct hl_partition_options *o)
{
    HL_TRY(check_options(im, o));
    HL_TRY(hl_partition_unsliced(im->sources, im->source_count, PART_BYTES, &im->plan));
    return hl_partition_unsliced_config(im->config.hf, im->unsliced_because, &im->plan,
                                        &im->config_text);
}
