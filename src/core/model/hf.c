/* The family's table names the fields, so every error can name them. */
#include "core/model/hf.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

#define SIZE_LIMIT   ((int64_t)INT32_MAX)
#define LAYERS_LIMIT 100000

struct reader {
    const json_t *root;
    const char *file;
};

/* A positive integer below 2^31. */
HL_CHECK static hl_status read_size(const struct reader *r, const char *field, uint64_t *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > SIZE_LIMIT)
        return hl_fail(HL_EINVAL, "%s: field '%s' is not an integer of 1..2147483647", r->file,
                       field);
    *out = (uint64_t)json_integer_value(v);
    return HL_OK;
}

HL_CHECK static hl_status read_bool(const struct reader *r, const char *field, bool absent,
                                    bool *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v != NULL && !json_is_null(v) && !json_is_boolean(v))
        return hl_fail(HL_EINVAL, "%s: field '%s' is neither true nor false", r->file, field);
    *out = json_is_boolean(v) ? json_is_true(v) : absent;
    return HL_OK;
}

HL_CHECK static hl_status read_real(const struct reader *r, const char *field, double absent,
                                    double *out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v != NULL && !json_is_null(v) && !json_is_number(v))
        return hl_fail(HL_EINVAL, "%s: field '%s' is not a number", r->file, field);
    *out = json_is_number(v) ? json_number_value(v) : absent;
    return HL_OK;
}

HL_CHECK static hl_status read_text(const struct reader *r, const char *field, const char *absent,
                                    const char **out)
{
    const json_t *v = json_object_get(r->root, field);
    if (v != NULL && !json_is_null(v) && !json_is_string(v))
        return hl_fail(HL_EINVAL, "%s: field '%s' is not text", r->file, field);
    *out = json_is_string(v) ? json_string_value(v) : absent;
    return HL_OK;
}

/* The value of a symbol whose field is missing; 0 = the field is required. */
HL_CHECK static hl_status symbol_absent(const struct hl_hf_config *c,
                                        const struct hl_family_symbol *s, int64_t *out)
{
    struct hl_family_scope scope = hl_hf_scope(c, 0);
    *out = 0;
    return s->absent == NULL ? HL_OK : hl_family_eval(&scope, s->absent, out);
}

static bool has_field(const struct reader *r, const char *field)
{
    const json_t *v = json_object_get(r->root, field);
    return v != NULL && !json_is_null(v);
}

HL_CHECK static hl_status read_symbol(const struct reader *r, const struct hl_family_symbol *s,
                                      struct hl_hf_config *c, int64_t *out)
{
    uint64_t size = 0;
    bool truth = false;
    if (s->kind == HL_SYMBOL_VALUE || s->kind == HL_SYMBOL_LAYERS)
        return HL_OK;
    if (!has_field(r, s->field)) {
        if (s->absent == NULL)
            return hl_fail(HL_EINVAL, "%s: field '%s' is missing", r->file, s->field);
        return symbol_absent(c, s, out);
    }
    if (s->kind == HL_SYMBOL_BOOL) {
        HL_TRY(read_bool(r, s->field, false, &truth));
        *out = truth;
        return HL_OK;
    }
    const json_t *v = json_object_get(r->root, s->field);
    if (s->kind == HL_SYMBOL_COUNT && json_is_integer(v) && json_integer_value(v) == 0) {
        *out = 0;
        return HL_OK;
    }
    HL_TRY(read_size(r, s->field, &size));
    *out = (int64_t)size;
    return HL_OK;
}

/* A symbol's value by its name; `absent` if the family does not have it. */
HL_CHECK static hl_status symbol_value(const struct hl_hf_config *c, const char *name,
                                       uint64_t absent, uint64_t *out)
{
    struct hl_family_scope scope = hl_hf_scope(c, 0);
    int64_t value;
    *out = absent;
    if (hl_family_symbol_index(c->family, name, strlen(name)) < 0)
        return HL_OK;
    HL_TRY(hl_family_eval(&scope, name, &value));
    *out = (uint64_t)value;
    return HL_OK;
}

