/* Names. The longest is a pod's, "helios-JOB-aATTEMPT-cFIRST-REPLICA", which Volcano builds from
 * Job, task and replica: it must be a DNS label of at most 63 bytes. */
#include <stdio.h>
#include <string.h>

#include "base/crc32.h"
#include "volcano/gang.h"

#define ID_MAX 36 /* what remains for the job's id */

/* Keeps lower-case letters, digits and '-'. A checksum distinguishes ids that had to be changed or
 * shortened. */
static void clean_id(const char *id, char out[ID_MAX + 1])
{
    size_t n = strlen(id), i;
    bool same = n <= ID_MAX;
    for (i = 0; i < n && i < ID_MAX; i++) {
        bool ok = (id[i] >= 'a' && id[i] <= 'z') || (id[i] >= '0' && id[i] <= '9') || id[i] == '-';
        out[i] = ok ? id[i] : '-';
        same &= ok;
    }
    out[i] = '\0';
    if (!same) {
        size_t keep = i < ID_MAX - 9 ? i : ID_MAX - 9;
        snprintf(out + keep, 10, "-%08x", hl_crc32(0, id, n));
    }
}

void hl_volcano_job_name(const char *job_id, int attempt, char *out)
{
    char id[ID_MAX + 1];
    clean_id(job_id, id);
    snprintf(out, HL_VOLCANO_NAME_MAX, "helios-%s-a%d", id, attempt);
}

void hl_volcano_pod_name(const char *job_id, int attempt, int first, int replica, char *out)
{
    char job[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(job_id, attempt, job);
    snprintf(out, HL_VOLCANO_NAME_MAX, "%.50s-c%d-%d", job, first, replica);
}

void hl_volcano_map_name(const char *job_id, int attempt, char *out, size_t cap)
{
    char job[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(job_id, attempt, job);
    snprintf(out, cap, "rings-config-%s", job);
}

void hl_volcano_rank_name(int local_rank, char *out)
{
    snprintf(out, HL_VOLCANO_NAME_MAX, "local-%d", local_rank);
}
