/* Heads of the range server: what is asked for, and what is answered. */
#ifndef SL_RANGE_ANSWER_H
#define SL_RANGE_ANSWER_H

#include "range_server.h"

/** Method, target, headers and body_bytes from a head without its empty line. */
bool sl_request_parse_head(const char *head, struct sl_server_request *request);

/** What one answer is made of. */
struct answer {
    struct sl_step step;
    const uint8_t *data;
    size_t bytes; /* of the blob */
    char etag[128];
    size_t begin, end; /* of the range */
    bool ranged, satisfiable;
};

/** Take the range from the request; answer->bytes is set. */
void sl_answer_parse_range(const struct sl_server_request *request, struct answer *answer);
/** Status line and headers, with the step's fault in them, into head of room bytes. */
void sl_answer_write_head(const struct answer *answer, char *head, size_t room);

#endif