HL_CHECK static hl_status settle_sizes(struct hl_hf_config *c)
{
    uint64_t tied, qkv, proj, mlp;
    HL_TRY(symbol_value(c, "layers", 0, &c->layers));
    HL_TRY(symbol_value(c, "hidden", 0, &c->hidden));
    HL_TRY(symbol_value(c, "heads", 0, &c->heads));
    HL_TRY(symbol_value(c, "kv_heads", c->heads, &c->kv_heads));
    HL_TRY(symbol_value(c, "head_dim", 0, &c->head_dim));
    HL_TRY(symbol_value(c, "ffn", 0, &c->ffn));
    HL_TRY(symbol_value(c, "vocab", 0, &c->vocab));
    HL_TRY(symbol_value(c, "max_positions", 0, &c->max_positions));
    HL_TRY(symbol_value(c, "tied", 0, &tied));
    HL_TRY(symbol_value(c, "qkv_bias", 0, &qkv));
    HL_TRY(symbol_value(c, "proj_bias", 0, &proj));
    HL_TRY(symbol_value(c, "mlp_bias", 0, &mlp));
    c->tied = tied != 0;
    c->qkv_bias = qkv != 0;
    c->proj_bias = proj != 0;
    c->mlp_bias = mlp != 0;
    return HL_OK;
}

static const char *field_of(const struct hl_family *f, const char *symbol)
{
    int i = hl_family_symbol_index(f, symbol, strlen(symbol));
    return i >= 0 && f->symbols[i].field != NULL ? f->symbols[i].field : symbol;
}

HL_CHECK static hl_status check_heads(const struct reader *r, const struct hl_hf_config *c)
{
    const char *hidden = field_of(c->family, "hidden"), *heads = field_of(c->family, "heads");
    if (c->head_dim == 0)
        return hl_fail(HL_EINVAL,
                       "%s: field '%s' %" PRIu64 " is not a multiple of '%s' %" PRIu64
                       " and no head_dim is given",
                       r->file, hidden, c->hidden, heads, c->heads);
    if (c->heads % c->kv_heads != 0)
        return hl_fail(HL_EINVAL, "%s: '%s' %" PRIu64 " is not a multiple of '%s' %" PRIu64,
                       r->file, heads, c->heads, field_of(c->family, "kv_heads"), c->kv_heads);
    if (c->layers > LAYERS_LIMIT)
        return hl_fail(HL_EINVAL, "%s: %" PRIu64 " layers, at most %d", r->file, c->layers,
                       LAYERS_LIMIT);
    return HL_OK;
}

HL_CHECK static hl_status read_reals(const struct reader *r, struct hl_hf_config *c)
{
    const struct hl_family *f = c->family;
    HL_TRY(read_real(r, f->norm_eps, f->norm_eps_absent, &c->norm_eps));
    if (f->rope_theta_absent == 0)
        return HL_OK;
    /* Newer files keep it in an object. */
    const struct reader rope = {.root = json_object_get(r->root, "rope_parameters"),
                                .file = r->file};
    HL_TRY(read_real(&rope, "rope_theta", f->rope_theta_absent, &c->rope_theta));
    return read_real(r, "rope_theta", c->rope_theta, &c->rope_theta);
}

/* The layout that Megatron's arguments and the memory estimate use. */
static enum hl_hf_layout layout_of(const struct hl_family *f)
{
    static const char *const llama[] = {"llama", "mistral", "qwen2"};
    for (size_t i = 0; i < HL_ARRAY_LEN(llama); i++)
        if (strcmp(f->name, llama[i]) == 0)
            return HL_LAYOUT_LLAMA;
    return strcmp(f->name, "gpt2") == 0 ? HL_LAYOUT_GPT2 : HL_LAYOUT_OTHER;
}

hl_status hl_hf_names(const json_t *hf, const char *file, const char **type, const char **class)
{
    const json_t *kind = json_object_get(hf, "model_type");
    const json_t *classes = json_object_get(hf, "architectures"), *first;
    if (!json_is_object(hf))
        return hl_fail(HL_EINVAL, "%s: not a JSON object", file);
    if (kind != NULL && !json_is_null(kind) && !json_is_string(kind))
        return hl_fail(HL_EINVAL, "%s: field 'model_type' is not text", file);
    first = json_array_get(classes, 0);
    if ((classes != NULL && !json_is_null(classes) && !json_is_array(classes)) ||
        (first != NULL && !json_is_string(first)))
        return hl_fail(HL_EINVAL, "%s: field 'architectures' is not a list of texts", file);
    *type = json_string_value(kind);
    *class = json_string_value(first);
    return HL_OK;
}

