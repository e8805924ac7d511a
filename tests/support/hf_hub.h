/*
 * A hub of Hugging Face on two range servers: the hub itself, and the other host that its links to
 * large files lead to. It answers as the real one does (headers, statuses, redirects, pages); what
 * shall go wrong is said here, or by the servers' own scripts.
 */
#ifndef SL_HF_HUB_H
#define SL_HF_HUB_H

#include "range_server.h"

#define SL_HUB_COMMIT "0123456789abcdef0123456789abcdef01234567"
enum { SL_HUB_FILES_MAX = 16 };

struct sl_hub_file {
    char path[256], hash[65]; /* SHA-256 of large files, git's SHA-1 of small ones */
    char xet[65];             /* "": it is not on Xet */
    size_t bytes;
    bool large;
};

/** Set what is not const between requests. */
struct sl_hub {
    struct sl_server *origin, *cdn;
    struct sl_hub_file files[SL_HUB_FILES_MAX];
    unsigned file_count;
    struct sl_hub_file kept[SL_HUB_FILES_MAX]; /* of the bucket org/name */
    unsigned kept_count;
    bool silent;            /* it does not tell which content of them it gives */
    bool direct;            /* it gives them itself: what was put at SL_HUB_KEPT of its origin */
    unsigned page_entries;  /* of the tree; 0: all in one */
    const char *token;      /* who does not send it gets 401; NULL: none is wanted */
    const char *commit;     /* that answers claim; SL_HUB_COMMIT */
    const char *tree;       /* instead of every page of the tree */
    const char *next;       /* instead of the Link header of such a page; NULL: none */
    bool endless;           /* such a page names another one after it, for ever */
    unsigned pages;         /* so many did */
    unsigned refuse_status; /* everything is refused so, with these header lines; 0: not */
    const char *refuse_headers;
    unsigned refuse_times; /* so many times; 0: always */
    unsigned refused;
    unsigned links;         /* given; each has its number in its query */
    unsigned oldest_link;   /* older ones have expired */
    unsigned leaked_tokens; /* requests to the other host with Authorization */
    const char *xet_url;    /* of the Xet store; NULL: there are no tokens for it */
    const char *xet_answer; /* instead of a token for it */
    unsigned xet_tokens;    /* given for it: "xet-1", "xet-2", … */
};

void sl_hub_start(struct sl_hub *hub);
void sl_hub_stop(struct sl_hub *hub);
/** A file of org/name at SL_HUB_COMMIT. */
void sl_hub_put(struct sl_hub *hub, const char *path, const void *data, size_t bytes, bool large);
#define SL_HUB_KEPT "/buckets/org/name/resolve/"
/** A file of the bucket org/name, in the place of one that is there. xet: its hash; NULL: 64 digits
 * that tell contents apart, where nothing is read through Xet. */
void sl_hub_keep(struct sl_hub *hub, const char *path, const void *data, size_t bytes,
                 const char *xet);
/** Requests of the hub whose target begins so. */
unsigned sl_hub_count(struct sl_hub *hub, const char *begin);
/** Its URL, for source.hf.endpoint; borrowed. Its servers see what was set before. */
const char *sl_hub_url(struct sl_hub *hub);

#endif
