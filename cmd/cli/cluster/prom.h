/* cmd/cli/cluster/prom.h - parses the Prometheus text of daemons.
 *
 * Owns:    a prom owns its samples; end with prom_fini.
 * Threads: one.
 * Errors:  HL_EPROTO for a malformed line, HL_ENOMEM.
 * Units:   as the metrics.
 * Limits:  PROM_LABELS labels of a sample.
 */
#ifndef HL_CMD_CLI_CLUSTER_PROM_H
#define HL_CMD_CLI_CLUSTER_PROM_H

#include <stddef.h>

#include "base/status.h"

#define PROM_LABELS 8

struct prom_sample {
    const char *name;
    const char *key[PROM_LABELS], *word[PROM_LABELS];
    size_t labels;
    double value;
};

struct prom {
    char *text; /* split in place; the samples point into it */
    struct prom_sample *samples;
    size_t count, cap;
};

hl_status prom_read(const char *text, struct prom *out) HL_CHECK;
void prom_fini(struct prom *p);
/* The value of a label; "" if there is none. */
const char *prom_label(const struct prom_sample *s, const char *key);
/* The sample with that name whose labels key1 (and key2, which can be NULL) have these values;
 * `absent` if there is none. */
double prom_find(const struct prom *p, const char *name, const char *key1, const char *word1,
                 const char *key2, const char *word2, double absent);

#endif
