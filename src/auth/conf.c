/* The options of auth/conf.h. */
#include "auth/conf.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_auth_conf, field)
static const struct hl_option auth_options[] = {
    {"auth.secret_file", "--auth-secret-file", "",
     "File with the cluster's secret (16 bytes or more, mode 0600), the same on all hosts; every "
     "TCP protocol then requires it from its peers. Empty: no secret, or the one that `helios up` "
     "makes; `none`: no secret in any case.",
     HL_OPT_PATH, 0, 0, NULL, AT(secret_file)},
};
/* clang-format on */

const struct hl_option_rows hl_auth_rows = HL_OPTION_ROWS(auth_options);
