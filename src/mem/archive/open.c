/* Opening an archive by its URL: selects the back end and scans the shards that are stored
 * there. */
#include <string.h>

#include "mem/archive/archive.h"
#include "mem/archive/ops.h"

static const struct hl_archive_ops *const back_ends[] = {&hl_archive_dir, &hl_archive_s3};

void hl_archive_close(struct hl_archive *a)
{
    if (a == NULL)
        return;
    archive_entries_fini(a);
    archive_trash_fini(a);
    pthread_mutex_destroy(&a->lock);
    a->ops->close(a);
}

hl_status hl_archive_open(const struct hl_archive_options *options, struct hl_archive **out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(back_ends); i++) {
        size_t len = strlen(back_ends[i]->scheme);
        if (strncmp(options->url, back_ends[i]->scheme, len) != 0 || options->url[len] != ':')
            continue;
        struct hl_archive *a = NULL;
        HL_TRY(back_ends[i]->open(options->url + len + 1, options, &a));
        a->ops = back_ends[i];
        a->info.quota_bytes = options->quota_bytes;
        a->cancel = options->cancel;
        pthread_mutex_init(&a->lock, NULL);
        hl_status st = a->ops->scan(a);
        if (st == HL_OK)
            st = archive_read_claim(a);
        if (st != HL_OK) {
            hl_archive_close(a);
            return st;
        }
        *out = a;
        return HL_OK;
    }
    return hl_fail(HL_EINVAL, "archive '%s': no such kind; give dir:PATH or s3://BUCKET/PREFIX",
                   options->url);
}
