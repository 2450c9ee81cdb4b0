/* Answers of an S3 store, of any bytes, read as the archive reads them: a tree of elements, its
 * texts encoded for a query, and errors. Exactly as long as the input, so that a read behind it is
 * seen. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "mem/archive/s3.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

static void encode(const char *text)
{
    static char encoded[3 * 1024 + 1];
    if (!s3_encode(text, encoded, sizeof(encoded)))
        return;
    check(strlen(encoded) <= 3 * strlen(text));
    check(strspn(encoded, "%-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") ==
          strlen(encoded));
}

static void walk(const struct s3_node *node, int depth)
{
    check(depth <= 16 && node->name[0] != '\0');
    encode(node->text);
    check(node->child == NULL || node->text[0] == '\0');
    for (const struct s3_node *child = node->child; child != NULL; child = child->next)
        walk(child, depth + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_arena arena = {0};
    struct s3_node *root = NULL;
    char code[8] = "", message[64] = "";
    char *copy = malloc(size + (size == 0));
    check(copy != NULL);
    memcpy(copy, data, size);
    if (s3_xml_parse(copy, size, &arena, &root) == HL_OK) {
        walk(root, 1);
        (void)s3_node_text(root, "Key");
    } else {
        check(root == NULL);
    }
    hl_arena_fini(&arena);
    struct hl_buf text = HL_BUF(SIZE_MAX);
    if (size > 0 && hl_buf_append(&text, copy, size) == HL_OK)
        check(s3_error_of(&text, code, sizeof(code), message, sizeof(message)) || code[0] == '\0');
    hl_buf_fini(&text);
    free(copy);
    return 0;
}
