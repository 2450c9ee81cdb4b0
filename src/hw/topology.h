/* hw/topology.h - the slots of a machine, from hwloc: this machine or an XML file of another.
 *
 * A slot is a NUMA node that has its own CPUs. GPU memory (Power9's nodes 250..255), HBM and CXL
 * nodes are not slots. A device belongs to the closest slot; if several are equally close, to the
 * first of them.
 *
 * Owns:    nothing; the result is the caller's (hl_topo_fini).
 * Threads: any.
 * Errors:  HL_ENOENT, HL_EIO for the file; HL_EINVAL for a file that is not hwloc XML of version 1
 *          or 2, or has no slot; HL_EUNSUPPORTED for version 3.
 * Units:   bytes.
 * Limits:  files of 64 MiB.
 */
#ifndef HL_HW_TOPOLOGY_H
#define HL_HW_TOPOLOGY_H

#include "core/planner/topo.h"

hl_status hl_topology_load_xml(const char *path, struct hl_topo *out) HL_CHECK;
/* Only the CPUs that this process may run on. */
hl_status hl_topology_load_machine(struct hl_topo *out) HL_CHECK;

#endif
