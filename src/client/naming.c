/* What tensor names tell, for languages that bind to libhelios: Megatron-core's two naming schemes,
 * and the part that a tensor is saved in. */
#include <stdlib.h>

#include "client/client_private.h"
#include "core/model/naming.h"
#include "core/parts/rule.h"

/* The arena owns everything that the names point to. */
struct owned_names {
    helios_names names;
    struct hl_arena arena;
};

static hl_status make_names(const char *const *names, size_t count, const char *naming,
                            struct owned_names *to)
{
    enum hl_api_layer_naming parsed;
    const char **made = NULL;
    HL_TRY(hl_api_layer_naming_parse(naming, &parsed));
    HL_TRY(hl_naming_names(names, count, parsed, &to->arena, &made));
    to->names = (helios_names){count, made};
    return HL_OK;
}

int helios_names_under(const char *const *names, size_t count, const char *naming,
                       helios_names **out)
{
    struct owned_names *o = calloc(1, sizeof(*o));
    hl_status st = o != NULL ? make_names(names, count, naming, o)
                             : hl_fail(HL_ENOMEM, "out of memory renaming %zu tensors", count);
    if (st != HL_OK) {
        helios_names_free(o != NULL ? &o->names : NULL);
        return st;
    }
    *out = &o->names;
    return HL_OK;
}

static hl_status make_parts(const char *config, const helios_split *split, int pp,
                            const char *const *names, size_t count, struct owned_names *to)
{
    struct hl_api_split asked;
    struct hl_part_rule rule;
    const char **made = hl_arena_array(&to->arena, count + 1, sizeof(*made));
    HL_TRY(split_read(split, &asked));
    HL_TRY(hl_part_rule_read(config, &asked, &rule));
    for (size_t i = 0; i < count && made != NULL; i++) {
        char part[HL_PARTITION_PART_MAX];
        hl_status st = hl_part_of_tensor(&rule, pp, names[i], part);
        if (st != HL_OK)
            return hl_fail_prefix(st, "tensor '%.200s': ", names[i]);
        made[i] = hl_arena_strdup(&to->arena, part);
        if (made[i] == NULL)
            made = NULL;
    }
    if (made == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the parts of %zu tensors", count);
    to->names = (helios_names){count, made};
    return HL_OK;
}

int helios_parts_of(const char *config_json, const helios_split *split, int pp,
                    const char *const *names, size_t count, helios_names **out)
{
    struct owned_names *o = calloc(1, sizeof(*o));
    hl_status st = o != NULL ? make_parts(config_json, split, pp, names, count, o)
                             : hl_fail(HL_ENOMEM, "out of memory for %zu tensors", count);
    if (st != HL_OK) {
        helios_names_free(o != NULL ? &o->names : NULL);
        return st;
    }
    *out = &o->names;
    return HL_OK;
}

void helios_names_free(helios_names *names)
{
    if (names == NULL)
        return;
    struct owned_names *o = (struct owned_names *)names;
    hl_arena_fini(&o->arena);
    free(o);
}
