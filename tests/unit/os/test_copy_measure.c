#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "os/copy_measure.h"

TEST(the_measurement_chooses_a_kernel_of_each_kind)
{
    struct hl_copy_choice c;
    assert_true(hl_copy_measure_now(&c));
    for (int sums = 0; sums < 2; sums++) {
        assert_int_equal(c.small[sums]->sums, sums);
        assert_int_equal(c.large[sums]->sums, sums);
    }
}

TEST(a_kept_choice_is_read_back)
{
    const struct hl_copy_kernel *all[HL_COPY_KERNELS_MAX];
    size_t count = hl_copy_kernels(all);
    struct hl_copy_choice c, back;
    for (size_t i = 0; i < count; i++) {
        c = hl_copy_chosen();
        c.large[all[i]->sums] = all[i];
        HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(512);
        assert_int_equal(hl_copy_choice_format(&c, &text), HL_OK);
        assert_int_equal(hl_copy_choice_parse(text.data, &back), HL_OK);
        assert_memory_equal(&c, &back, sizeof(c));
    }
}

/* From another boot, truncated, or with a kernel that this processor lacks. */
TEST(what_is_not_a_choice_of_this_host_is_refused)
{
    struct hl_copy_choice c = hl_copy_chosen(), out;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(512);
    assert_int_equal(hl_copy_choice_format(&c, &text), HL_OK);
    const char *line = strchr(text.data, '\n') + 1;
    for (size_t cut = 0; cut < text.len; cut++) {
        char part[512];
        memcpy(part, text.data, cut);
        part[cut] = '\0';
        assert_int_equal(hl_copy_choice_parse(part, &out), HL_EINVAL);
    }
    char wrong[512];
    snprintf(wrong, sizeof(wrong), "%.*sfold512-stream memcpy memcpy memcpy\n",
             (int)(line - text.data), text.data);
    assert_int_equal(hl_copy_choice_parse(wrong, &out), HL_EINVAL);
    text.data[sizeof("helios-copy 1 ")] ^= 1;
    assert_int_equal(hl_copy_choice_parse(text.data, &out), HL_EINVAL);
}
