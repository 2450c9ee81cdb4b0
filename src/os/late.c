#include "os/late.h"

#include <dlfcn.h>
#include <string.h>

/* ISO C has no conversion from void * to a function pointer; POSIX says that their bytes are the
 * same. */
bool hl_late_symbol(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    memcpy(function, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static hl_status late_find(const struct hl_late *late, void *so)
{
    for (size_t i = 0; i < late->count; i++) {
        if (!hl_late_symbol(so, late->names[i], (char *)late->calls + i * sizeof(void *)))
            return hl_fail(HL_EUNAVAIL, "%s has no %s: it is not the library that is needed",
                           late->library, late->names[i]);
    }
    return HL_OK;
}

hl_status hl_late_load(struct hl_late *late)
{
    hl_status st = HL_OK;
    pthread_mutex_lock(&late->lock);
    if (!late->is_loaded) {
        void *so = dlopen(late->library, RTLD_NOW | RTLD_LOCAL);
        st = so != NULL ? late_find(late, so)
                        : hl_fail(HL_EUNAVAIL, "loading %s: %s; install its package", late->library,
                                  dlerror());
        late->is_loaded = st == HL_OK;
    }
    pthread_mutex_unlock(&late->lock);
    return st;
}
