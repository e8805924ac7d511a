/*
 * The page is src/node/web/page.html, put into the program by cmake/SluicePage.cmake. Its policy
 * allows the style and the script that it holds, by their hashes, and no other host.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "web_page_data.h"
#include "web_parts.h"

enum { HASH_TEXT_BYTES = 48 };

/* base64(SHA-256) of what is between the opening and the closing tag, as CSP Level 3 wants it. */
static void hash_element(const char *open, const char *close, char text[HASH_TEXT_BYTES])
{
    uint8_t digest[32];
    const char *page = (const char *)web_page_data;
    const char *begin = strstr(page, open), *end = begin ? strstr(begin, close) : NULL;
    struct sl_sha256 *sha = end ? sl_sha256_new(NULL) : NULL;
    text[0] = 0;
    if (!sha)
        return;
    begin += strlen(open);
    sl_sha256_update(sha, begin, (size_t)(end - begin));
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    EVP_EncodeBlock((unsigned char *)text, digest, sizeof(digest));
}

void web_page_policy(char *policy, size_t capacity)
{
    char style[HASH_TEXT_BYTES], script[HASH_TEXT_BYTES];
    hash_element("<style>", "</style>", style);
    hash_element("<script>", "</script>", script);
    snprintf(policy, capacity,
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; "
             "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; "
             "frame-ancestors 'none'",
             style, script);
}

enum MHD_Result web_page_answer(const struct request *request)
{
    struct MHD_Response *response = sl_libmicrohttpd.create_response_from_buffer(
        sizeof(web_page_data) - 1, (void *)web_page_data, MHD_RESPMEM_PERSISTENT);
    if (!response)
        return MHD_NO;
    sl_libmicrohttpd.add_response_header(response, "Content-Type", "text/html; charset=utf-8");
    sl_libmicrohttpd.add_response_header(response, "Content-Security-Policy",
                                         request->web->page_policy);
    return web_queue(request, 200, response);
}
