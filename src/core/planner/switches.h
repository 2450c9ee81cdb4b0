/* core/planner/switches.h - reads which switch each node is attached to, from a file in the format
 * of Slurm's topology.conf.
 *
 *     SwitchName=leaf-0  Nodes=node-[0-15]
 *     SwitchName=leaf-1  Nodes=node-[16-30],big
 *     SwitchName=spine-0 Switches=leaf-[0-1]
 *
 * A switch with nodes is a leaf; the switch above it is its spine. Switches above the spine are
 * read but not used. '#' begins a comment, LinkSpeed is ignored, keys are case-insensitive, and a
 * backslash at the end continues a line.
 *
 * Owns:    the names; end with hl_switches_fini.
 * Threads: one at a time. Pure.
 * Errors:  HL_EINVAL: FILE:LINE and what is wrong.
 * Units:   none.
 * Limits:  names of 127 bytes, HL_SWITCHES_NAMES_MAX nodes and switches.
 */
#ifndef HL_CORE_PLANNER_SWITCHES_H
#define HL_CORE_PLANNER_SWITCHES_H

#include <uthash.h>

#include "base/status.h"
#include "core/planner/cluster.h"

#define HL_SWITCHES_NAMES_MAX 65536

/* A node or a switch, and the switch above it. */
struct hl_switch_entry {
    char name[HL_SWITCH_NAME_MAX + 1];
    char above[HL_SWITCH_NAME_MAX + 1];
    UT_hash_handle hh;
};

/* Zero-initialise. */
struct hl_switches {
    struct hl_switch_entry *nodes, *switches;
};

/* name: of the file, for messages. *out is overwritten on success only. */
hl_status hl_switches_parse(const char *text, const char *name, struct hl_switches *out) HL_CHECK;
void hl_switches_fini(struct hl_switches *s);
/* The results are borrowed; *spine is "" if the leaf has none. False: the file doesn't name the
 * node. */
bool hl_switches_find(const struct hl_switches *s, const char *node, const char **leaf,
                      const char **spine);

#endif
