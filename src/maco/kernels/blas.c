#include "maco/kernels/blas.h"

#include <dlfcn.h>
#include <pthread.h>

#include "os/late.h"

static struct hl_blas found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void find_blas(void)
{
    static const char *const names[] = {"libopenblas.so.0", "libblas.so.3"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && found.sgemm == NULL; i++) {
        void *so = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (so == NULL)
            continue;
        (void)hl_late_symbol(so, "sgemm_", &found.sgemm);
        (void)hl_late_symbol(so, "openblas_set_num_threads", &found.set_threads);
        (void)hl_late_symbol(so, "openblas_get_num_threads", &found.get_threads);
        if (found.get_threads == NULL)
            found.set_threads = NULL;
        found.name = names[i];
    }
}

const struct hl_blas *hl_blas(void)
{
    pthread_once(&once, find_blas);
    return found.sgemm != NULL ? &found : NULL;
}
