/* What stands in an archive beside its shards, of any bytes: the text that says whose it is, and a
 * name in its trash. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem/archive/ops.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* Exactly as long as the input, so that a read behind it is seen. */
static void claim(const uint8_t *data, size_t size)
{
    struct hl_archive_claim claim = {.damaged = true};
    char *copy = malloc(size + (size == 0));
    check(copy != NULL);
    memcpy(copy, data, size);
    if (archive_claim_parse(copy, size, &claim) == HL_OK)
        check(!hl_id_is_none(claim.cluster) && !claim.damaged);
    else
        check(claim.damaged && hl_id_is_none(claim.cluster)); /* untouched */
    free(copy);
}

/* A name that is taken for the trash's is exactly the one that it would be given. */
static void trash(const uint8_t *data, size_t size)
{
    struct hl_archive a = {.ops = &hl_archive_dir};
    struct hl_archive_trashed found;
    uint64_t cursor = 0;
    char *name = strndup((const char *)data, size);
    check(name != NULL);
    pthread_mutex_init(&a.lock, NULL);
    int taken = hl_archive_found_trash(&a, name, 5);
    check(hl_archive_trash_page(&a, &cursor, &found, 1) == (size_t)taken);
    if (taken)
        check(strcmp(found.place + strlen(HL_ARCHIVE_TRASH "/"), name) == 0 && found.size == 5);
    archive_trash_fini(&a);
    pthread_mutex_destroy(&a.lock);
    free(name);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > HL_ARCHIVE_CLAIM_MAX)
        return 0;
    claim(data, size);
    trash(data, size);
    return 0;
}
