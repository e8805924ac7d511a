/* Every fault that lies in a head is made here, in the order in which heads are written. */
#include "range_answer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool sl_request_parse_head(const char *head, struct sl_server_request *request)
{
    size_t used = 0;
    char length[32] = "0";
    const char *line = strstr(head, "\r\n");
    if (sscanf(head, "%15s %4095s", request->method, request->target) != 2)
        return false;
    while (line && used < sizeof(request->headers) - 1) {
        const char *next = strstr(line + 2, "\r\n");
        int bytes = next ? (int)(next - line - 2) : (int)strlen(line + 2);
        used += (size_t)snprintf(request->headers + used, sizeof(request->headers) - used, "%.*s\n",
                                 bytes, line + 2);
        line = next;
    }
    sl_server_header(request, "Content-Length", length, sizeof(length));
    request->body_bytes = strtoul(length, NULL, 10);
    return true;
}

void sl_answer_parse_range(const struct sl_server_request *request, struct answer *answer)
{
    char text[128];
    uint64_t a, b;
    answer->begin = 0;
    answer->end = answer->bytes;
    answer->satisfiable = true;
    if (!sl_server_header(request, "Range", text, sizeof(text)) ||
        sscanf(text, "bytes=%" SCNu64 "-%" SCNu64, &a, &b) != 2)
        return;
    answer->ranged = true;
    answer->satisfiable = a < answer->bytes && a <= b;
    answer->begin = (size_t)a;
    answer->end = b + 1 < answer->bytes ? (size_t)b + 1 : answer->bytes;
}

void sl_answer_write_head(const struct answer *answer, char *head, size_t room)
{
    enum sl_fault fault = answer->step.fault;
    bool partial =
        answer->ranged && fault != SL_FAULT_WHOLE && fault != SL_FAULT_BARE && !answer->step.whole;
    size_t shift = fault == SL_FAULT_WRONG_RANGE, used = 0,
           length = answer->end - answer->begin + (fault == SL_FAULT_LONG);
#define ADD(...) used += (size_t)snprintf(head + used, room - used, __VA_ARGS__)
    ADD("HTTP/1.1 %s\r\n", partial ? "206 Partial Content" : "200 OK");
    if (answer->etag[0])
        ADD("ETag: %s\r\n", fault == SL_FAULT_WRONG_ETAG ? "\"another\"" : answer->etag);
    ADD("Last-Modified: Sat, 21 Nov 2026 05:00:00 GMT\r\n");
    if (partial && fault != SL_FAULT_NO_RANGE)
        ADD("Content-Range: bytes %zu-%zu/%zu\r\n", answer->begin + shift, answer->end - 1 + shift,
            answer->bytes + 7 * (fault == SL_FAULT_WRONG_TOTAL));
    if (fault == SL_FAULT_GZIP)
        ADD("Content-Encoding: gzip\r\n");
    ADD("Content-Type: %s\r\n", fault == SL_FAULT_MULTIPART ? "multipart/byteranges; boundary=x"
                                                            : "application/octet-stream");
    if (fault == SL_FAULT_CHUNKED)
        ADD("Transfer-Encoding: chunked\r\n");
    else if (fault != SL_FAULT_UNTIL_CLOSE)
        ADD("Content-Length: %zu\r\n", length);
    if (fault == SL_FAULT_CLOSE || fault == SL_FAULT_UNTIL_CLOSE)
        ADD("Connection: close\r\n");
    ADD("%s\r\n", answer->step.headers ? answer->step.headers : "");
#undef ADD
}
