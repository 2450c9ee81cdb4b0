#include "hybridps/manager/usage.h"

size_t hl_manager_usage(const struct hl_manager_table *t, uint32_t device,
                        struct hl_manager_use *out, size_t max)
{
    size_t n = 0;
    for (uint32_t row = 0; row < HL_MANAGER_PROCESSES && n < max; row++) {
        pid_t pid = __atomic_load_n(&t->s->processes[row].pid, __ATOMIC_ACQUIRE);
        if (pid == 0 || row == t->row)
            continue;
        out[n++] = (struct hl_manager_use){
            .pid = pid,
            .bytes = __atomic_load_n(&t->s->device[device].rows[row], __ATOMIC_RELAXED)};
    }
    return n;
}
