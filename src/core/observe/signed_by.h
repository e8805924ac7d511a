/*
 * Who signed a model that was loaded, for results, manifests, listings and pages. Plain data, texts
 * of its own; any thread.
 */
#ifndef SL_SIGNED_BY_H
#define SL_SIGNED_BY_H

#include <stdint.h>

#include "json.h"

struct sl_signed_by {
    char by[320];       /* "key SHA256HEX", or names of a certificate; "": it is not signed */
    char file[256];     /* the signature, without secrets; cut where it is longer */
    int64_t at;         /* seconds since 1970, where an authority says it; 0 */
    uint64_t resources; /* files that the signature names … */
    uint64_t loaded;    /* … and of these, those that were loaded */
    uint64_t strangers; /* files that were loaded though it does not name them */
};
enum { SL_SIGNED_BY_TEXT = 512 };
/** "key 12ab…, 12 files, of which 9 are here, on 2026-11-30T01:02:03Z"; text is returned. */
const char *sl_signed_by_text(const struct sl_signed_by *signed_by, char text[SL_SIGNED_BY_TEXT]);
/** Its time as JSON has it; 0: NULL, or none. */
int64_t sl_signed_by_time(const char *text);
/** The member "signed": an object, or null. */
void sl_signed_by_json(struct sl_json *json, const struct sl_signed_by *signed_by);

#endif
