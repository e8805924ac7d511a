/*
 * What is signed comes from names of objects: path, query and headers of a request, in lines. A
 * signature is one line of printable characters, and signing twice, with and without the kept key,
 * gives the same.
 */
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "sigv4.h"
#include "url.h"

enum { PARTS = 5 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void check_line(const char *text)
{
    for (; *text; text++)
        if ((unsigned char)*text < 0x20)
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *parts[PARTS] = {"", "", "", "", ""};
    struct sl_sigv4_key cache = {0};
    char *text = malloc(bytes + 1), *rest = text;
    memcpy(text, data, bytes);
    text[bytes] = 0;
    for (unsigned i = 0; i < PARTS && rest; i++)
        parts[i] = strsep(&rest, "\n");
    sl_autofree char *path = sl_url_encode(parts[0], true, NULL);
    sl_autofree char *whole = path ? sl_asprintf(NULL, "/%s", path) : NULL;
    const struct sl_sigv4_header headers[] = {
        {"host", parts[2]}, {"x-amz-meta-a", parts[3]}, {"x-amz-security-token", parts[4]}};
    const struct sl_sigv4_request request = {.method = "GET",
                                             .path = whole,
                                             .query = parts[1],
                                             .headers = headers,
                                             .header_count = SL_COUNT(headers),
                                             .payload = sl_sigv4_empty,
                                             .date = "20130524T000000Z",
                                             .region = "us-east-1",
                                             .service = "s3"};
    sl_autofree char *canonical = whole ? sl_sigv4_canonical(&request, NULL) : NULL;
    sl_autofree char *once =
        whole ? sl_sigv4_sign_cached(&request, "AKID", "secret", NULL, NULL) : NULL;
    sl_autofree char *again =
        whole ? sl_sigv4_sign_cached(&request, "AKID", "secret", &cache, NULL) : NULL;
    if (!once != !again || (once && !canonical) || (once && strcmp(once, again) != 0))
        abort();
    if (once)
        check_line(once);
    free(text);
    return 0;
}
