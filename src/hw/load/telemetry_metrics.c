/* A reading as families of /metrics. Containers are summed up, because their names contain job
 * names. */
#include <inttypes.h>
#include <string.h>

#include "base/plane.h"
#include "hw/load/telemetry.h"

static void slot_families(const struct hl_api_slot_load_list *slots, struct hl_buf *out)
{
    hl_metric_family(out, "helios_slot_cpu_busy_ratio", "gauge",
                     "Busy share of the processors of a slot.");
    for (size_t i = 0; i < slots->count; i++)
        (void)!hl_buf_printf(out, "helios_slot_cpu_busy_ratio{slot=\"%d\"} %.4f\n",
                             slots->items[i].numa_id, slots->items[i].cpu_busy_percent / 100);
    hl_metric_family(out, "helios_slot_memory_free_bytes", "gauge",
                     "Free memory of the slot's NUMA node.");
    for (size_t i = 0; i < slots->count; i++)
        if (slots->items[i].memory_total_bytes > 0)
            (void)!hl_buf_printf(out, "helios_slot_memory_free_bytes{slot=\"%d\"} %" PRIu64 "\n",
                                 slots->items[i].numa_id, slots->items[i].memory_free_bytes);
}

#define GPU_FAMILY(family, type, help, format, value)                                              \
    hl_metric_family(out, family, type, help);                                                     \
    for (size_t i = 0; i < gpus->count; i++) {                                                     \
        const struct hl_api_gpu_load *gpu = &gpus->items[i];                                       \
        (void)!hl_buf_printf(out, family "{gpu=\"%s\"} " format "\n",                              \
                             hl_metric_label(gpu->id, label, sizeof(label)), value);               \
    }

static void gpu_families(const struct hl_api_gpu_load_list *gpus, struct hl_buf *out)
{
    char label[128];
    GPU_FAMILY("helios_gpu_busy_ratio", "gauge", "Busy share of a GPU.", "%.4f",
               gpu->busy_percent / 100)
    GPU_FAMILY("helios_gpu_memory_used_bytes", "gauge", "Device memory in use.", "%" PRIu64,
               gpu->memory_used_bytes)
    GPU_FAMILY("helios_gpu_temperature_celsius", "gauge", "Temperature of a GPU.", "%d",
               gpu->temperature_celsius)
    GPU_FAMILY("helios_gpu_power_watts", "gauge", "Power that a GPU draws.", "%.1f",
               gpu->power_watts)
    GPU_FAMILY("helios_gpu_ecc_errors_total", "counter",
               "Uncorrected memory errors since the driver was loaded.", "%" PRIu64,
               gpu->ecc_errors)
}

#define NIC_FAMILY(family, help, value)                                                            \
    hl_metric_family(out, family, "counter", help);                                                \
    for (size_t i = 0; i < nics->count; i++)                                                       \
        (void)!hl_buf_printf(out, family "{port=\"%s\",kind=\"%s\"} %" PRIu64 "\n",                \
                             hl_metric_label(nics->items[i].name, label, sizeof(label)),           \
                             nics->items[i].kind, nics->items[i].value);

static void nic_families(const struct hl_api_nic_load_list *nics, struct hl_buf *out)
{
    char label[128];
    NIC_FAMILY("helios_port_received_bytes_total", "Bytes that a network port received.", rx_bytes)
    NIC_FAMILY("helios_port_sent_bytes_total", "Bytes that a network port sent.", tx_bytes)
    NIC_FAMILY("helios_port_errors_total", "Errors of a network port.", errors)
}

hl_status hl_telemetry_gauges(const struct hl_api_telemetry *t, struct hl_buf *out)
{
    uint64_t memory = 0;
    double cpu = 0;
    for (size_t i = 0; i < t->containers.count; i++) {
        memory += t->containers.items[i].memory_bytes;
        cpu += t->containers.items[i].cpu_percent;
    }
    slot_families(&t->slots, out);
    if (t->gpus.count > 0)
        gpu_families(&t->gpus, out);
    if (t->nics.count > 0)
        nic_families(&t->nics, out);
    hl_metric_family(out, "helios_containers_memory_bytes", "gauge",
                     "Memory of all running containers.");
    (void)!hl_buf_printf(out, "helios_containers_memory_bytes %" PRIu64 "\n", memory);
    hl_metric_family(out, "helios_containers_cpus", "gauge",
                     "Processors that all running containers keep busy.");
    (void)!hl_buf_printf(out, "helios_containers_cpus %.3f\n", cpu / 100);
    hl_metric_family(out, "helios_node_troubles", "gauge",
                     "Reasons to start nothing on this node; `helios nodes` shows them.");
    (void)!hl_buf_printf(out, "helios_node_troubles %zu\n", t->troubles.count);
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory writing metrics") : HL_OK;
}