/* Finds the family by model_type, or by the class name in older files. */
HL_CHECK static hl_status find_family(const struct reader *r, struct hl_hf_config *c)
{
    char names[512];
    const char *type, *name;
    HL_TRY(hl_hf_names(r->root, r->file, &type, &name));
    c->family = hl_family_find(type, name);
    if (c->family == NULL && type == NULL && name == NULL)
        return hl_fail(HL_EINVAL, "%s: field 'model_type' is missing", r->file);
    if (c->family == NULL)
        return hl_fail(HL_EUNSUPPORTED, "%s: architecture '%.60s' is not supported: use %s",
                       r->file, type != NULL ? type : name, hl_family_names(names, sizeof(names)));
    c->architecture = c->family->name;
    c->layout = layout_of(c->family);
    return HL_OK;
}

/* Reads quantization_config of the model or of the text model inside it. */
HL_CHECK static hl_status read_quantization(const json_t *whole, const json_t *text,
                                            const char *file, struct hl_hf_config *c)
{
    const json_t *config = json_object_get(whole, "quantization_config");
    if (config == NULL || json_is_null(config))
        config = json_object_get(text, "quantization_config");
    return hl_hf_quantization(config, file, c->block);
}

HL_CHECK static hl_status read_config(const struct reader *whole, struct hl_hf_config *c)
{
    struct reader r = *whole;
    HL_TRY(find_family(&r, c));
    const char *nested = c->family->nested;
    if (nested != NULL && json_is_object(json_object_get(r.root, nested)))
        r.root = json_object_get(r.root, nested);
    HL_TRY(read_quantization(whole->root, r.root, r.file, c));
    c->fields = r.root;
    for (int i = 0; c->family->symbols[i].name != NULL; i++)
        HL_TRY(read_symbol(&r, &c->family->symbols[i], c, &c->values[i]));
    HL_TRY(settle_sizes(c));
    HL_TRY(read_reals(&r, c));
    return check_heads(&r, c);
}

hl_status hl_hf_config_read(const json_t *hf, const char *file, struct hl_hf_config *out)
{
    struct hl_hf_config c = {.hf = json_incref((json_t *)hf)};
    hl_status st = read_config(&(struct reader){.root = c.hf, .file = file}, &c);
    if (st != HL_OK) {
        hl_hf_config_fini(&c);
        return st;
    }
    *out = c;
    return HL_OK;
}

/* What to do about numbers that Python's json writes and reads. */
static const char *number_hint(const json_error_t *error)
{
    return json_error_code(error) == json_error_numeric_overflow
               ? "; Python writes such numbers: put a finite one of 64 bits in its place"
               : "";
}

static const char *const beyond_json[] = {"Infinity", "-Infinity", "NaN"};

/* The word of beyond_json at `at`, or NULL. */
static const char *word_at(const char *at, const char *end)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(beyond_json); i++) {
        size_t n = strlen(beyond_json[i]);
        if ((size_t)(end - at) >= n && memcmp(at, beyond_json[i], n) == 0)
            return beyond_json[i];
    }
    return NULL;
}

/* Copies a text with such words as strings; their number goes to `count`. */
HL_CHECK static hl_status quote_words(const char *text, size_t len, struct hl_buf *out,
                                      size_t *count)
{
    const char *end = text + len;
    bool quoted = false;
    *count = 0;
    for (const char *at = text; at < end; at++) {
        const char *word = quoted ? NULL : word_at(at, end);
        if (word != NULL) {
            HL_TRY(hl_buf_printf(out, "\"" HL_HF_BEYOND_JSON "%s\"", word));
            at += strlen(word) - 1;
            (*count)++;
            continue;
        }
        size_t n = quoted && *at == '\\' && at + 1 < end ? 2 : 1;
        quoted = n == 1 && *at == '"' ? !quoted : quoted;
        HL_TRY(hl_buf_append(out, at, n));
        at += n - 1;
    }
    return HL_OK;
}

