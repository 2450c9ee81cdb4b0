#include "base/base64.h"

#include <string.h>

static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

hl_status hl_base64_encode(const void *data, size_t len, struct hl_buf *out)
{
    const uint8_t *in = data;
    char *to = hl_buf_room(out, (len + 2) / 3 * 4);
    if (to == NULL)
        return HL_ENOMEM;
    for (size_t i = 0; i < len; i += 3) {
        uint32_t group = (uint32_t)in[i] << 16;
        if (i + 1 < len)
            group |= (uint32_t)in[i + 1] << 8;
        if (i + 2 < len)
            group |= in[i + 2];
        *to++ = digits[group >> 18];
        *to++ = digits[group >> 12 & 63];
        *to++ = i + 1 < len ? digits[group >> 6 & 63] : '=';
        *to++ = i + 2 < len ? digits[group & 63] : '=';
    }
    out->len = (size_t)(to - out->data);
    out->data[out->len] = '\0';
    return HL_OK;
}

static int digit_value(char c)
{
    const char *at = c != '\0' ? strchr(digits, c) : NULL;
    return at != NULL ? (int)(at - digits) : -1;
}

hl_status hl_base64_decode(const char *text, struct hl_buf *out)
{
    size_t len = strlen(text);
    while (len > 0 && text[len - 1] == '=')
        len--;
    if (len % 4 == 1)
        return hl_fail(HL_EINVAL, "base64 text of %zu digits is cut off", len);
    char *to = hl_buf_room(out, len * 3 / 4);
    if (to == NULL)
        return HL_ENOMEM;
    uint32_t group = 0;
    int bits = 0;
    for (size_t i = 0; i < len; i++) {
        int value = digit_value(text[i]);
        if (value < 0)
            return hl_fail(HL_EINVAL, "'%c' at %zu is not base64", text[i], i);
        group = group << 6 | (uint32_t)value;
        bits += 6;
        if (bits >= 8) {
            bits -= 8;
            *to++ = (char)(group >> bits);
        }
    }
    out->len = (size_t)(to - out->data);
    out->data[out->len] = '\0';
    return HL_OK;
}
