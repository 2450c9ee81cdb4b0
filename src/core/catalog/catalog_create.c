/* Models that are created by a save. The first rank to begin creates the model with its version, in
 * one change. The model is removed with its last version, so a failed save leaves none. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"

#define SIZE_MAX_EACH 4096

static bool has_config(const struct hl_version_begin *b)
{
    return b->config != NULL && b->config[0] != '\0';
}

/* The document of a model of which only the split and `hf` are known; the first version settles the
 * rest. */
HL_CHECK static hl_status as_saved_config(const struct hl_api_split *s, const json_t *hf,
                                          char **out)
{
    const struct hl_model_config config = {
        .own = {.architecture = "unknown", .as_saved = true},
        .split = {.tp = s->tp, .pp = s->pp, .virtual_stages = s->virtual_stages},
        .hf = hf,
    };
    return hl_model_config_write(&config, out);
}

/* Checks now, before anything is written, that the layers of a family's model divide evenly. */
static hl_status check_config(const struct hl_version_begin *b, struct hl_hf_config *out)
{
    *out = (struct hl_hf_config){0};
    if (!has_config(b))
        return HL_OK;
    HL_TRY(hl_hf_config_parse(b->config, strlen(b->config), "config", out));
    hl_status st = hl_split_check(&b->create, out->layers);
    if (st != HL_OK)
        hl_hf_config_fini(out);
    return st;
}

hl_status hl_model_create(const struct hl_version_begin *b, struct hl_model_rec **out)
{
    const struct hl_api_split *s = &b->create;
    HL_TRY(hl_model_name_check(b->model));
    if (s->tp < 1 || s->tp > SIZE_MAX_EACH || s->pp < 1 || s->pp > SIZE_MAX_EACH ||
        s->virtual_stages < 0 || s->virtual_stages > SIZE_MAX_EACH)
        return hl_fail(HL_EINVAL, "model '%s': TP%d x PP%d, %d virtual stages: sizes are 1..%d",
                       b->model, s->tp, s->pp, s->virtual_stages, SIZE_MAX_EACH);
    struct hl_hf_config hf;
    hl_status st = check_config(b, &hf);
    if (st != HL_OK)
        return hl_fail_prefix(st, "model '%s': ", b->model);
    char *config = NULL;
    st = as_saved_config(s, hf.hf, &config);
    hl_hf_config_fini(&hf);
    HL_TRY(st);
    struct hl_model_rec *m = calloc(1, sizeof(*m));
    if (m == NULL) {
        free(config);
        return hl_fail(HL_ENOMEM, "out of memory allocating a model");
    }
    snprintf(m->name, sizeof(m->name), "%s", b->model);
    m->tp = s->tp;
    m->pp = s->pp;
    m->virtual_stages = hl_split_chunks(s);
    m->config = config;
    m->source = hl_text_copy("");
    m->created_ms = b->now_ms;
    m->next_version = 1;
    st = m->source != NULL ? hl_model_rec_read_shape(m)
                           : hl_fail(HL_ENOMEM, "out of memory allocating a model");
    if (st != HL_OK) {
        hl_model_rec_free(m);
        return st;
    }
    *out = m;
    return HL_OK;
}

static bool is_visible(const struct hl_model_rec *m)
{
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        if (v->state == HL_API_VERSION_STATE_VISIBLE)
            return true;
    return false;
}

static bool same_config(const struct hl_model_rec *m, const struct hl_version_begin *b)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config own = {0};
    if (hl_model_config_read(m->config, &own) != HL_OK) {
        hl_error_clear();
        return false;
    }
    json_error_t error;
    json_t *given = hl_hf_json(b->config, strlen(b->config), &error);
    bool same = given != NULL && json_equal(own.hf, given);
    json_decref(given);
    return same;
}

hl_status hl_model_check_create(const struct hl_model_rec *m, const struct hl_version_begin *b)
{
    char has[HL_SPLIT_TEXT_MAX], wants[HL_SPLIT_TEXT_MAX];
    const struct hl_api_split own = hl_model_split(m);
    const struct hl_api_split split = hl_split_resolve(&b->create, &own);
    if (has_config(b) && !same_config(m, b))
        return hl_fail(HL_ECONFLICT,
                       "the config of model '%s' differs from the given one, or is missing: leave "
                       "the config out, or save under another name",
                       m->name);
    if (b->create.tp == 0 || is_visible(m) || hl_split_equal(&split, &own))
        return HL_OK;
    return hl_fail(HL_ECONFLICT,
                   "model '%s' is being created as %s, and rank %d of '%s' would create it as %s: "
                   "save under another name, or with the same sizes",
                   m->name, hl_split_text(&own, has), b->rank, b->job,
                   hl_split_text(&split, wants));
}
