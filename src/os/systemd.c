#include "os/systemd.h"

#include <unistd.h>

int hl_systemd_booted(void)
{
    return access("/run/systemd/system", F_OK) == 0;
}
