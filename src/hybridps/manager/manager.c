/* The manager's calls, which give the table of table.h its meaning.
 *
 * A device's memory, under the device's lock:
 *
 *     capacity  | used: sums of rows | reserved: sums of tickets | room |
 *
 *     room --schedule--> reserved --add with the ticket--> used --remove--> room
 *      |                    '--cancel------------------------------------> room
 *      '----add without a ticket-------------------------> used
 *     the process dies: what it had in rows and tickets --reap--> room
 *
 * Threads: any, of any process. Each call takes the lock of one device, reads, changes and unlocks.
 * Between two calls, or two devices, other processes can take the room: a ticket reserves it. If
 * there is no room, the call reaps dead processes and tries once more. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/abi.h"
#include "base/text.h"
#include "helios/hybridps.h"
#include "hybridps/manager/table.h"

struct hybridps_manager {
    struct hl_manager_table t;
};

/* A ticket is found by its number, without a search. The number contains the count of tickets that
 * the device has issued, so no later ticket of the slot has the same number, and a used ticket
 * can't be used again.
 *
 *    63              16 15      8 7        0
 *    | tickets made    | slot    | device  |      never 0: the first ticket made is number 1 */
#define TICKET_DEVICE(id) ((uint32_t)((id)&0xff))
#define TICKET_SLOT(id)   ((uint32_t)((id) >> 8 & 0xff))
#define TICKET_SHIFT      16

/* Callers number devices from -1, the host; in the table each number is one higher. */
static hl_status check_device(const struct hybridps_manager *m, int device)
{
    if (m == NULL)
        return hl_fail(HL_EINVAL, "manager: the handle is NULL");
    if (device < HYBRIDPS_MANAGER_HOST || device >= (int)hl_manager_devices(&m->t) - 1)
        return hl_fail(HL_EINVAL, "manager %s: device %d is not one of -1 (the host) to %d",
                       m->t.path, device, (int)hl_manager_devices(&m->t) - 2);
    return HL_OK;
}

static hl_status check_size(const struct hybridps_manager *m, uint64_t size)
{
    if (size == 0)
        return hl_fail(HL_EINVAL, "manager %s: a size must not be 0", m->t.path);
    return HL_OK;
}

int hybridps_manager_open(const hybridps_manager_options *options, hybridps_manager **out)
{
    uint64_t capacity[HL_MANAGER_DEVICES];
    hybridps_manager_options given;
    if (options == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "manager: options and the result must not be NULL");
    HL_TRY(HL_ABI_READ(hybridps_manager_options, options, &given));
    struct hl_manager_options o = {
        .name = given.name, .lock_ms = given.lock_ms, .reap_ms = given.reap_ms};
    if (given.host_bytes > 0) {
        if (given.devices >= HL_MANAGER_DEVICES ||
            (given.devices > 0 && given.device_bytes == NULL))
            return hl_fail(HL_EINVAL, "manager: capacities of at most %d devices must be given",
                           HL_MANAGER_DEVICES - 1);
        capacity[0] = given.host_bytes;
        for (uint32_t i = 0; i < given.devices; i++)
            capacity[i + 1] = given.device_bytes[i];
        o.capacity = capacity;
        o.devices = given.devices + 1;
    } else if (given.devices > 0)
        return hl_fail(HL_EINVAL, "manager: the devices have capacities, but the host has none");
    struct hybridps_manager *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a manager");
    hl_status st = hl_manager_table_open(&o, &m->t);
    if (st != HL_OK) {
        free(m);
        return st;
    }
    *out = m;
    return HL_OK;
}

void hybridps_manager_close(hybridps_manager *m)
{
    if (m == NULL)
        return;
    hl_manager_table_close(&m->t);
    free(m);
}

const struct hl_manager_table *hl_manager_joined(const struct hybridps_manager *m)
{
    return &m->t;
}

/* ---- room ------------------------------------------------------------------------------------ */

static uint64_t device_room(const struct hl_manager_device *d)
{
    return d->capacity - d->used - d->reserved;
}

/* Fails without a text: HL_ENOSPC, or HL_EBUSY if there is room but no free ticket. The id is
 * stored before the sum: if the process dies in between, sum_up (table.c) counts the ticket that it
 * left. */
static hl_status reserve_ticket(struct hybridps_manager *m, uint32_t device, uint64_t size,
                                uint64_t *ticket)
{
    struct hl_manager_device *d = &m->t.s->device[device];
    HL_TRY(hl_manager_lock(&m->t, device));
    hl_status st = size <= device_room(d) ? HL_EBUSY : HL_ENOSPC;
    for (uint32_t i = 0; i < HL_MANAGER_TICKETS && st == HL_EBUSY; i++) {
        if (d->tickets[i].id != 0)
            continue;
        uint64_t id = ++d->made << TICKET_SHIFT | (uint64_t)i << 8 | device;
        d->tickets[i].size = size;
        d->tickets[i].row = m->t.row;
        d->tickets[i].id = id;
        d->reserved += size;
        *ticket = id;
        st = HL_OK;
    }
    hl_manager_unlock(&m->t, device);
    return st;
}

