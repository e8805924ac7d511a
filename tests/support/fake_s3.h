/*
 * A store in memory behind the range server: objects, multipart uploads, conditions, checksums; and
 * what a test wants to go wrong.
 */
#ifndef SL_FAKE_S3_H
#define SL_FAKE_S3_H

#include "range_server.h"
#include "thread.h"

enum { SL_FAKE_PARTS_MAX = 64, SL_FAKE_FAULTS_MAX = 8, SL_FAKE_OBJECTS_MAX = 8 };

/** The next `times` requests whose method and target match are answered so instead. */
struct sl_fake_fault {
    const char *method, *part; /* part: somewhere in the target */
    unsigned times;
    int status;          /* 0: the connection is reset without an answer */
    const char *code;    /* of the <Error>; NULL: no body */
    const char *headers; /* more lines */
    bool after;          /* the request is carried out before */
    bool space;          /* white space before the body, and the answer is 200 */
};

struct sl_fake_s3 {
    struct sl_server *server;
    bool ignores_checksums;  /* as older stores */
    bool refuses_checksums;  /* as others: 501 for what they do not know */
    bool refuses_conditions; /* 501 for If-None-Match */
    struct sl_fake_fault faults[SL_FAKE_FAULTS_MAX];
    /* what came of it; read it when nothing is under way */
    struct {
        char key[256];
        char *data;
        size_t bytes;
    } objects[SL_FAKE_OBJECTS_MAX], parts[SL_FAKE_PARTS_MAX];
    unsigned object_count, creates, puts, part_puts, completes, aborts;
    unsigned open_uploads;
    bool repaired_region;
    struct sl_cancel *cancels; /* raised when an upload has begun, before its answer; NULL: none */
};

/** Starts the server and names it in AWS_ENDPOINT_URL_S3. */
void sl_fake_s3_start(struct sl_fake_s3 *fake, bool tls);
/** Forget objects and uploads, while requests of clients that are gone may still come in. */
void sl_fake_s3_reset(struct sl_fake_s3 *fake);
void sl_fake_s3_stop(struct sl_fake_s3 *fake);
/** The object at "/bucket/key", NULL if there is none. */
const char *sl_fake_s3_object(struct sl_fake_s3 *fake, const char *key, size_t *bytes);
void sl_fake_s3_put(struct sl_fake_s3 *fake, const char *key, const void *data, size_t bytes);

#endif
