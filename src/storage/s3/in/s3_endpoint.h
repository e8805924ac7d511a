/* Where a bucket is: endpoint, region, and whether its name goes into the path or the host. */
#ifndef SL_S3_ENDPOINT_H
#define SL_S3_ENDPOINT_H

#include <stdbool.h>

#include "creds.h"
#include "s3_options.h"
#include "url.h"

enum { SL_S3_REGION_MAX = 64 };

struct sl_s3_endpoint {
    char *origin;    /* "https://bucket.host:port": what the path of a request follows */
    char *authority; /* "bucket.host:port": the Host header */
    char *base;      /* "" or "/bucket", after the path of an endpoint that has one: encoded */
    bool amazon;     /* no endpoint was configured: it follows the region */
    bool virtual_host;
    bool whole;                    /* the host is the bucket's alone, as an access point's is */
    char region[SL_S3_REGION_MAX]; /* that the host's name tells; "": it tells none */
    uint64_t range_bytes_min;      /* shorter requests cost too much there; 0: no matter */
    const char *from;              /* which setting gave it, for people */
};

/**
 * Choose by spec, .s3cfg, environment and profile (in this order).
 *
 * @endpoint  out: release it by sl_s3_endpoint_release(); nothing is to be released after a
 *            failure.
 * @options   of the spec; NULL: defaults.
 * @creds     which profile and .s3cfg there are.
 * @bucket    its name, or the ARN of an access point.
 * @region    that requests are for.
 * @return    0, or -1: SL_E_USAGE for an endpoint that is not a http(s) URL, for a bucket that
 *            cannot be a host name where it must be one, and for an access point with another
 *            store's endpoint.
 */
int sl_s3_endpoint_find(struct sl_s3_endpoint *endpoint, const struct sl_s3_options *options,
                        const struct sl_creds *creds, const char *bucket, const char *region,
                        struct sl_err *err);
void sl_s3_endpoint_release(struct sl_s3_endpoint *endpoint);
/** An access point of Amazon, "arn:aws:s3:REGION:ACCOUNT:accesspoint/NAME". */
struct sl_s3_arn {
    char region[SL_S3_REGION_MAX], account[16], name[64];
    bool china; /* in which part of Amazon */
};
/** Does it begin as one? */
bool sl_s3_is_arn(const char *bucket);
/** SL_E_USAGE for what is none, with what to do, also for those that need signatures or answers of
 * their own: several regions, Object Lambda, Outposts. */
int sl_s3_arn_parse(const char *bucket, struct sl_s3_arn *arn, struct sl_err *err);
/** A region's name as a server may tell it: [a-z0-9-], 1 to 63. */
bool sl_s3_region_valid(const char *region);

#endif
