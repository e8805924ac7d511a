/*
 * A node with volumes in a mount namespace of the claim's own: models on a tmpfs, a folder that
 * stands for the kubelet's, pods in it. Whatever fails here aborts the test.
 */
#ifndef SL_VOLUME_CASE_H
#define SL_VOLUME_CASE_H

#include "node.h"
#include "volumes.h"

enum { VOLUME_CASE_PATH = 512, VOLUME_CASE_PAIRS = 16 };

struct volume_case {
    char path[256]; /* a tmpfs */
    char kubelet[VOLUME_CASE_PATH];
    int scratch;
    struct sl_node *node;
    struct sl_volumes *volumes;
    struct sl_err err; /* of the last call */
    uint8_t *blob;
    char keys[2048]; /* of the config, beside directory and csi */
    char csi[2048];  /* of `csi:`, with a comma in front */
    char models[4096];
};
/** For SL_CASE(.prepare): may this process mount? Else the program is skipped, with the reason. */
bool volume_case_possible(void);
/** Its own namespace, a tmpfs, one model object at "memory://m/a.safetensors" and another. */
void volume_case_init(struct volume_case *c);
void volume_case_release(struct volume_case *c);
#define VOLUME_CASE_MODEL(name, uri)                                                               \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: " name                        \
    "}\nsource: {uri: \"" uri "\"}\n"
/** Open node and volumes with keys, csi and models. */
void volume_case_open(struct volume_case *c);
/** False: they do not open, err says why. */
bool volume_case_try(struct volume_case *c);
/** Other models, as by SIGHUP. */
void volume_case_reload(struct volume_case *c);
/** They end as by SIGTERM: what is mounted stays. */
void volume_case_end(struct volume_case *c);
/** Make the folders of a pod, and tell the target of its volume. */
const char *volume_case_pod(struct volume_case *c, const char *uid);

/** A publish that can be changed before it is sent: of model "m" for pod team-a/UID. */
struct volume_ask_case {
    struct sl_volume_pair attributes[VOLUME_CASE_PAIRS], secrets[VOLUME_CASE_PAIRS];
    struct sl_volume_ask ask;
    char target[VOLUME_CASE_PATH], id[128], uid[64];
};
void volume_case_wish(struct volume_case *c, struct volume_ask_case *request, const char *uid);
/** Another value of an attribute; NULL: without it. */
void volume_case_set(struct volume_ask_case *request, const char *key, const char *value);
void volume_case_secret(struct volume_ask_case *request, const char *key, const char *value);
int volume_case_publish(struct volume_case *c, const struct volume_ask_case *request);
int volume_case_unpublish(struct volume_case *c, const struct volume_ask_case *request);
/** Publish model "m" for this pod, which works. */
void volume_case_mounted(struct volume_case *c, struct volume_ask_case *request, const char *uid);
/** Did the last call fail so, with this text in its message? */
void volume_case_refused(const struct volume_case *c, int done, enum sl_err_kind kind,
                         const char *code, const char *text);
/** Is a model's marker to be seen at the target, and how many mounts are there? */
bool volume_case_sees(const char *target);
unsigned volume_case_mounts(const char *below);
/** References of kind volume, by the registry's own count of all. */
uint64_t volume_case_references(struct volume_case *c);

#endif
