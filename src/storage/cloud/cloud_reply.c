/* See cloud_reply.h. */
#include "cloud_reply.h"

#include <openssl/evp.h>
#include <string.h>

struct sl_cloud_reply sl_cloud_reply_of(const struct sl_answer *answer, const char *code_header,
                                        struct sl_cloud_headers *headers)
{
    bool later =
        sl_answer_header(answer, "Retry-After", headers->retry_after, sizeof(headers->retry_after));
    bool code =
        code_header && sl_answer_header(answer, code_header, headers->code, sizeof(headers->code));
    return (struct sl_cloud_reply){.status = answer->status,
                                   .retry_after = later ? headers->retry_after : NULL,
                                   .code = code ? headers->code : NULL,
                                   .body = sl_buf_string(&answer->body),
                                   .body_bytes = answer->body.used};
}

bool sl_cloud_base64(const char *text, uint8_t *value, size_t bytes)
{
    uint8_t data[72];
    size_t length = strlen(text);
    if (bytes > 64 || length != (bytes + 2) / 3 * 4 || strcspn(text, "=") != (bytes * 4 + 2) / 3 ||
        EVP_DecodeBlock(data, (const unsigned char *)text, (int)length) < (int)bytes)
        return false;
    memcpy(value, data, bytes);
    return true;
}

int sl_cloud_split(const char *path, char **container, char **prefix, char **key,
                   struct sl_err *err)
{
    size_t first = strcspn(path, "/");
    const char *rest = path + first + (path[first] == '/'), *slash = strrchr(rest, '/');
    size_t prefix_bytes = slash ? (size_t)(slash - rest) + 1 : 0;
    *container = sl_strndup(path, first, err);
    *prefix = *container ? sl_strndup(rest, prefix_bytes, err) : NULL;
    *key = *prefix ? sl_strdup(rest + prefix_bytes, err) : NULL;
    return *key ? 0 : -1;
}
