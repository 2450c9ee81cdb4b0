/* A look at all that the archive holds, its trash included. A list only finds what needs no look of
 * its own: it may be older than a put, and what is not in it may be missing because the whole
 * archive is. */
#include "mem/archive/ops.h"

hl_status hl_archive_check(struct hl_archive *a, hl_archive_missed missed, void *arg)
{
    a->check_round++;
    if (a->ops->list != NULL)
        HL_TRY(a->ops->list(a));
    HL_TRY(archive_check_shards(a, missed, arg));
    return archive_check_trash(a);
}
