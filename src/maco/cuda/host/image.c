/* The compiled GPU kernels, embedded in the library, or the reason why there are none. */
#include "maco/cuda/host/context.h"

#ifdef HL_FATBIN

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".hidden hl_maco_fatbin\n"
        ".global hl_maco_fatbin\n"
        "hl_maco_fatbin:\n"
        ".incbin \"" HL_FATBIN "\"\n"
        ".hidden hl_maco_fatbin_end\n"
        ".global hl_maco_fatbin_end\n"
        "hl_maco_fatbin_end:\n"
        ".byte 0\n"
        ".popsection\n");

extern const char hl_maco_fatbin[], hl_maco_fatbin_end[];

hl_status hl_maco_cuda_image(const void **image, size_t *size)
{
    *image = hl_maco_fatbin;
    *size = (size_t)(hl_maco_fatbin_end - hl_maco_fatbin);
    return HL_OK;
}

#else

hl_status hl_maco_cuda_image(const void **image, size_t *size)
{
    (void)image;
    (void)size;
    return hl_fail(HL_EUNSUPPORTED, "this libhelios has no GPU kernels: " HL_NO_FATBIN
                                    "; the CPU's runtime (maco_runtime_open) runs the same plans");
}

#endif
