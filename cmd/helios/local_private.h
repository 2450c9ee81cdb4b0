/* Shared by local.c and local_gangs.c. */
#ifndef HELIOS_LOCAL_PRIVATE_H
#define HELIOS_LOCAL_PRIVATE_H

#include "helios/local.h"

/* pidfd of a daemon of cluster.json, -1 when it has ended. */
int local_daemon_open(const json_t *entry);

/* Cancel what the cluster runs on Kubernetes and wait for its end. HL_ETIMEDOUT: it did not come.
 */
hl_status local_end_gangs(struct hl_rpc *rpc, const json_t *doc) HL_CHECK;

#endif
