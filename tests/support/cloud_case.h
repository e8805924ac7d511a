/* Every kind of store in the cloud that has its own API, each a strict mock with one object, m.bin,
 * which is sl_blob(). S3 and web servers need none. Of one thread. */
#ifndef SL_CLOUD_CASE_H
#define SL_CLOUD_CASE_H

#include "range_blob.h"

struct cloud_store {
    const char *uri; /* %u: the api's port */
    void (*start)(void);
    void (*expire)(unsigned first_good); /* tokens or links: older ones are refused */
    void (*stop)(void);
    char *headers; /* of every right answer */
    bool cuts;     /* all of an object instead of a range will do, too */
    bool etags;    /* they are what tells versions apart */
    bool labels;   /* Content-Encoding is what an uploader wrote */
};
enum { CLOUD_STORES = 5 };
extern const struct cloud_store cloud_stores[CLOUD_STORES];

struct cloud_case {
    struct sl_server *api, *cdn; /* cdn: NULL, the api has the bytes */
    char uri[128];
    struct sl_source_config config;
};
extern struct cloud_case cloud;
/** The clock runs by itself. */
void cloud_begin(int number);
void cloud_end(int number);
/** For SL_CASE. */
bool cloud_prepare(void);

#endif
