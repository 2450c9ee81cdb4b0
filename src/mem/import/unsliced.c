/* Models of no known family, which are stored whole, one shard per layer. Only the config decides
 * that a model is such a one; a failure to slice a known one stays an error. */
#include <stdio.h>
#include <stdlib.h>

#include "core/families/family.h"
#include "core/reshard/coverage.h"
#include "mem/import/import_private.h"

#define PART_BYTES ((uint64_t)1 << 30)

bool hl_import_unsliced_because(const json_t *hf, char *buf, size_t cap)
{
    const char *name, *class;
    if (hl_hf_names(hf, "config.json", &name, &class) != HL_OK) {
        hl_error_clear(); /* reading the config fails the same way */
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
                   "%s, so the model can only be stored unsliced, where '%s' does not apply: leave "
                   "it out, or use a model of docs/families.md",
                   im->unsliced_because, what);
}

/* Checks that every tensor of the files is copied whole, exactly once. */
HL_CHECK static hl_status check_plan(const struct hl_import *im)
{
    const struct hl_partition_plan *plan = &im->plan;
    HL_AUTO(hl_freep)
    struct hl_coverage_tensor *held = calloc(plan->tensor_count + 1, sizeof(*held));
    if (held == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", plan->tensor_count);
    for (size_t i = 0; i < plan->tensor_count; i++)
        held[i] =
            (struct hl_coverage_tensor){.name = plan->tensors[i].name,
                                        .size = plan->tensors[i].size,
                                        .ops = &plan->ops[plan->op_first[i]],
                                        .op_count = plan->op_first[i + 1] - plan->op_first[i]};
    return hl_coverage_check(&(struct hl_coverage){.logical = im->sources,
                                                   .logical_count = im->source_count,
                                                   .held = held,
                                                   .held_count = plan->tensor_count});
}

hl_status hl_import_plan_unsliced(struct hl_import *im, const struct hl_partition_options *o)
{
    HL_TRY(check_options(im, o));
    HL_TRY(hl_partition_unsliced(im->sources, im->source_count, PART_BYTES, &im->plan));
    HL_TRY(check_plan(im));
    return hl_partition_unsliced_config(im->config.hf, im->unsliced_because, &im->plan,
                                        &im->config_text);
}
