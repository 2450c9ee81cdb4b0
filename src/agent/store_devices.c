/* The devices of a node as its L1: opened from the configured list, named by kind and order, each
 * with its nearest NIC and a plank of its own. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "core/planner/topo.h"
#include "mem/device/device.h"
#include "mem/plank/plank.h"

/* The words of the option agent.nic_class. */
static const struct word {
    const char *word;
    enum hl_nic_class nic;
} words[] = {
    {"other", HL_NIC_OTHER}, {"cx3", HL_NIC_CX3},
    {"cx4", HL_NIC_CX4},     {"cx5", HL_NIC_CX5},
    {"cx6", HL_NIC_CX6},     {"cx7", HL_NIC_CX7},
    {"cx8", HL_NIC_CX8},     {"bluefield", HL_NIC_BLUEFIELD},
};

static hl_status find_nic(const struct store *s, const struct hl_api_slot_list *machine, int numa,
                          enum hl_nic_class *out)
{
    struct hl_topo topo = {0};
    for (size_t i = 0; i < HL_ARRAY_LEN(words); i++)
        if (strcmp(s->opts.nic_class, words[i].word) == 0) {
            *out = words[i].nic;
            return HL_OK;
        }
    HL_TRY(hl_topo_from_api(machine, &topo));
    *out = hl_topo_nic_beside(&topo, s->opts.machine_foreign ? -1 : numa);
    hl_topo_fini(&topo);
    return HL_OK;
}

static hl_status open_device(struct store *s, const char *spec,
                             const struct hl_api_slot_list *machine)
{
    struct hl_device_info info;
    struct store_tier *t = &s->tiers[s->tier_count];
    int number = 0;
    if (s->tier_count == HL_ARRAY_LEN(s->tiers))
        return hl_fail(HL_EINVAL, "--devices: at most %d devices are allowed", STORE_DEVICES_MAX);
    *t = (struct store_tier){.tier = HL_API_TIER_L1};
    HL_TRY(hl_device_open(spec, &s->opts.device, &t->memory));
    hl_device_info(t->memory, &info);
    for (size_t i = 0; i < s->tier_count; i++)
        number += s->tiers[i].tier == HL_API_TIER_L1 &&
                  strncmp(s->tiers[i].device, info.kind, strlen(info.kind)) == 0;
    snprintf(t->device, sizeof(t->device), "%s:%d", info.kind, number);
    t->numa = info.numa;
    hl_status st = find_nic(s, machine, info.numa, &t->nic);
    struct hl_plank_options plank = s->opts.plank;
    plank.lanes = (unsigned)s->opts.copies;
    plank.device = t->memory;
    if (st == HL_OK)
        st = hl_plank_create(&plank, &t->plank);
    if (st == HL_OK)
        st = hl_tier_over_device(t->memory, t->device, &s->opts.limits, &t->t);
    if (st == HL_OK)
        st = hl_tier_over_device(t->memory, t->device, &s->opts.limits, &t->kept);
    if (st != HL_OK) {
        hl_tier_close(t->t);
        hl_plank_destroy(t->plank);
        hl_device_close(t->memory);
        return st;
    }
    /* Our UCX only handles host memory: what it can't address goes through the plank. */
    t->direct = info.nic_direct && strcmp(info.kind, "emu") == 0;
    t->bounded = info.bounded;
    s->tier_count++;
    hl_info("L1 open device=%s spec=%s bytes=%llu backing=\"%s\" numa=%d nic=%s direct=%d",
            t->device, spec, (unsigned long long)info.capacity, info.backing, info.numa,
            hl_nic_class_name(t->nic), t->direct);
    if (!t->bounded && s->opts.l1_keep > 0)
        hl_info("reads leave no copies in %s: --devices %s does not limit the bytes that the store "
                "may use there",
                t->device, spec);
    return HL_OK;
}

hl_status store_devices_open(struct store *s, const struct hl_api_slot_list *machine)
{
    char *save = NULL;
    if (s->opts.devices[0] == '\0')
        return HL_OK;
    if (s->pool == NULL)
        return hl_fail(HL_EINVAL, "--devices needs --l2-size: device memory is reached through "
                                  "host memory");
    HL_AUTO(hl_freep) char *list = strdup(s->opts.devices);
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of devices");
    for (char *spec = strtok_r(list, ",", &save); spec != NULL; spec = strtok_r(NULL, ",", &save))
        HL_TRY(open_device(s, spec + strspn(spec, " "), machine));
    return HL_OK;
}

void store_devices_close(struct store *s)
{
    for (size_t i = 0; i < s->tier_count; i++) {
        hl_plank_destroy(s->tiers[i].plank);
        hl_device_close(s->tiers[i].memory);
    }
}
