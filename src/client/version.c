/* What the ABI reports about itself. */
#include "base/status.h"
#include "helios/helios.h"

const char *helios_version(void)
{
    return HELIOS_VERSION;
}

const char *helios_last_error(void)
{
    return hl_error_text();
}

const char *helios_strerror(int code)
{
    return hl_status_text((hl_status)code);
}
