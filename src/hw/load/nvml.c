#include "hw/load/nvml.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of nvml.h that is needed; the suffixes of the names freeze the ABI. */
enum { NVML_SUCCESS = 0, NVML_DRIVER_NOT_LOADED = 9 };

enum { NVML_TEMPERATURE_GPU = 0, NVML_UNCORRECTED = 1, NVML_VOLATILE = 0 };

struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_utilization {
    unsigned gpu, memory;
};

struct nvml_pci { /* v3 */
    char legacy[16];
    unsigned domain, bus, device, pci_device, pci_subsystem;
    char bus_id[32];
};

typedef struct nvml_device *nvml_handle;

/* X(member, symbol, needed, parameters) */
#define NVML_MAP(X)                                                                                \
    X(init, "nvmlInit_v2", 1, (void))                                                              \
    X(shutdown, "nvmlShutdown", 1, (void))                                                         \
    X(count, "nvmlDeviceGetCount_v2", 1, (unsigned *))                                             \
    X(handle, "nvmlDeviceGetHandleByIndex_v2", 1, (unsigned, nvml_handle *))                       \
    X(uuid, "nvmlDeviceGetUUID", 1, (nvml_handle, char *, unsigned))                               \
    X(name, "nvmlDeviceGetName", 1, (nvml_handle, char *, unsigned))                               \
    X(pci, "nvmlDeviceGetPciInfo_v3", 1, (nvml_handle, struct nvml_pci *))                         \
    X(utilization, "nvmlDeviceGetUtilizationRates", 0, (nvml_handle, struct nvml_utilization *))   \
    X(memory, "nvmlDeviceGetMemoryInfo", 0, (nvml_handle, struct nvml_memory *))                   \
    X(temperature, "nvmlDeviceGetTemperature", 0, (nvml_handle, int, unsigned *))                  \
    X(power, "nvmlDeviceGetPowerUsage", 0, (nvml_handle, unsigned *))                              \
    X(ecc, "nvmlDeviceGetTotalEccErrors", 0, (nvml_handle, int, int, unsigned long long *))

struct hl_nvml {
    void *library;
    bool initialized;
    const char *(*text)(int);
#define X(member, symbol, needed, parameters) int(*member) parameters;
    NVML_MAP(X)
#undef X
};

static hl_status nvml_load(struct hl_nvml *n, const char *library)
{
    n->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (n->library == NULL)
        return hl_fail(HL_ENOENT, "no NVIDIA driver library: %s", dlerror());
#define X(member, symbol, needed, parameters)                                                      \
    *(void **)&n->member = dlsym(n->library, symbol);                                              \
    if (needed && n->member == NULL)                                                               \
        return hl_fail(HL_EIO, "%s has no %s: is it from NVML 11 or newer?", library, symbol);
    NVML_MAP(X)
#undef X
    *(void **)&n->text = dlsym(n->library, "nvmlErrorString");
    return HL_OK;
}

static const char *nvml_text(const struct hl_nvml *n, int rc)
{
    const char *text = n->text != NULL ? n->text(rc) : NULL;
    return text != NULL ? text : "an error without a text";
}

hl_status hl_nvml_open(const char *library, struct hl_nvml **out)
{
    struct hl_nvml *n = calloc(1, sizeof(*n));
    if (n == NULL)
        return hl_fail(HL_ENOMEM, "out of memory loading %s", library);
    hl_status st = nvml_load(n, library);
    int rc = st == HL_OK ? n->init() : NVML_SUCCESS;
    n->initialized = st == HL_OK && rc == NVML_SUCCESS;
    if (rc != NVML_SUCCESS)
        st = hl_fail(rc == NVML_DRIVER_NOT_LOADED ? HL_ENOENT : HL_EIO, "%s: %s", library,
                     nvml_text(n, rc));
    if (st != HL_OK) {
        hl_nvml_close(n);
        return st;
    }
    *out = n;
    return HL_OK;
}

/* Converts NVML's "00000000:3B:00.0" to the form of sysfs and hwloc: "0000:3b:00.0". */
static void pci_address(const char *bus_id, char *out, size_t size)
{
    const char *from =
        strlen(bus_id) == 16 && strncmp(bus_id, "0000", 4) == 0 ? bus_id + 4 : bus_id;
    size_t n = 0;
    for (; from[n] != '\0' && n + 1 < size; n++)
        out[n] = (char)tolower((unsigned char)from[n]);
    out[n] = '\0';
}

/* Values that a board does not support stay 0. */
static void gpu_measure(const struct hl_nvml *n, nvml_handle h, struct hl_api_gpu_load *out)
{
    struct nvml_utilization use;
    struct nvml_memory memory;
    unsigned value;
    unsigned long long errors;
    if (n->utilization != NULL && n->utilization(h, &use) == NVML_SUCCESS)
        out->busy_percent = use.gpu;
    if (n->memory != NULL && n->memory(h, &memory) == NVML_SUCCESS) {
        out->memory_total_bytes = memory.total;
        out->memory_used_bytes = memory.used;
    }
    if (n->temperature != NULL && n->temperature(h, NVML_TEMPERATURE_GPU, &value) == NVML_SUCCESS)
        out->temperature_celsius = (int32_t)value;
    if (n->power != NULL && n->power(h, &value) == NVML_SUCCESS)
        out->power_watts = value / 1000.0;
    if (n->ecc != NULL && n->ecc(h, NVML_UNCORRECTED, NVML_VOLATILE, &errors) == NVML_SUCCESS)
        out->ecc_errors = errors;
}

/* False: the GPU does not respond. */
static bool gpu_read(const struct hl_nvml *n, unsigned index, struct hl_arena *arena,
                     struct hl_api_gpu_load *out)
{
    nvml_handle h;
    struct nvml_pci pci = {.legacy = ""};
    char uuid[96] = "", name[96] = "", id[32];
    if (n->handle(index, &h) != NVML_SUCCESS || n->pci(h, &pci) != NVML_SUCCESS ||
        n->uuid(h, uuid, sizeof(uuid)) != NVML_SUCCESS)
        return false;
    (void)n->name(h, name, sizeof(name));
    pci.bus_id[sizeof(pci.bus_id) - 1] = uuid[sizeof(uuid) - 1] = name[sizeof(name) - 1] = '\0';
    pci_address(pci.bus_id, id, sizeof(id));
    *out = (struct hl_api_gpu_load){.id = hl_arena_strdup(arena, id),
                                    .uuid = hl_arena_strdup(arena, uuid),
                                    .name = hl_arena_strdup(arena, name)};
    gpu_measure(n, h, out);
    return true;
}

hl_status hl_nvml_read(struct hl_nvml *n, struct hl_arena *arena, struct hl_api_gpu_load_list *out)
{
    unsigned count = 0;
    struct hl_api_gpu_load_list list = {0};
    int rc = n->count(&count);
    if (rc != NVML_SUCCESS)
        return hl_fail(HL_EIO, "the NVIDIA driver does not count its GPUs: %s", nvml_text(n, rc));
    if (count > HL_NVML_GPUS_MAX)
        count = HL_NVML_GPUS_MAX;
    list.items = hl_arena_array(arena, count, sizeof(*list.items));
    for (unsigned i = 0; i < count && list.items != NULL; i++)
        list.count += gpu_read(n, i, arena, &list.items[list.count]);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing GPUs");
    *out = list;
    return HL_OK;
}

void hl_nvml_close(struct hl_nvml *n)
{
    if (n == NULL)
        return;
    if (n->initialized)
        (void)n->shutdown();
    if (n->library != NULL)
        dlclose(n->library);
    free(n);
}
