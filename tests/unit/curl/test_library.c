/* libcurl, loaded when it is first needed, also by several threads at once. */
#include "support/test.h"

#include <pthread.h>
#include <string.h>

#include "curl/library.h"

#define THREADS 4

static void *load_and_escape(void *arg)
{
    char **out = arg;
    if (hl_curl_load() == HL_OK)
        *out = curl_easy_escape(NULL, "a/b c+\xC3\xA4~", 0);
    return NULL;
}

TEST(threads_that_need_it_at_once_all_get_it)
{
    pthread_t threads[THREADS];
    char *escaped[THREADS] = {NULL};
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load_and_escape, &escaped[i]), 0);
    for (size_t i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        assert_non_null(escaped[i]);
        assert_string_equal(escaped[i], "a%2Fb%20c%2B%C3%A4~");
        curl_free(escaped[i]);
    }
}

TEST(a_url_is_taken_apart)
{
    char *host = NULL, *port = NULL;
    assert_int_equal(hl_curl_load(), HL_OK);
    CURLU *url = curl_url();
    assert_int_equal(curl_url_set(url, CURLUPART_URL, "https://store.example:9000/bucket", 0),
                     CURLUE_OK);
    assert_int_equal(curl_url_get(url, CURLUPART_HOST, &host, 0), CURLUE_OK);
    assert_int_equal(curl_url_get(url, CURLUPART_PORT, &port, 0), CURLUE_OK);
    assert_string_equal(host, "store.example");
    assert_string_equal(port, "9000");
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(url);
}
