/* hybridps_ask TABLE: asks the processes of a node's table of chunks for memory, as an Agent does.
 *
 *     in   DEVICE BYTES    (-1 = host; 0 bytes: they are asked no longer)
 *     out  the bytes that they use there
 */
#include <inttypes.h>
#include <stdio.h>

#include "hybridps/manager/table.h"

int main(int argc, char **argv)
{
    struct hl_manager_table t = {0};
    struct hl_manager_options o = {.name = argc > 1 ? argv[1] : NULL};
    int device;
    uint64_t bytes;
    if (hl_manager_table_open(&o, &t) != HL_OK) {
        fprintf(stderr, "%s\n", hl_error_text());
        return 1;
    }
    while (scanf("%d %" SCNu64, &device, &bytes) == 2 &&
           (uint32_t)(device + 1) < hl_manager_devices(&t)) {
        hl_manager_ask(&t, (uint32_t)(device + 1), bytes);
        printf("%" PRIu64 "\n", __atomic_load_n(&t.s->device[device + 1].used, __ATOMIC_RELAXED));
        fflush(stdout);
    }
    hl_manager_table_close(&t);
    return 0;
}
