/* An answer is true as far as it goes; only its total is a lie. */
#include "claim_server.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"

enum { REAL_BYTES = 8 * 1024 * 1024 }; /* what there is behind a claim */

static void answer_listing(const char *claim, struct sl_server_reply *reply)
{
    struct sl_buf text = SL_BUF_INIT(65536);
    ck_assert_int_eq(sl_buf_printf(&text, NULL, "<ListBucketResult>"), 0);
    for (int i = 0; i < CLAIM_SERVER_OBJECTS; i++)
        ck_assert_int_eq(
            sl_buf_printf(
                &text, NULL,
                "<Contents><Key>m/%02d.bin</Key><Size>%s</Size><ETag>\"v\"</ETag></Contents>", i,
                claim),
            0);
    ck_assert_int_eq(sl_buf_printf(&text, NULL, "</ListBucketResult>"), 0);
    reply->status = 200;
    reply->body_bytes = text.used;
    reply->body = text.data;
}

bool claim_server_lie(const struct sl_server_request *request, struct sl_server_reply *reply,
                      void *arg)
{
    const char *claim = arg;
    char range[100];
    uint64_t begin = 0, end = 0;
    if (strstr(request->target, "list-type=2")) {
        answer_listing(claim, reply);
        return true;
    }
    bool ranged = sl_server_header(request, "Range", range, sizeof(range)) &&
                  sscanf(range, "bytes=%" SCNu64 "-%" SCNu64, &begin, &end) == 2;
    uint64_t total = strtoull(claim, NULL, 10);
    end = SL_MIN(end + 1, SL_MIN(total ? total : 1, (uint64_t)REAL_BYTES));
    if (!ranged || begin >= end) {
        reply->status = 404;
        return true;
    }
    reply->status = 206;
    snprintf(reply->headers, sizeof(reply->headers),
             "ETag: \"v\"\r\nContent-Range: bytes %" PRIu64 "-%" PRIu64 "/%s\r\n", begin, end - 1,
             claim);
    reply->body_bytes = end - begin;
    reply->body = calloc(1, reply->body_bytes);
    return true;
}
