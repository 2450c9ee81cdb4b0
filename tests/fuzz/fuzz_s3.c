/* Answers of an S3 store, of any bytes, read as the archive reads them: lists of objects and of
 * uploads, and errors. Exactly as long as the input, so that a read behind it is seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mem/archive/s3.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* One element's text into a buffer as small as any of the archive's, and encoded for a query. */
static void text(const char *at, const char *end, const char *name)
{
    static char out[1024], encoded[3 * sizeof(out) + 1];
    for (size_t cap = 8; cap <= sizeof(out); cap *= 128) {
        const char *next = NULL;
        if (!s3_xml_text(at, end, name, out, cap, &next))
            continue;
        check(next > at && next < end && strlen(out) < cap);
        check(s3_encode(out, encoded, sizeof(encoded)) && strlen(encoded) <= 3 * strlen(out));
        check(strspn(encoded, "%-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
                              "") == strlen(encoded));
    }
}

static void list(const char *at, const char *end, const char *what, const char *id)
{
    const char *from, *to;
    for (; s3_xml_inside(at, end, what, &from, &to); at = to) {
        check(from > at && to >= from && to < end);
        text(from, to, "Key");
        text(from, to, id);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *copy = malloc(size + (size == 0));
    const char *end = copy + size, *from, *to;
    check(copy != NULL);
    memcpy(copy, data, size);
    text(copy, end, "Code");
    text(copy, end, "Message");
    text(copy, end, "UploadId");
    if (s3_xml_inside(copy, end, "ListBucketResult", &from, &to)) {
        text(from, to, "NextContinuationToken");
        list(from, to, "Contents", "Size");
    }
    list(copy, end, "Upload", "UploadId");
    free(copy);
    return 0;
}
