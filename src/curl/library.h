/* curl/library.h - libcurl, loaded when it is first needed: its functions by their own names.
 *
 * Owns:    the library stays loaded to the end of the process.
 * Threads: any, after hl_curl_load, which also initializes libcurl.
 * Errors:  HL_EUNAVAIL (os/late.h).
 * Units:   none.
 * Limits:  the functions below; another one does not link. libcurl's check of the types given to
 *          curl_easy_setopt is off, since it would call the function itself.
 */
#ifndef HL_CURL_LIBRARY_H
#define HL_CURL_LIBRARY_H

#define CURL_DISABLE_TYPECHECK
#include <curl/curl.h>
#undef curl_easy_getinfo
#undef curl_easy_setopt

#include "base/status.h"

/* clang-format off */
#define CURL_CALLS(X)                                                                              \
    X(curl_easy_cleanup) X(curl_easy_escape) X(curl_easy_getinfo) X(curl_easy_init)                \
    X(curl_easy_perform) X(curl_easy_reset) X(curl_easy_setopt) X(curl_easy_strerror)              \
    X(curl_free) X(curl_global_init) X(curl_slist_append) X(curl_slist_free_all)                   \
    X(curl_url) X(curl_url_cleanup) X(curl_url_get) X(curl_url_set)

/* clang-format on */

struct curl_calls {
#define X(name) __typeof__(name) *name;
    CURL_CALLS(X)
#undef X
};

extern struct curl_calls curl_calls;

/* Call it before any other function of libcurl. */
hl_status hl_curl_load(void) HL_CHECK;

#define curl_easy_cleanup   curl_calls.curl_easy_cleanup
#define curl_easy_escape    curl_calls.curl_easy_escape
#define curl_easy_getinfo   curl_calls.curl_easy_getinfo
#define curl_easy_init      curl_calls.curl_easy_init
#define curl_easy_perform   curl_calls.curl_easy_perform
#define curl_easy_reset     curl_calls.curl_easy_reset
#define curl_easy_setopt    curl_calls.curl_easy_setopt
#define curl_easy_strerror  curl_calls.curl_easy_strerror
#define curl_free           curl_calls.curl_free
#define curl_global_init    curl_calls.curl_global_init
#define curl_slist_append   curl_calls.curl_slist_append
#define curl_slist_free_all curl_calls.curl_slist_free_all
#define curl_url            curl_calls.curl_url
#define curl_url_cleanup    curl_calls.curl_url_cleanup
#define curl_url_get        curl_calls.curl_url_get
#define curl_url_set        curl_calls.curl_url_set

#endif
