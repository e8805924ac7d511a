/* What the range server serves and how it misbehaves, as it keeps them. */
#ifndef SL_RANGE_SCRIPT_H
#define SL_RANGE_SCRIPT_H

#include "range_server.h"

/* What a blob holds or held: a connection may be sending it until the server stops. */
struct copy {
    struct copy *older;
    uint8_t data[];
};
struct blob {
    struct blob *next;
    char *path, *etag;
    struct copy *copies; /* the newest is served */
    size_t bytes;
    unsigned hits;
};

struct step {
    struct sl_step step;
    char *path, *headers, *text;
};

/* Kept until the server stops: an answer that is being sent may still point into an old one. */
struct script {
    struct script *older;
    size_t count;
    struct step steps[];
};

#endif
