/* What the parts of the driver share: a call, what may be in it, and how it is answered. */
#ifndef SL_CSI_PARTS_H
#define SL_CSI_PARTS_H

#include "csi.h"
#include "csi.pb-c.h"
#include "grpc.h"
#include "pluginregistration.pb-c.h"

enum {
    SL_CSI_WORKERS = 64,
    SL_CSI_PUBLISHES = 48, /* at once */
    SL_CSI_OTHERS = 8,
    SL_CSI_DRIVER_BYTES = 63, /* limits of the protocol, here and below */
    SL_CSI_NODE_BYTES = 192,
    SL_CSI_ID_BYTES = 128,
    SL_CSI_PATH_BYTES = 4095,
    SL_CSI_KEY_BYTES = 512,
    SL_CSI_PAIRS_MAX = 64, /* entries of one map */
    SL_CSI_VALUE_BYTES = 64 * 1024,
    SL_CSI_SECRET_BYTES = 1024 * 1024, /* most bytes of a Secret */
    SL_CSI_CAPABILITIES_MAX = 64,
    /* Memory that one request may become: many small messages are larger in memory than on the
     * wire. */
    SL_CSI_UNPACKED_BYTES = 16 * 1024 * 1024,
    SL_CSI_VOLUME_TEXT = 80, /* an id that CreateVolume made, and its 0 */
    SL_CSI_CREATED_MAX = 1024,
    SL_CSI_CALLS_DRAIN_MS = 200,
};
_Static_assert(SL_CSI_PUBLISHES >= SL_VOLUMES_WAITS_MAX + 8, "some never wait for a load");
/* A publish is answered so long before its caller gives up. */
#define SL_CSI_MARGIN_NS (5 * SL_NS_PER_S)

enum sl_csi_server { SL_CSI_SERVICES, SL_CSI_REGISTRATION };

/** A volume that CreateVolume was asked for, by hashes. */
struct sl_csi_created {
    char id[SL_CSI_VOLUME_TEXT];
    int64_t required_bytes, limit_bytes;
};

struct sl_csi {
    struct sl_volumes *volumes;
    struct sl_csi_config config; /* its texts are owned */
    struct sl_grpc *services, *registration;
    pthread_mutex_t lock;
    struct {
        struct sl_csi_created created[SL_CSI_CREATED_MAX];
        size_t created_count, created_next;
        struct sl_err refused; /* SL_OK: it was not */
    } locked;
};

/** One call as its function sees it. */
struct sl_csi_call {
    const void *request; /* of the row's type */
    struct sl_grpc_call *grpc;
};

/** Each answers with sl_csi_respond(), or fails. */
#define SL_CSI_METHOD(server, path, call, request, fast, at_once)                                  \
    int sl_csi_##call(struct sl_csi *csi, struct sl_csi_call *call_, struct sl_err *err);
#include "csi_methods.def"
#undef SL_CSI_METHOD

/** Put the message into the answer. SL_E_NO_SPACE. */
int sl_csi_respond(struct sl_csi_call *call, const ProtobufCMessage *message, struct sl_err *err);

/* csi_server.c */

/** Serve the rows of one of the two. */
struct sl_grpc *sl_csi_serve(struct sl_csi *csi, enum sl_csi_server server, struct sl_err *err);
/** Answer a request of the row of csi_methods.def with this number, which is one of them: the code,
 * and the response or the text. */
enum sl_grpc_code sl_csi_call_row(struct sl_csi *csi, size_t at, struct sl_grpc_call *call);

/* csi_check.c: what a request may hold. All fail with SL_E_USAGE and the name of the field. */

int sl_csi_check_id(const char *field, const char *text, size_t limit, struct sl_err *err);
/** Absolute, and nothing in it leads up. */
int sl_csi_check_path(const char *field, const char *path, struct sl_err *err);
int sl_csi_check_capability(const Csi__V1__VolumeCapability *capability, struct sl_err *err);
int sl_csi_check_capabilities(Csi__V1__VolumeCapability *const *capabilities, size_t count,
                              struct sl_err *err);

/** An entry of any map of strings. */
struct sl_csi_entry {
    ProtobufCMessage base;
    char *key, *value;
};
/** A map as pairs, sorted by key; they borrow. */
struct sl_csi_pairs {
    struct sl_volume_pair pairs[SL_CSI_PAIRS_MAX];
    size_t count;
};
/**
 * Check a map of strings, and make pairs of it that are sorted by key.
 *
 * @field           what a message calls an entry: "secret".
 * @entries, count  the array of the map, as protobuf-c has it; at most SL_CSI_PAIRS_MAX.
 * @value_bytes     the most that a value may have.
 * @pairs           out: they borrow the texts of the entries. Of no use after a failure.
 * @return          0; -1 with SL_E_USAGE if there are too many pairs, a key is malformed or occurs
 *                  twice, or a value is too long or not UTF-8.
 */
int sl_csi_pairs_read(const char *field, void *entries, size_t count, size_t value_bytes,
                      struct sl_csi_pairs *pairs, struct sl_err *err);

#endif
