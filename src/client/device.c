/* Shards in the memory of this node's devices, mapped in place: the node's store hands out the
 * memory and keeps the copy there until the view is given back.
 *
 *     attach.devices   list of mappings, under attach.lock
 *     mapping: token + store (one reference) --the store keeps the copy--> block, imported here
 *
 * The store keeps the copy from mapping_hold on, so the lock is not needed while it is imported and
 * verified: until the mapping is in the list, only the thread that creates it knows it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/abi.h"
#include "client/client_private.h"
#include "mem/device/device.h"

struct device_mapping {
    struct hl_device *device;
    struct hl_device_block block;
    struct shm *store; /* holds the pin; one reference */
    uint32_t token;
    struct device_mapping *next;
};

/* The Agent numbers its devices by name. A real device is found by its PCI address, because in this
 * process the driver may number them differently (CUDA_VISIBLE_DEVICES). Importing from an emulated
 * device needs none. */
static hl_status mapping_import(struct operation *op, struct hl_id id,
                                const struct hl_l3_device_copy *copy, struct device_mapping *m)
{
    char spec[32] = "emu";
    if (copy->pci[0] != '\0')
        snprintf(spec, sizeof(spec), "cuda:%s", copy->pci);
    const struct hl_device_options options = {.cuda_driver = getenv("HELIOS_DEVICE_CUDA_DRIVER")};
    HL_TRY(names_check(op->client, id, copy->size, copy->crc32));
    HL_TRY(hl_device_open(spec, &options, &m->device));
    HL_TRY(hl_device_import(
        m->device,
        &(struct hl_device_share){.fd = copy->fd, .offset = copy->offset, .size = copy->length},
        &m->block));
    if (m->block.host != NULL && hl_crc32(0, m->block.host, copy->size) != copy->crc32)
        return hl_fail(HL_ECORRUPT, "the copy in %s fails its checksum", copy->device);
    return HL_OK;
}

/* From here on the store keeps the copy. Caller holds attach.lock. */
static hl_status mapping_hold(struct operation *op, struct hl_id id, struct device_mapping *m,
                              struct hl_l3_device_copy *copy)
{
    struct shm *store = atomic_load_explicit(&op->client->attach.store, memory_order_relaxed);
    if (store == NULL)
        return hl_fail(HL_EUNAVAIL,
                       "this rank's node has no store, so no shard is in device memory");
    HL_TRY(hl_l3_map(store->socket, id, operation_socket_ms(op), copy));
    store->refs++;
    m->store = store;
    m->token = copy->token;
    return HL_OK;
}

/* Caller holds attach.lock. */
static void mapping_release(struct operation *op, struct device_mapping *m)
{
    hl_device_close(m->device);
    /* A store that was replaced has already dropped what it kept for this client. */
    if (m->store == atomic_load_explicit(&op->client->attach.store, memory_order_relaxed))
        (void)!hl_l3_unmap(m->store->socket, m->token, operation_socket_ms(op));
    attach_unref(op->client, m->store);
    free(m);
}

/* The shard is in no device: the node's Agent may load it into one. This is not for ranks on the
 * pool's host, which read the pool itself. The earlier failure stands. */
static bool device_load(struct operation *op, struct hl_id id)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    bool mapped = attach_enter(op->client) != NULL;
    struct shm *store = mapped ? NULL : attach_node_store(op->client, hl_now_ns());
    bool loaded = store != NULL && keep_load(op, store, id, HL_API_TIER_L1);
    attach_leave(op->client);
    (void)hl_fail(HL_ENOENT, "%s", text);
    return loaded;
}

/* Takes over m. */
static hl_status map_device(struct operation *op, struct hl_id id, struct device_mapping *m,
                            helios_device_view *view)
{
    struct attach *a = &op->client->attach;
    struct hl_l3_device_copy copy;
    char text[HL_ERROR_TEXT_MAX];
    pthread_mutex_lock(&a->lock);
    hl_status st = mapping_hold(op, id, m, &copy);
    pthread_mutex_unlock(&a->lock);
    if (st == HL_ENOENT && device_load(op, id)) {
        pthread_mutex_lock(&a->lock);
        st = mapping_hold(op, id, m, &copy);
        pthread_mutex_unlock(&a->lock);
    }
    if (st != HL_OK) {
        free(m);
        return st;
    }
    /* The reference keeps the memory mapped, so this only takes time of this thread. */
    st = mapping_import(op, id, &copy, m);
    close(copy.fd);
    snprintf(text, sizeof(text), "%s", hl_error_text());
    pthread_mutex_lock(&a->lock);
    if (st == HL_OK) {
        *view = (helios_device_view){
            .host = m->block.host, .address = m->block.address, .bytes = copy.size};
        snprintf(view->device, sizeof(view->device), "%s", copy.device);
        m->next = a->devices;
        a->devices = m;
    } else {
        mapping_release(op, m);
        st = hl_fail(st, "%s", text);
    }
    pthread_mutex_unlock(&a->lock);
    return st;
}

int helios_map_device(helios_client *client, helios_id id, helios_device_view *view)
{
    struct operation op;
    helios_device_view mapped;
    if (client == NULL || view == NULL)
        return hl_fail(HL_EINVAL, "helios_map_device: client and view must not be NULL");
    HL_TRY(HL_ABI_CHECK(helios_device_view, view));
    struct device_mapping *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a mapping");
    operation_begin(&op, client);
    HL_TRY(map_device(&op, id_of(id), m, &mapped));
    return HL_ABI_WRITE(helios_device_view, &mapped, view);
}

int helios_unmap_device(helios_client *client, const helios_device_view *view)
{
    struct operation op;
    helios_device_view v;
    if (client == NULL || view == NULL)
        return hl_fail(HL_EINVAL, "helios_unmap_device: client and view must not be NULL");
    HL_TRY(HL_ABI_READ(helios_device_view, view, &v));
    operation_begin(&op, client);
    pthread_mutex_lock(&client->attach.lock);
    struct device_mapping **at = &client->attach.devices, *m = NULL;
    while (*at != NULL && (*at)->block.address != v.address)
        at = &(*at)->next;
    if (*at != NULL) {
        m = *at;
        *at = m->next;
        mapping_release(&op, m);
    }
    pthread_mutex_unlock(&client->attach.lock);
    return m != NULL ? HL_OK
                     : hl_fail(HL_EINVAL, "helios_unmap_device: no view of this client at %llx",
                               (unsigned long long)v.address);
}

void device_fini(helios_client *client)
{
    struct operation op;
    operation_begin(&op, client);
    while (client->attach.devices != NULL) {
        struct device_mapping *m = client->attach.devices;
        client->attach.devices = m->next;
        mapping_release(&op, m);
    }
}
