/* conf/conf_private.h - what tests change.
 *
 * Threads: one at a time.
 */
#ifndef HL_CONF_CONF_PRIVATE_H
#define HL_CONF_CONF_PRIVATE_H

#include "conf/conf.h"

/* The file that every program reads unless another is given; tests set another path here. */
extern const char *hl_conf_system_file;
/* The --help text; caller frees. NULL when out of memory. */
char *hl_conf_help(const struct hl_conf *conf);

#endif
