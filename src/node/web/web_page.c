/*
 * The page is page.html, page.css and page.js beside this file, put into the program as one text by
 * cmake/SluicePage.cmake. Its policy allows the style and the script that it holds, by their
 * hashes, and no other host; listings of files have the same style.
 */
#include <openssl/evp.h>
#include <stdio.h>
#include <string.h>

#include "hash.h"
#include "web_page_data.h"
#include "web_parts.h"

enum { HASH_TEXT_BYTES = 48 };

/* What is between the opening and the closing tag. */
static struct web_text find_element(const char *open, const char *close)
{
    const char *begin = strstr((const char *)web_page_data, open);
    const char *end = begin ? strstr(begin, close) : NULL;
    if (!end)
        return (struct web_text){"", 0};
    begin += strlen(open);
    return (struct web_text){begin, (int)(end - begin)};
}

struct web_text web_page_style(void)
{
    return find_element("<style>", "</style>");
}

/* base64(SHA-256), as CSP Level 3 wants it. */
static void hash_element(struct web_text element, char text[HASH_TEXT_BYTES])
{
    uint8_t digest[32];
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    text[0] = 0;
    if (!sha)
        return;
    sl_sha256_update(sha, element.text, (size_t)element.bytes);
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
    EVP_EncodeBlock((unsigned char *)text, digest, sizeof(digest));
}

void web_page_policies(struct sl_web *web)
{
    char style[HASH_TEXT_BYTES], script[HASH_TEXT_BYTES];
    static const char rest[] =
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
    hash_element(web_page_style(), style);
    hash_element(find_element("<script>", "</script>"), script);
    snprintf(web->page_policy, sizeof(web->page_policy),
             "default-src 'none'; style-src 'sha256-%s'; script-src 'sha256-%s'; "
             "connect-src 'self'; %s",
             style, script, rest);
    snprintf(web->listing_policy, sizeof(web->listing_policy),
             "default-src 'none'; style-src 'sha256-%s'; %s", style, rest);
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