json_t *hl_hf_json(const char *text, size_t len, json_error_t *error)
{
    HL_AUTO(hl_buf_fini) struct hl_buf quoted = HL_BUF(4 * HL_HF_CONFIG_MAX);
    size_t count;
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, error);
    if (doc == NULL && quote_words(text, len, &quoted, &count) == HL_OK && count > 0)
        doc = json_loadb(quoted.data, quoted.len, JSON_REJECT_DUPLICATES, error);
    return doc;
}

void hl_hf_json_unquote(char *text)
{
    static const char mark[] = "\"" HL_HF_BEYOND_JSON;
    const char *end = text + strlen(text);
    char *to = text;
    for (const char *at = text; *at != '\0';) {
        const char *word =
            strncmp(at, mark, sizeof(mark) - 1) == 0 ? word_at(at + sizeof(mark) - 1, end) : NULL;
        if (word != NULL && at[sizeof(mark) - 1 + strlen(word)] == '"') {
            memcpy(to, word, strlen(word));
            to += strlen(word);
            at += sizeof(mark) - 1 + strlen(word) + 1;
        } else {
            *to++ = *at++;
        }
    }
    *to = '\0';
}

hl_status hl_hf_config_parse(const char *text, size_t len, const char *file,
                             struct hl_hf_config *out)
{
    if (len > HL_HF_CONFIG_MAX)
        return hl_fail(HL_EINVAL, "%s: %zu bytes, at most %zu", file, len, HL_HF_CONFIG_MAX);
    json_error_t error;
    json_t *hf = hl_hf_json(text, len, &error);
    if (hf == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s%s", file, error.line, error.column, error.text,
                       number_hint(&error));
    hl_status st = hl_hf_config_read(hf, file, out);
    json_decref(hf);
    return st;
}

void hl_hf_config_fini(struct hl_hf_config *c)
{
    json_decref(c->hf);
    *c = (struct hl_hf_config){0};
}

/* Reads rope_scaling, or rope_parameters in newer files. Without original positions YaRN uses those
 * of the config, as in Transformers. */
HL_CHECK static hl_status read_rope(const struct reader *whole, uint64_t positions,
                                    struct hl_hf_training *t)
{
    const char *field = "rope_scaling";
    struct reader r = {.root = json_object_get(whole->root, field), .file = whole->file};
    if (r.root == NULL || json_is_null(r.root))
        r.root = json_object_get(whole->root, field = "rope_parameters");
    if (r.root != NULL && !json_is_null(r.root) && !json_is_object(r.root))
        return hl_fail(HL_EINVAL, "%s: field '%s' is not an object", r.file, field);
    const char *older;
    HL_TRY(read_text(&r, "type", "default", &older));
    HL_TRY(read_text(&r, "rope_type", older, &t->rope.type));
    HL_TRY(read_real(&r, "factor", 8, &t->rope.factor));
    HL_TRY(read_real(&r, "low_freq_factor", 1, &t->rope.low_freq_factor));
    HL_TRY(read_real(&r, "high_freq_factor", 4, &t->rope.high_freq_factor));
    bool yarn = strcmp(t->rope.type, "yarn") == 0 && positions > 0;
    return read_real(&r, "original_max_position_embeddings", yarn ? (double)positions : 8192,
                     &t->rope.original_positions);
}

hl_status hl_hf_training_read(const struct hl_hf_config *c, const char *file,
                              struct hl_hf_training *out)
{
    const struct reader r = {.root = c->hf, .file = file};
    struct hl_hf_training t = {0};
    bool gpt2 = c->layout == HL_LAYOUT_GPT2;
    double window;
    bool used;
    HL_TRY(read_text(&r, "hidden_act", "silu", &t.activation));
    HL_TRY(read_real(&r, gpt2 ? "attn_pdrop" : "attention_dropout", gpt2 ? 0.1 : 0,
                     &t.attention_dropout));
    if (gpt2)
        HL_TRY(read_real(&r, "resid_pdrop", 0.1, &t.hidden_dropout));
    HL_TRY(read_real(&r, "sliding_window", 0, &window));
    HL_TRY(read_bool(&r, "use_sliding_window", true, &used));
    t.window = used ? (int64_t)window : 0;
    HL_TRY(read_rope(&r, c->max_positions, &t));
    *out = t;
    return HL_OK;
}
