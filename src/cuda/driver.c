#include "cuda/driver.h"

#include <dlfcn.h>

#include "os/late.h"

hl_status cuda_fail(const struct cuda_driver *cu, const char *call, cu_result r)
{
    const char *name = NULL, *text = NULL;
    hl_status st = HL_EIO;
    if (cu->cuGetErrorName(r, &name) != HL_CUDA_SUCCESS || name == NULL)
        name = "unknown error";
    if (cu->cuGetErrorString(r, &text) != HL_CUDA_SUCCESS || text == NULL)
        text = "the driver has no text for it";
    switch (r) {
    case HL_CUDA_ERROR_OUT_OF_MEMORY:
        st = HL_ENOSPC;
        break;
    case HL_CUDA_ERROR_NOT_SUPPORTED:
        st = HL_EUNSUPPORTED;
        break;
    case HL_CUDA_ERROR_NOT_PERMITTED:
        st = HL_EPERM;
        break;
    case HL_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED:
        st = HL_EEXIST;
        break;
    case HL_CUDA_ERROR_NO_DEVICE:
    case HL_CUDA_ERROR_INVALID_DEVICE:
        st = HL_ENOENT;
        break;
    default:
        break;
    }
    return hl_fail(st, "%s: %s (%u): %s", call, name, r, text);
}

hl_status cuda_driver_load(const char *library, struct cuda_driver *out)
{
    struct cuda_driver cu = {.vmm = 1, .run = 1, .context = 1};
    if (library == NULL || library[0] == '\0')
        library = CUDA_DRIVER_NAME;
    void *so = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (so == NULL)
        return hl_fail(HL_EUNAVAIL, "no CUDA driver: %s", dlerror());
#define X(name, args)                                                                              \
    if (!hl_late_symbol(so, #name, &cu.name))                                                      \
        return hl_fail(HL_EUNAVAIL, "%s has no %s: it is not a CUDA driver, or too old", library,  \
                       #name);
    CUDA_CALLS(X)
#undef X
#define X(name, args) cu.vmm &= hl_late_symbol(so, #name, &cu.name);
    CUDA_VMM_CALLS(X)
#undef X
#define X(name, args) cu.run &= hl_late_symbol(so, #name, &cu.name);
    CUDA_RUN_CALLS(X)
#undef X
#define X(name, args) cu.context &= hl_late_symbol(so, #name, &cu.name);
    CUDA_CONTEXT_CALLS(X)
#undef X
    cu_result r = cu.cuInit(0);
    if (r != HL_CUDA_SUCCESS)
        return cuda_fail(&cu, "cuInit", r);
    *out = cu;
    return HL_OK;
}
