/* Ids mean nothing to users: the names learnt from lists and writes are kept for messages.
 *
 *     names   id --> text; listed: size and CRC of the catalogue     under names_lock
 *
 * Reads do not take client.lock, so this table has a lock of its own, held only for a look-up.
 * `any_listed` is set once and never cleared: it spares a client without lists that lock on each
 * read. It orders nothing; a read that misses it began before the list was there. At NAMES_MAX all
 * names are forgotten, because they only make messages better. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "client/client_private.h"
#include "core/model/part.h"

#define NAMES_MAX 65536

/* Call with names_lock held, or when the client ends. */
static void forget_all(helios_client *client)
{
    struct shard_name *n, *next;
    HASH_ITER (hh, client->names, n, next) {
        HASH_DEL(client->names, n);
        free(n->text);
        free(n);
    }
}

void names_add(helios_client *client, struct hl_id id, const char *model, int64_t version, int pp,
               int tp, int ep, const char *part)
{
    struct shard_name *n = NULL;
    char place[HL_PART_PLACE_MAX];
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->names, &id, sizeof(id), n);
    if (n == NULL && (n = calloc(1, sizeof(*n))) != NULL) {
        if (HASH_COUNT(client->names) >= NAMES_MAX)
            forget_all(client);
        n->id = id;
        if (asprintf(&n->text, "%s@%" PRId64 "/%s", model, version,
                     hl_part_place(pp, tp, ep, part, place)) < 0) {
            free(n);
        } else {
            HASH_ADD(hh, client->names, id, sizeof(n->id), n);
        }
    }
    pthread_mutex_unlock(&client->names_lock);
}

void names_expect(helios_client *client, struct hl_id id, uint64_t size, uint32_t crc32)
{
    struct shard_name *n = NULL;
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->names, &id, sizeof(id), n);
    if (n != NULL) {
        n->listed = true;
        atomic_store_explicit(&client->any_listed, true, memory_order_relaxed);
        n->size = size;
        n->crc32 = crc32;
    }
    pthread_mutex_unlock(&client->names_lock);
}

bool names_expected(helios_client *client, struct hl_id id, uint64_t *size, uint32_t *crc32)
{
    struct shard_name *n;
    if (!atomic_load_explicit(&client->any_listed, memory_order_relaxed))
        return false;
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->names, &id, sizeof(id), n);
    bool listed = n != NULL && n->listed;
    if (listed) {
        *size = n->size;
        *crc32 = n->crc32;
    }
    pthread_mutex_unlock(&client->names_lock);
    return listed;
}

hl_status names_check(helios_client *client, struct hl_id id, uint64_t size, uint32_t crc32)
{
    uint64_t want_size;
    uint32_t want_crc32;
    char name[400];
    if (!names_expected(client, id, &want_size, &want_crc32) ||
        (want_size == size && want_crc32 == crc32))
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "%s: found %" PRIu64 " bytes with CRC-32 %08x, but the catalogue says %" PRIu64
                   " bytes with %08x; use another version",
                   names_text(client, id, name, sizeof(name)), size, crc32, want_size, want_crc32);
}

const char *names_text(helios_client *client, struct hl_id id, char *buf, size_t cap)
{
    struct shard_name *n = NULL;
    pthread_mutex_lock(&client->names_lock);
    HASH_FIND(hh, client->names, &id, sizeof(id), n);
    if (n != NULL)
        snprintf(buf, cap, "shard %s (%s)", n->text, hl_id_format(id).s);
    else
        snprintf(buf, cap, "shard %s", hl_id_format(id).s);
    pthread_mutex_unlock(&client->names_lock);
    return buf;
}

void names_fini(helios_client *client)
{
    forget_all(client);
}
