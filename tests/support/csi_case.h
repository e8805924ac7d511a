/* A driver of CSI over scripted volumes (fake_volumes.h), and calls to it by messages. */
#ifndef SL_CSI_CASE_H
#define SL_CSI_CASE_H

#include "csi.h"
#include "csi_parts.h"
#include "fake_volumes.h"
#include "grpc_client.h"
#include "scratch.h"

#define CSI_DRIVER "csi.example.test"

struct csi_case {
    int directory;
    char path[SL_SCRATCH_PATH_BYTES];
    char socket[SL_SCRATCH_PATH_BYTES + 16], registration[SL_SCRATCH_PATH_BYTES + 16];
    char target[SL_SCRATCH_PATH_BYTES + 16]; /* in path; not there */
    struct sl_csi *csi;
    struct sl_cancel *stop;
    struct grpc_client *client, *kubelet; /* of the two sockets */
};
extern struct csi_case csi_case;

void csi_case_open(void);
void csi_case_close(void);
/** The config of csi_case_open(), whose texts are csi_case's. */
struct sl_csi_config csi_case_config(void);

/** Call "/csi.v1.…" or the registration with a message; NULL: an empty one. */
struct grpc_answer *csi_case_call(const char *path, const ProtobufCMessage *message,
                                  const char *timeout);
/** The message of an answer with code 0, unpacked; free it with protobuf-c. */
void *csi_case_unpack(const struct grpc_answer *answer, const ProtobufCMessageDescriptor *type);
/** Call, and check code and that the text holds `words`. */
void csi_case_check(const char *path, const ProtobufCMessage *message, int code, const char *words);

/** A publish that is right: a mount for one reader, to change and to send. Lives until the next. */
Csi__V1__NodePublishVolumeRequest *csi_case_publish(void);
/** One more entry of a map of it; texts are borrowed. */
void csi_case_attribute(const char *key, const char *value);
void csi_case_secret(const char *key, const char *value);

#endif
