/* The options of an archive. */
#include "conf/options.h"
#include "mem/archive/archive.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_archive_options, field)
static const struct hl_option archive_options[] = {
    {"archive.url", "--archive", "",
     "Archive beneath the pool (L4): dir:PATH or s3://BUCKET/PREFIX; empty for none.",
     HL_OPT_STRING, 0, 0, NULL, AT(url)},
    {"archive.quota", "--archive-quota", "0",
     "Bytes that the archive can hold; 0 for the capacity of its medium.",
     HL_OPT_BYTES, 0, 0, NULL, AT(quota_bytes)},
    {"archive.s3_endpoint", "--archive-s3-endpoint", "",
     "Address of the S3 store, http://HOST:PORT or https://HOST; empty for AWS in the region.",
     HL_OPT_STRING, 0, 0, NULL, AT(s3_endpoint)},
    {"archive.s3_region", "--archive-s3-region", "us-east-1",
     "Region that S3 requests are signed for.",
     HL_OPT_STRING, 0, 0, NULL, AT(s3_region)},
    {"archive.s3_credentials", "--archive-s3-credentials", "",
     "File with aws_access_key_id and aws_secret_access_key; empty for the variables "
     "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN.",
     HL_OPT_PATH, 0, 0, NULL, AT(s3_credentials)},
    {"archive.s3_part", "--archive-s3-part", "64MiB",
     "Larger shards are sent to S3 in parts of this many bytes.",
     HL_OPT_BYTES, 5 * HL_OPTION_MIB, 5120 * HL_OPTION_MIB, NULL, AT(s3_part)},
    {"archive.s3_timeout", "--archive-s3-timeout", "30s",
     "An S3 transfer that moves no byte for this long has failed; other failures are retried for "
     "this long.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(timeout_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_archive_rows = HL_OPTION_ROWS(archive_options);