/* Tries the host, then the preferred device, then the others. k is the place in this order and i
 * the device; each device is tried once. HL_EBUSY (no free tickets) is remembered, because the
 * caller can do something about it. */
static hl_status reserve_any(struct hybridps_manager *m, uint64_t size, uint32_t refer,
                             uint32_t *device, uint64_t *ticket)
{
    hl_status none = HL_ENOSPC;
    for (uint32_t k = 0; k <= hl_manager_devices(&m->t); k++) {
        uint32_t i = k == 0 ? 0 : k == 1 ? refer : k - 1;
        if (k > 0 && (i == 0 || (k > 1 && i == refer)))
            continue;
        hl_status st = reserve_ticket(m, i, size, ticket);
        *device = i;
        if (st == HL_EBUSY)
            none = st;
        else if (st != HL_ENOSPC)
            return st;
    }
    return none;
}

/* The numbers are read after the failure, at a different moment for each device; each pair is
 * consistent for its device. */
static hl_status fail_room(struct hybridps_manager *m, uint64_t size)
{
    char text[HL_ERROR_TEXT_MAX / 2], have[32], all[32], asked[32];
    size_t at = 0;
    for (uint32_t i = 0; i < hl_manager_devices(&m->t) && at < sizeof(text) - 100; i++) {
        const struct hl_manager_device *d = &m->t.s->device[i];
        char who[32];
        HL_TRY(hl_manager_lock(&m->t, i));
        snprintf(who, sizeof(who), i == 0 ? "host" : "device %d", (int)i - 1);
        at +=
            (size_t)snprintf(text + at, sizeof(text) - at, "%s%s has %s of %s", at > 0 ? ", " : "",
                             who, hl_format_bytes(device_room(d), have, sizeof(have)),
                             hl_format_bytes(d->capacity, all, sizeof(all)));
        hl_manager_unlock(&m->t, i);
    }
    return hl_fail(HL_ENOSPC, "manager %s: no device has room for %s (%" PRIu64 " bytes): %s",
                   m->t.path, hl_format_bytes(size, asked, sizeof(asked)), size, text);
}

/* Reaps dead processes before the first attempt if no process has done so for reap_ms, and always
 * before it refuses room. */
int hybridps_manager_schedule(hybridps_manager *m, uint64_t size, int refer_device, int *device,
                              uint64_t *ticket)
{
    uint32_t found;
    uint64_t freed;
    HL_TRY(check_device(m, refer_device));
    HL_TRY(check_size(m, size));
    if (device == NULL || ticket == NULL)
        return hl_fail(HL_EINVAL, "manager %s: device and ticket must not be NULL", m->t.path);
    uint32_t refer = (uint32_t)(refer_device + 1);
    hl_status st = hl_manager_reap_by_age(&m->t);
    if (st == HL_OK)
        st = reserve_any(m, size, refer, &found, ticket);
    if (st == HL_ENOSPC || st == HL_EBUSY) {
        HL_TRY(hl_manager_reap(&m->t, &freed));
        st = reserve_any(m, size, refer, &found, ticket);
    }
    if (st == HL_ENOSPC)
        return fail_room(m, size);
    if (st == HL_EBUSY)
        return hl_fail(HL_EBUSY,
                       "manager %s: there is room for %" PRIu64
                       " bytes, but all %d tickets of the device are in use; use or cancel some",
                       m->t.path, size, HL_MANAGER_TICKETS);
    if (st == HL_OK)
        *device = (int)found - 1;
    return st;
}

/* Call with the device's lock held. NULL: the ticket is another process's, or no longer valid. */
static struct hl_manager_ticket *find_ticket(struct hybridps_manager *m, uint64_t id)
{
    struct hl_manager_ticket *k = &m->t.s->device[TICKET_DEVICE(id)].tickets[TICKET_SLOT(id)];
    return k->id == id && k->row == m->t.row ? k : NULL;
}

static hl_status fail_ticket(const struct hybridps_manager *m, uint64_t id)
{
    return hl_fail(HL_ENOENT,
                   "manager %s: this process has no ticket %" PRIu64
                   "; it was used or cancelled, or belongs to another process",
                   m->t.path, id);
}

int hybridps_manager_cancel(hybridps_manager *m, uint64_t ticket)
{
    HL_TRY(check_device(m, HYBRIDPS_MANAGER_HOST));
    uint32_t device = TICKET_DEVICE(ticket);
    if (device >= hl_manager_devices(&m->t) || ticket == 0)
        return fail_ticket(m, ticket);
    HL_TRY(hl_manager_lock(&m->t, device));
    struct hl_manager_ticket *k = find_ticket(m, ticket);
    if (k != NULL) {
        k->id = 0;
        m->t.s->device[device].reserved -= k->size;
    }
    hl_manager_unlock(&m->t, device);
    return k != NULL ? HL_OK : fail_ticket(m, ticket);
}

/* ---- in use ---------------------------------------------------------------------------------- */

