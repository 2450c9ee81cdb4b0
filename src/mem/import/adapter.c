/* A LoRA adapter, planned from its own files and its base's config, which is all there is of the
 * base. */
#include "core/model/lora.h"

#include <stdlib.h>

#include "core/model/model_config.h"
#include "core/reshard/whole.h"
#include "mem/import/import_private.h"

/* Adds what PEFT says of the adapter to the plan's document. */
HL_CHECK static hl_status describe(struct hl_import *im, const struct hl_import_options *o,
                                   const struct hl_partition_options *split, const json_t *peft)
{
    HL_AUTO(hl_freep) char *text = NULL;
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_partition_config(&im->config, split, &im->plan, &text));
    HL_TRY(hl_model_config_read(text, &c));
    c.own.adapter.base = o->base;
    c.peft = peft;
    return hl_model_config_write(&c, &im->config_text);
}

hl_status hl_import_plan_adapter(struct hl_import *im, const struct hl_import_options *o,
                                 const char *text, size_t len)
{
    struct hl_partition_options split;
    struct hl_lora_config peft;
    HL_AUTO(hl_model_config_fini) struct hl_model_config base = {0};
    HL_TRY(hl_model_config_read(o->base_config, &base));
    if (base.peft != NULL)
        return hl_fail(HL_EINVAL, "base '%s' is an adapter itself: give the model under it",
                       o->base);
    HL_TRY(hl_lora_config_parse(text, len, HL_LORA_CONFIG, &peft));
    hl_status st = hl_whole_read(o->base_config, &im->config, &split);
    if (st == HL_OK)
        st = hl_lora_plan(&im->config, im->sources, im->source_count, &split, &im->plan);
    if (st == HL_OK)
        st = describe(im, o, &split, peft.peft);
    hl_lora_config_fini(&peft);
    return st == HL_OK ? st : hl_fail_prefix(st, "base '%s': ", o->base);
}
