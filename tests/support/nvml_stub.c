/* libnvidia-ml whose GPUs come from a file, one a line:
 *
 *     BUS_ID UUID BUSY_PERCENT MEMORY_USED_MIB     or    BUS_ID lost
 *
 * The file is $NVML_STUB, read at each call, so that a test can change the machine. The functions
 * have the ABI of NVIDIA's nvml.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS_MAX 8

enum {
    SUCCESS = 0,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15
};

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned gpu, memory;
} nvmlUtilization_t;

typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

struct gpu {
    char bus_id[32], uuid[96];
    unsigned busy, used_mib;
};

typedef struct gpu *nvmlDevice_t;

static struct gpu gpus[GPUS_MAX];
static int initialized;

static int gpus_read(void)
{
    const char *path = getenv("NVML_STUB");
    FILE *f = path != NULL ? fopen(path, "re") : NULL;
    int n = 0;
    if (f == NULL)
        return -1;
    for (char line[256]; n < GPUS_MAX && fgets(line, sizeof(line), f) != NULL; n++) {
        gpus[n] = (struct gpu){.busy = 0};
        if (sscanf(line, "%31s %95s %u %u", gpus[n].bus_id, gpus[n].uuid, &gpus[n].busy,
                   &gpus[n].used_mib) < 2)
            break;
    }
    fclose(f);
    return n;
}

#pragma GCC visibility push(default)
int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int rc);
int nvmlDeviceGetCount_v2(unsigned *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out);
int nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned size);
int nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size);
int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *out);
int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *out);
int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *out);
int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *out);
int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts);
int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *out);
#pragma GCC visibility pop

int nvmlInit_v2(void)
{
    initialized = gpus_read() >= 0;
    return initialized ? SUCCESS : DRIVER_NOT_LOADED;
}

int nvmlShutdown(void)
{
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int rc)
{
    return rc == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Unknown Error";
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    int n = gpus_read();
    if (!initialized || n < 0)
        return DRIVER_NOT_LOADED;
    *count = (unsigned)n;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *out)
{
    if (index >= GPUS_MAX)
        return INVALID_ARGUMENT;
    if (strcmp(gpus[index].uuid, "lost") == 0)
        return GPU_IS_LOST;
    *out = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(nvmlDevice_t d, char *out, unsigned size)
{
    snprintf(out, size, "%s", d->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(nvmlDevice_t d, char *out, unsigned size)
{
    (void)d;
    snprintf(out, size, "Stand-in V100");
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(nvmlDevice_t d, nvmlPciInfo_t *out)
{
    snprintf(out->busId, sizeof(out->busId), "%s", d->bus_id);
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *out)
{
    *out = (nvmlUtilization_t){d->busy, 0};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(nvmlDevice_t d, nvmlMemory_t *out)
{
    unsigned long long used = (unsigned long long)d->used_mib << 20, total = 16ull << 30;
    *out = (nvmlMemory_t){total, total - used, used};
    return SUCCESS;
}

int nvmlDeviceGetTemperature(nvmlDevice_t d, int sensor, unsigned *out)
{
    (void)d;
    *out = 61;
    return sensor == 0 ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetPowerUsage(nvmlDevice_t d, unsigned *milliwatts)
{
    (void)d;
    *milliwatts = 250500;
    return SUCCESS;
}

int nvmlDeviceGetTotalEccErrors(nvmlDevice_t d, int type, int counter, unsigned long long *out)
{
    (void)d;
    (void)type;
    (void)counter;
    (void)out;
    return NOT_SUPPORTED;
}