/* Turns reserved bytes into used ones. The size must equal the ticket's, since only that much room
 * is reserved. */
static hl_status commit_ticket(struct hybridps_manager *m, uint32_t device, uint64_t size,
                               uint64_t ticket)
{
    struct hl_manager_device *d = &m->t.s->device[device];
    if (TICKET_DEVICE(ticket) != device)
        return hl_fail(HL_EINVAL, "manager %s: the ticket is of device %d, not of %d", m->t.path,
                       (int)TICKET_DEVICE(ticket) - 1, (int)device - 1);
    HL_TRY(hl_manager_lock(&m->t, device));
    struct hl_manager_ticket *k = find_ticket(m, ticket);
    uint64_t kept = k != NULL ? k->size : 0;
    if (kept == size) {
        k->id = 0; /* first, so that used + reserved never exceeds the capacity */
        d->reserved -= size;
        d->rows[m->t.row] += size;
        d->used += size;
    }
    hl_manager_unlock(&m->t, device);
    if (k == NULL)
        return fail_ticket(m, ticket);
    if (kept != size)
        return hl_fail(HL_EINVAL,
                       "manager %s: the ticket keeps %" PRIu64 " bytes, %" PRIu64
                       " were to be added",
                       m->t.path, kept, size);
    return HL_OK;
}

/* *left: the room before the call. */
static hl_status add_plain(struct hybridps_manager *m, uint32_t device, uint64_t size,
                           uint64_t *left)
{
    struct hl_manager_device *d = &m->t.s->device[device];
    hl_status st = HL_ENOSPC;
    HL_TRY(hl_manager_lock(&m->t, device));
    *left = device_room(d);
    if (size <= *left) {
        d->rows[m->t.row] += size;
        d->used += size;
        st = HL_OK;
    }
    hl_manager_unlock(&m->t, device);
    return st;
}

int hybridps_manager_add(hybridps_manager *m, int device, uint64_t size, uint64_t ticket)
{
    uint64_t left = 0, freed;
    HL_TRY(check_device(m, device));
    HL_TRY(check_size(m, size));
    if (ticket != 0)
        return commit_ticket(m, (uint32_t)(device + 1), size, ticket);
    HL_TRY(hl_manager_reap_by_age(&m->t));
    hl_status st = add_plain(m, (uint32_t)(device + 1), size, &left);
    if (st == HL_ENOSPC) {
        HL_TRY(hl_manager_reap(&m->t, &freed));
        st = add_plain(m, (uint32_t)(device + 1), size, &left);
    }
    if (st != HL_ENOSPC)
        return st;
    return hl_fail(HL_ENOSPC,
                   "manager %s: device %d (-1 = host) has room for %" PRIu64 " of %" PRIu64
                   " bytes, %" PRIu64 " were to be added",
                   m->t.path, device, left, m->t.s->device[device + 1].capacity, size);
}

/* A process can only release what its own row holds, so a mistake in one process never affects
 * another. */
int hybridps_manager_remove(hybridps_manager *m, int device, uint64_t size)
{
    HL_TRY(check_device(m, device));
    HL_TRY(check_size(m, size));
    struct hl_manager_device *d = &m->t.s->device[device + 1];
    HL_TRY(hl_manager_lock(&m->t, (uint32_t)(device + 1)));
    uint64_t mine = d->rows[m->t.row];
    if (size <= mine) {
        d->rows[m->t.row] = mine - size;
        d->used -= size;
    }
    hl_manager_unlock(&m->t, (uint32_t)(device + 1));
    if (size <= mine)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "manager %s: this process has %" PRIu64
                   " bytes in use on device %d (-1 = host), "
                   "%" PRIu64 " can't be removed",
                   m->t.path, mine, device, size);
}

/* The device's numbers are from one moment; the processes are counted without a lock. */
int hybridps_manager_info(hybridps_manager *m, int device, hybridps_manager_info_t *out)
{
    HL_TRY(check_device(m, device));
    if (out == NULL)
        return hl_fail(HL_EINVAL, "manager %s: the result must not be NULL", m->t.path);
    HL_TRY(HL_ABI_CHECK(hybridps_manager_info_t, out));
    HL_TRY(hl_manager_reap_by_age(&m->t));
    const struct hl_manager_device *d = &m->t.s->device[device + 1];
    HL_TRY(hl_manager_lock(&m->t, (uint32_t)(device + 1)));
    hybridps_manager_info_t info = {.capacity = d->capacity,
                                    .used = d->used,
                                    .reserved = d->reserved,
                                    .mine = d->rows[m->t.row],
                                    .devices = hl_manager_devices(&m->t) - 1};
    hl_manager_unlock(&m->t, (uint32_t)(device + 1));
    for (size_t i = 0; i < HL_MANAGER_PROCESSES; i++)
        info.processes += __atomic_load_n(&m->t.s->processes[i].pid, __ATOMIC_RELAXED) != 0;
    return HL_ABI_WRITE(hybridps_manager_info_t, &info, out);
}
