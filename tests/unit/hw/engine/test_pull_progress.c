/* The progress of a pull. Docker's output on a terminal was recorded from docker 28.2. */
#include "hw/engine/pull_progress.h"
#include "support/test.h"

#include <stdio.h>
#include <string.h>

static void assert_tells(const struct hl_pull_progress *p, const char *want)
{
    char text[256];
    hl_pull_progress_tell(p, "i:1", text, sizeof(text));
    assert_string_equal(text, want);
}

static void assert_progress(const char *printed, const char *want)
{
    struct hl_pull_progress p = {0};
    hl_pull_progress_take(&p, printed);
    assert_tells(&p, want);
}

#define UP   "\033[1A\033[2K\r"
#define DOWN "\r\033[1B"

TEST(without_a_terminal_layers_are_counted)
{
    assert_progress("", "pulling i:1");
    assert_progress("1: Pulling from x/i\n", "pulling i:1");
    assert_progress("1: Pulling from x/i\na: Pulling fs layer\nb: Pulling fs layer\n"
                    "c: Already exists\na: Verifying Checksum\na: Download complete\n"
                    "a: Pull complete\n",
                    "pulling i:1: 2 of 3 layers, 1 not begun");
    assert_progress("Copying blob sha256:1 done\nCopying blob sha256:2 \n",
                    "pulling i:1: 1 of 2 layers");
    assert_progress("Copying blob 1 \nCopying blob 2 \nCopying blob 1 done\n"
                    "Copying blob 2 skipped: already exists\n",
                    "pulling i:1: 2 of 2 layers");
}

TEST(on_a_terminal_bytes_are_summed_and_a_layer_is_as_its_last_line_says)
{
    struct hl_pull_progress p = {0};
    hl_pull_progress_take(
        &p, "1: Pulling from big\r\n\r\n" UP "11624ec862e4: Pulling fs layer " DOWN "\r\n" UP
            "7a0b: Pulling fs layer " DOWN UP "11624ec862e4: Downloading  544.8kB/62.93MB" DOWN UP
            "11624ec862e4: Downloading  17.86MB/62.93MB" DOWN);
    assert_tells(&p, "pulling i:1: 0 of 2 layers, 17.0 MiB of 60.0 MiB, 1 not begun");
    hl_pull_progress_take(&p, UP "7a0b: Downloading [====>      ]  1.049MB/2.097MB" DOWN UP
                                 "11624ec862e4: Verifying Checksum " DOWN UP
                                 "11624ec862e4: Download complete " DOWN UP
                                 "11624ec862e4: Extracting  557.1kB/62.93MB" DOWN);
    assert_tells(&p, "pulling i:1: 0 of 2 layers, 61.0 MiB of 62.0 MiB");
    hl_pull_progress_take(&p, UP
                          "11624ec862e4: Pull complete " DOWN UP "7a0b: Extracting 3 s" DOWN
                          "Digest: sha256:783adb16\r\nStatus: Downloaded newer image for i:1\r\n");
    assert_tells(&p, "pulling i:1: 1 of 2 layers, 62.0 MiB of 62.0 MiB");
}

/* Only the newest part of a long output is available: it begins and ends anywhere. */
TEST(a_part_that_begins_or_ends_inside_a_line_makes_no_layer_and_no_size)
{
    struct hl_pull_progress p = {0};
    hl_pull_progress_take(&p, "aaaa: Downloading  1MiB/4MiB\r\nbbbb: Downloading  1MiB/4");
    assert_tells(&p, "pulling i:1: 0 of 1 layers, 1.0 MiB of 4.0 MiB");
    hl_pull_progress_take(&p, "aa: Downloading  2MiB/9MiB\r\nbbbb: Downloading  1MiB/4MiB\r\n");
    assert_tells(&p, "pulling i:1: 0 of 2 layers, 2.0 MiB of 8.0 MiB");
}

TEST(foreign_text_is_passed_over)
{
    struct hl_pull_progress p = {0};
    char id[200];
    hl_pull_progress_take(&p, "a: Downloading x/y\n: Waiting\nb Waiting\n\033\033[\n"
                              "c: Downloading 9MB/3MB\nd: Downloading /\n\033[");
    assert_tells(&p, "pulling i:1: 0 of 3 layers, 2.9 MiB of 2.9 MiB");
    memset(id, 'e', sizeof(id));
    memcpy(id + sizeof(id) - 12, ": Waiting\n\0", 12);
    hl_pull_progress_take(&p, id);
    assert_int_equal(p.count, 3);
    for (int i = 0; i < 500; i++) {
        snprintf(id, sizeof(id), "\nf%d: Waiting\n", i);
        hl_pull_progress_take(&p, id);
    }
    assert_int_equal(p.count, HL_PULL_LAYERS_MAX);
}
