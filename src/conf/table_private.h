/* conf/table_private.h - the rows of the daemons' options. */
#ifndef HL_CONF_TABLE_PRIVATE_H
#define HL_CONF_TABLE_PRIVATE_H

#include "conf/options.h"

extern const struct hl_option hl_conf_table[];
extern const size_t hl_conf_table_count;

#endif
