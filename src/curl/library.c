#include "curl/library.h"

#include "os/late.h"

struct curl_calls curl_calls;

static struct hl_late late = HL_LATE("libcurl.so.4", CURL_CALLS, curl_calls);
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void init_curl(void)
{
    curl_global_init(CURL_GLOBAL_DEFAULT);
}

hl_status hl_curl_load(void)
{
    HL_TRY(hl_late_load(&late));
    pthread_once(&once, init_curl);
    return HL_OK;
}
