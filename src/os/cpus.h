/* os/cpus.h - how many processors this process may keep busy.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none: anything that the kernel does not tell counts as no limit.
 * Units:   processors.
 * Limits:  none.
 */
#ifndef HL_OS_CPUS_H
#define HL_OS_CPUS_H

/* The smaller of the affinity mask and the control group's quota, rounded up; at least 1. */
unsigned hl_cpus_usable(void);
/* Parses cgroup v2's cpu.max: "150000 100000" is 2; "max 100000" and any other text is 0, no limit.
 * For v1, pass the two files' numbers in that order; -1 is no limit. */
unsigned hl_cpus_quota(const char *text);

#endif
