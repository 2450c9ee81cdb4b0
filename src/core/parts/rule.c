#include "core/parts/rule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/family.h"
#include "core/model/model_config.h"
#include "core/model/split.h"

#define DIGITS_MAX 9

/* The text after `words`, which must start at a component of the name. NULL = not found. */
static const char *find_words(const char *name, const char *words)
{
    size_t n = strlen(words);
    for (const char *at = name; at != NULL; at = strchr(at, '.'), at = at != NULL ? at + 1 : NULL)
        if (strncmp(at, words, n) == 0)
            return at + n;
    return NULL;
}

/* "12." at the start of the text. */
static bool read_number(const char *text, int *out)
{
    char *end;
    size_t digits = strspn(text, "0123456789");
    if (digits == 0 || digits > DIGITS_MAX || text[digits] != '.')
        return false;
    *out = (int)strtol(text, &end, 10);
    return true;
}

/* The N of "layers.N.". */
static bool find_number(const char *name, const char *words, int *out)
{
    const char *at = find_words(name, words);
    return at != NULL && read_number(at, out);
}

/* The N of "modelN." directly before the words; 0 without it. */
static int find_chunk(const char *name, const char *words)
{
    const char *at = find_words(name, words), *model = find_words(name, "model");
    int chunk = 0;
    if (at == NULL || model == NULL || !read_number(model, &chunk))
        return 0;
    return strchr(model, '.') + 1 + strlen(words) == at ? chunk : 0;
}

HL_CHECK static hl_status global_layer(const struct hl_part_rule *r, int pp, int chunk, int local,
                                       uint64_t *out)
{
    const struct hl_partition_options *o = &r->options;
    int chunks = o->virtual_stages > 1 ? o->virtual_stages : 1;
    uint64_t first = 0, count = 0;
    if (chunk < chunks)
        hl_partition_stage(o, r->layers, pp, chunk, &first, &count);
    if ((uint64_t)local >= count)
        return hl_fail(HL_EINVAL,
                       "stage %d has no layer %d in chunk %d: it has %" PRIu64
                       " in each of its %d chunks",
                       pp, local, chunk, count, chunks);
    *out = first + (uint64_t)local;
    return HL_OK;
}

HL_CHECK static hl_status own_part(const char *name, char part[HL_PARTITION_PART_MAX])
{
    uint64_t layer = 0;
    bool has = hl_partition_layer_of(name, &layer);
    snprintf(part, HL_PARTITION_PART_MAX, has ? "layer-%04" PRIu64 : "model-0000", has ? layer : 0);
    return HL_OK;
}

hl_status hl_part_of_tensor(const struct hl_part_rule *r, int pp, const char *name,
                            char part[HL_PARTITION_PART_MAX])
{
    static const char layers[] = "decoder.layers.";
    bool experts = strstr(name, ".mlp.experts.") != NULL;
    uint64_t layer = 0;
    int n;
    if (r->own_names)
        return own_part(name, part);
    if (pp < 0 || pp >= r->options.pp)
        return hl_fail(HL_EINVAL, "stage %d is out of range: there are %d", pp, r->options.pp);
    if (hl_vision_name(name) != NULL) {
        snprintf(part, HL_PARTITION_PART_MAX, "vision");
    } else if (find_number(name, "mtp.layers.", &n)) {
        layer = (experts ? r->layers : 0) + (uint64_t)n;
        snprintf(part, HL_PARTITION_PART_MAX, "%s-%04" PRIu64, experts ? "experts" : "mtp", layer);
    } else if (find_number(name, layers, &n)) {
        HL_TRY(global_layer(r, pp, find_chunk(name, layers), n, &layer));
        snprintf(part, HL_PARTITION_PART_MAX, "%s-%04" PRIu64, experts ? "experts" : "layer",
                 layer);
    } else {
        snprintf(part, HL_PARTITION_PART_MAX, "%s",
                 find_words(name, "embedding.") != NULL ? "embedding" : "head");
    }
    return HL_OK;
}

/* ---- reading --------------------------------------------------------------------------------- */

HL_CHECK static hl_status read_hugging_face(const char *config, struct hl_model_shape *out)
{
    struct hl_hf_config hf;
    HL_TRY(hl_hf_config_parse(config, strlen(config), "config.json", &hf));
    *out = (struct hl_model_shape){.split = {.tp = 1, .pp = 1, .virtual_stages = 1},
                                   .layers = hf.layers};
    hl_hf_config_fini(&hf);
    return HL_OK;
}

/* A format without a family's table needs no sizes. */
HL_CHECK static hl_status read_model(const char *config, struct hl_model_shape *out)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(config, &c));
    if (!c.own.as_saved)
        return hl_model_shape_of(&c, out);
    *out = (struct hl_model_shape){.as_saved = true};
    return HL_OK;
}

/* True for keys that only a model's config has. */
static bool is_of_model(const char *config)
{
    json_error_t error;
    json_t *doc = hl_hf_json(config, strlen(config), &error);
    bool is = json_object_get(doc, "tp") != NULL || json_object_get(doc, "unsliced") != NULL ||
              json_object_get(doc, "asSaved") != NULL;
    json_decref(doc);
    return is;
}

hl_status hl_part_rule_read(const char *config, const struct hl_api_split *split,
                            struct hl_part_rule *out)
{
    static const struct hl_api_split none = {0};
    struct hl_model_shape shape;
    HL_TRY(is_of_model(config) ? read_model(config, &shape) : read_hugging_face(config, &shape));
    const struct hl_api_split s = hl_split_resolve(split != NULL ? split : &none, &shape.split);
    const struct hl_part_rule rule = {.options = hl_split_options(&s),
                                      .layers = shape.layers,
                                      .own_names = shape.unsliced || shape.as_saved};
    if (!rule.own_names)
        HL_TRY(hl_partition_check_layers(&rule.options, rule.layers));
    *out = rule;
    return HL_OK;
}
