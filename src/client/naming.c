/* Names of tensors under Megatron-core's two namings, for languages that bind to libhelios. */
#include <stdlib.h>

#include "client/client_private.h"
#include "core/naming.h"

/* Everything that the names point to is the arena's. */
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

void helios_names_free(helios_names *names)
{
    if (names == NULL)
        return;
    struct owned_names *o = (struct owned_names *)names;
    hl_arena_fini(&o->arena);
    free(o);
}
