/* The document that tells ranks and people what was imported: sizes under one set of names whatever
 * the family calls them, how it was cut, and the original config.json under "hf". */
#include <stdlib.h>
#include <string.h>

#include "core/partition.h"

json_t *hl_partition_stages(const struct hl_partition_options *o, uint64_t layers)
{
    json_t *stages = json_array();
    for (int pp = 0; pp < o->pp; pp++) {
        json_t *list = json_array();
        for (int k = 0; k < (o->virtual_stages > 1 ? o->virtual_stages : 1); k++) {
            uint64_t first, count;
            hl_partition_stage(o, layers, pp, k, &first, &count);
            json_array_append_new(list, json_pack("{s:I, s:I}", "first", (json_int_t)first, "count",
                                                  (json_int_t)count));
        }
        json_array_append_new(stages, list);
    }
    return stages;
}

hl_status hl_partition_config(const struct hl_hf_config *c, const struct hl_partition_options *o,
                              const struct hl_partition_plan *plan, char **out)
{
    json_t *doc = json_pack(
        "{s:s, s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:f, s:f, s:i, s:i,"
        " s:i, s:s, s:s, s:i, s:O}",
        "architecture", c->architecture, "dtype", hl_dtype_name(plan->dtype), "parameters",
        (json_int_t)plan->parameters, "layers", (json_int_t)c->layers, "hidden",
        (json_int_t)c->hidden, "heads", (json_int_t)c->heads, "kvHeads", (json_int_t)c->kv_heads,
        "headDim", (json_int_t)c->head_dim, "ffn", (json_int_t)c->ffn, "vocab",
        (json_int_t)c->vocab, "paddedVocab", (json_int_t)plan->padded_vocab, "maxPositions",
        (json_int_t)c->max_positions, "tied", c->tied, "normEps", c->norm_eps, "ropeTheta",
        c->rope_theta, "tp", o->tp, "pp", o->pp, "virtualStages",
        o->virtual_stages > 1 ? o->virtual_stages : 1, "naming",
        hl_api_layer_naming_name(o->naming), "pad", hl_api_vocab_padding_name(o->pad),
        "vocabDivisor", o->vocab_divisor > 0 ? o->vocab_divisor : HL_VOCAB_DIVISOR_DEFAULT, "hf",
        c->hf);
    if (doc == NULL)
        return hl_fail(HL_ENOMEM, "description of the model");
    json_t *stages = hl_partition_stages(o, c->layers);
    json_object_set_new(doc, "stages", stages);
    if (plan->logical != NULL)
        json_object_set(doc, "tensors", plan->logical);
    if (json_array_size(plan->copies) > 0)
        json_object_set(doc, "hfCopies", plan->copies);
    if (plan->prefix != NULL)
        json_object_set_new(doc, "hfPrefix", json_string(plan->prefix));
    if (hl_family_symbol_index(c->family, "experts", strlen("experts")) >= 0) {
        json_object_set_new(doc, "ep", json_integer(o->ep > 0 ? o->ep : 1));
        json_object_set_new(doc, "etp", json_integer(o->etp > 0 ? o->etp : o->tp));
    }
    char *text = json_dumps(doc, JSON_COMPACT);
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "description of the model");
    *out = text;
    return HL_OK;
}
