/* One request for a manifest, at the registry or at mirrors of it. Blocks; any thread. */
#ifndef SL_OCI_ASK_H
#define SL_OCI_ASK_H

#include "http_call.h"
#include "oci_store.h"

struct sl_oci_asking {
    struct sl_oci *oci;
    const char *reference, *what; /* a tag or a digest; "cannot open 'oci://…'" */
    bool referrers;               /* not the manifest, but the index of what refers to it */
    const char *page; /* of referrers, "?n=…", as the page before said; NULL: the first */
    bool may_lack;    /* that there is none is an answer, too, by its status */
    /* Its own: */
    struct sl_oci_endpoint *at;
    unsigned attempts;                /* 0: as the config says */
    char digest[SL_OCI_DIGEST_BYTES]; /* of the manifest that came */
};
/** A manifest's digest may come from anywhere; what a tag means, and what refers to a manifest,
 * only the registry knows. A manifest is what its digest says. Release the answer, after a failure,
 * too. As sl_oci_refuse(), SL_E_INTEGRITY, SL_E_NET. */
int sl_oci_ask(struct sl_oci_asking *asking, struct sl_answer *answer, struct sl_err *err);

#endif
