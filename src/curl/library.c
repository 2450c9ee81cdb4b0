#include "curl/library.h"

#include "os/late.h"

struct curl_calls curl_calls;

static const char *const names[] = {
#define X(name) #name,
    CURL_CALLS(X)
#undef X
};

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

hl_status hl_curl_load(void)
{
    static struct hl_late late = {.library = "libcurl.so.4",
                                  .names = names,
                                  .calls = &curl_calls,
                                  .count = HL_ARRAY_LEN(names),
                                  .lock = PTHREAD_MUTEX_INITIALIZER};
    HL_TRY(hl_late_load(&late));
    pthread_once(&once, init_curl);
    return HL_OK;
}
