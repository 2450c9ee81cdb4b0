/* The options of devices. */
#include "conf/options.h"
#include "mem/device/device.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_device_options, field)
static const struct hl_option device_options[] = {
    {"device.cuda_driver", "--cuda-driver", "",
     "CUDA driver library; empty for libcuda.so.1.",
     HL_OPT_PATH, 0, 0, NULL, AT(cuda_driver)},
};
/* clang-format on */

const struct hl_option_rows hl_device_rows = HL_OPTION_ROWS(device_options);
