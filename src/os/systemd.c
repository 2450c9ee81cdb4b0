#include "os/systemd.h"

#include <unistd.h>

bool hl_systemd_booted(void)
{
    return access("/run/systemd/system", F_OK) == 0;
}
