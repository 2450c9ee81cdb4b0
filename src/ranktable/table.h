/* ranktable/table.h - which rank has which device, and the file that collective libraries read.
 *
 * An instance is a pod or a container: several devices on one server. Instances are sorted by their
 * rank index, and ranks count through their devices. The ranks do not depend on the order in which
 * instances were added. Instances on one server share one entry (formats v2, 1.2), as HCCL
 * requires; in v1 each has its own. Formats: hccl-controller's user guide, appendix 1 (v1); HCCL's
 * "rank table" chapters (the others).
 *
 * Owns:    the table owns what was added, except borrowed devices; documents belong to the caller.
 * Threads: one at a time. Pure.
 * Errors:  HL_EINVAL names instance and device; HL_EUNSUPPORTED: the format needs something that an
 *          instance lacks; HL_ENOMEM.
 * Units:   none.
 * Limits:  rank indices 0 to 10000; 64 devices per instance; documents of HL_RANKTABLE_TEXT_MAX.
 */
#ifndef HL_RANKTABLE_TABLE_H
#define HL_RANKTABLE_TABLE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define HL_RANKTABLE_NAME_MAX    254 /* of a pod's name, with the NUL */
#define HL_RANKTABLE_DEVICES_MAX 64
#define HL_RANKTABLE_INDEX_MAX   10000
#define HL_RANKTABLE_TEXT_MAX    ((size_t)256 << 20)

enum hl_ranktable_format {
    HL_RANKTABLE_V1,  /* group_list */
    HL_RANKTABLE_V2,  /* server_list, version "1.0" */
    HL_RANKTABLE_1_2, /* server_list and super_pod_list */
    HL_RANKTABLE_2_0, /* rank_list with net layers */
};

struct hl_ranktable_device {
    char id[12]; /* decimal */
    char ip[46]; /* IPv4 or IPv6; "" = not known, which is allowed on one server */
    char super_id[24];
    json_t *levels; /* an array, for 2.0; NULL = not known */
};

struct hl_ranktable_instance {
    char name[HL_RANKTABLE_NAME_MAX];
    char server_id[64];
    char host_ip[46], container_ip[46], hardware_type[32], super_pod_id[64]; /* "" = not known */
    uint32_t group;
    uint32_t place;     /* in its group */
    int32_t rank_index; /* requested, or -1: hl_ranktable_number sets the lowest free one */
    struct hl_ranktable_device *devices;
    size_t device_count;
    bool is_borrowed;       /* the devices belong to another table */
    size_t without_address; /* first such device, from 1; hl_ranktable_check_devices sets it */
    int first_rank;         /* rank of its first device; hl_ranktable_number sets it */
};

struct hl_ranktable_group {
    char name[64];
    uint32_t instances; /* how many it has when it is complete */
};

/* Zero-initialise. */
struct hl_ranktable {
    struct hl_ranktable_group *groups;
    size_t group_count;
    struct hl_ranktable_instance *instances;
    size_t count, cap;
    uint32_t super_pod_servers; /* if instances don't name their super pod; 0 = one for all */
};

void hl_ranktable_fini(struct hl_ranktable *t);
hl_status hl_ranktable_format_parse(const char *name, enum hl_ranktable_format *out) HL_CHECK;
hl_status hl_ranktable_add_group(struct hl_ranktable *t, const char *name,
                                 uint32_t instances) HL_CHECK;
/* Checks that device ids are numbers and unique, and that addresses are valid. */
hl_status hl_ranktable_check_devices(struct hl_ranktable_instance *i) HL_CHECK;
/* Checks *i and takes it: it is empty afterwards, also on failure. */
hl_status hl_ranktable_add(struct hl_ranktable *t, struct hl_ranktable_instance *i) HL_CHECK;
/* Adds a copy of `from` in this place. The devices still belong to the lender, who has checked
 * them. */
hl_status hl_ranktable_borrow(struct hl_ranktable *t, const struct hl_ranktable_instance *from,
                              uint32_t group, uint32_t place, int32_t rank_index) HL_CHECK;
void hl_ranktable_instance_fini(struct hl_ranktable_instance *i);

/* Whether every group has as many instances as it should. */
bool hl_ranktable_is_complete(const struct hl_ranktable *t);
/* Gives every instance a rank index and every device a rank. HL_EINVAL: two instances have the same
 * index or the same device of a server, or a device lacks an address in a table of several
 * servers. */
hl_status hl_ranktable_number(struct hl_ranktable *t) HL_CHECK;
/* After numbering: writes the table as JSON to `out`, which must be empty and large enough. It says
 * "completed", or "initializing" with the instances so far. */
hl_status hl_ranktable_document(const struct hl_ranktable *t, enum hl_ranktable_format format,
                                struct hl_buf *out) HL_CHECK;

#endif
