/*
 * A ModelScope hub on two range servers: the hub itself, which gives small files whole whatever
 * range is asked for, and the other host that its links to large files lead to. It answers as the
 * hub's own client expects it; what is to go wrong is said here, or by the servers' own scripts.
 */
#ifndef SL_MS_HUB_H
#define SL_MS_HUB_H

#include "range_server.h"

enum { SL_MS_HUB_FILES_MAX = 8 };

struct sl_ms_hub_file {
    char path[256], sha256[65];
    const uint8_t *data;
    size_t bytes;
    bool large;
};

/** Set what is not const between requests. */
struct sl_ms_hub {
    struct sl_server *origin, *cdn;
    struct sl_ms_hub_file files[SL_MS_HUB_FILES_MAX];
    unsigned file_count;
    const char *token;   /* who does not send it gets 404; NULL: none is wanted */
    const char *listing; /* instead of every listing */
    unsigned many;       /* so many files "many/0", "many/1", … are there, too, half of them in
                            "many/more/"; more than 3000 entries are cut off */
    unsigned refuse_status;
    const char *refuse_headers, *refuse_body; /* of everything; NULL: "" */
    unsigned refuse_times, refused;           /* 0: always */
    unsigned links, oldest_link;              /* given; older ones have expired */
    unsigned leaked_tokens;                   /* requests to the other host with a token */
};

void sl_ms_hub_start(struct sl_ms_hub *hub);
void sl_ms_hub_stop(struct sl_ms_hub *hub);
/** A file of org/name at "master"; data is borrowed. */
void sl_ms_hub_put(struct sl_ms_hub *hub, const char *path, const void *data, size_t bytes,
                   bool large);
/** Requests of the hub whose target begins so. */
unsigned sl_ms_hub_count(struct sl_ms_hub *hub, const char *begin);

#endif
