/* Devices of a container: GPUs by UUID, read from the driver's own files, and verbs devices.
 * Indices are never used, because CUDA's order differs from the bus's, and a missing card shifts
 * the rest. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "hw/engine/engine.h"
#include "os/file.h"

/* "GPU UUID: \t GPU-1f2e..." */
static bool take_field(const char *text, const char *name, char *out, size_t size)
{
    const char *at = strstr(text, name);
    if (at == NULL)
        return false;
    at += strlen(name);
    at += strspn(at, ": \t");
    size_t len = strcspn(at, " \t\r\n");
    if (len == 0 || len >= size)
        return false;
    memcpy(out, at, len);
    out[len] = '\0';
    return true;
}

static void add_note(struct hl_engine_devices *d, const char *what, const char *name)
{
    size_t n = strlen(d->note);
    snprintf(d->note + n, sizeof(d->note) - n, "%s%s %.64s is not on this machine",
             n > 0 ? "; " : "", what, name);
}

hl_status hl_engine_read_gpu(const char *root, const char *pci, struct hl_engine_gpu *out)
{
    char path[512], minor[16];
    uint64_t number;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(16384);
    snprintf(path, sizeof(path), "%s/%.32s/information", root, pci);
    HL_TRY(hl_file_read(path, &text));
    snprintf(out->pci, sizeof(out->pci), "%.31s", pci);
    if (text.len == 0 || !take_field(text.data, "GPU UUID", out->uuid, sizeof(out->uuid)) ||
        strncmp(out->uuid, "GPU-", 4) != 0 || strchr(out->uuid, '?') != NULL)
        return hl_fail(HL_EINVAL,
                       "%s reports no UUID of the GPU; restart the driver (nvidia-persistenced)",
                       path);
    out->minor = take_field(text.data, "Device Minor", minor, sizeof(minor)) &&
                         hl_parse_number(minor, 1023, &number)
                     ? (int)number
                     : -1;
    return HL_OK;
}

static hl_status add_gpu(const char *root, const char *pci, bool foreign,
                         struct hl_engine_devices *d)
{
    struct hl_engine_gpu gpu = {0};
    hl_status st = hl_engine_read_gpu(root, pci, &gpu);
    if (st == HL_ENOENT && foreign) {
        add_note(d, "GPU", pci);
        return HL_OK;
    }
    if (st == HL_ENOENT)
        return hl_fail(
            HL_ENOENT,
            "GPU %.32s is not known to the NVIDIA driver of this node (%s): it has left the bus, "
            "or is from another vendor; check it with nvidia-smi and lspci, and restart the Agent",
            pci, root);
    HL_TRY(st);
    if (d->way == HL_ENGINE_GPUS_PLAIN && gpu.minor < 0)
        return hl_fail(HL_EINVAL, "GPU %.32s: the driver reports no number of its device file",
                       pci);
    for (size_t i = 0; i < d->gpu_count; i++)
        if (strcmp(d->gpus[i].uuid, gpu.uuid) == 0)
            return hl_fail(HL_EINVAL,
                           "GPUs %.31s and %.31s both report that they are %s: no container can be "
                           "given only one of them",
                           d->gpus[i].pci, gpu.pci, gpu.uuid);
    d->gpus[d->gpu_count++] = gpu;
    return HL_OK;
}

hl_status hl_engine_find_gpus(const char *root, const struct hl_container_spec *spec, bool foreign,
                              struct hl_engine_devices *io)
{
    if (spec->gpu_count > HL_ENGINE_DEVICES_MAX)
        return hl_fail(HL_EINVAL, "container %s has %zu GPUs, at most %d", spec->id,
                       spec->gpu_count, HL_ENGINE_DEVICES_MAX);
    for (size_t i = 0; i < spec->gpu_count; i++)
        HL_TRY(add_gpu(root, spec->gpus[i], foreign, io));
    return HL_OK;
}

/* /sys/class/infiniband/mlx5_0/device/infiniband_verbs/uverbs0 */
static bool verbs_of(const char *root, const char *nic, char *out, size_t size)
{
    char path[512];
    bool found = false;
    snprintf(path, sizeof(path), "%s/%.64s/device/infiniband_verbs", root, nic);
    DIR *dir = opendir(path);
    if (dir == NULL)
        return false;
    for (struct dirent *d; !found && (d = readdir(dir)) != NULL;)
        if (strncmp(d->d_name, "uverbs", 6) == 0 && strlen(d->d_name) < size) {
            snprintf(out, size, "%s", d->d_name);
            found = true;
        }
    closedir(dir);
    return found;
}

void hl_engine_find_verbs(const char *root, const struct hl_container_spec *spec,
                          struct hl_engine_devices *io)
{
    for (size_t i = 0; i < spec->nic_count && io->verbs_count < HL_ENGINE_DEVICES_MAX; i++) {
        if (verbs_of(root, spec->nics[i], io->verbs[io->verbs_count],
                     sizeof(io->verbs[io->verbs_count])))
            io->verbs_count++;
        else
            add_note(io, "RDMA device", spec->nics[i]);
    }
}
