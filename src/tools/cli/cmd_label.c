/*
 * sluice label: the labels of this node in Kubernetes say which models its daemon has. It runs
 * beside the daemon, in a container of its own, so that the daemon, which is root and has the keys
 * of the stores, holds no token of the cluster, and what holds the token has no other right.
 *
 * The daemon is asked every few seconds; the API server only when its answer changed, when an
 * update failed, and every few minutes in case somebody else changed the labels. Labels with the
 * prefix are ours, all others are left alone. While the daemon does not answer nothing is changed:
 * its models outlive it.
 *
 * A startup taint keeps pods off a new node until the kubelet knows the driver, which the CSINode
 * tells whoever registers it. A patch removes it by its place and tests first what is there, so
 * that no taint of others goes that came meanwhile.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "exchange.h"
#include "json.h"
#include "log.h"
#include "tls.h"
#include "tokens.h"
#include "url.h"

enum {
    LISTING_BYTES_MAX = 16 * 1024 * 1024,
    ANSWER_BYTES_MAX = 1024 * 1024,
    LABEL_NAME_MAX = 63, /* of a label's key, what follows the prefix */
    LABELS_MAX = 256,    /* of one node; the API server has no limit but that of an object */
    NODE_NAME_MAX = 253,
    ANSWER_SECONDS = 10,
    AGAIN_SECONDS = 300, /* look at the node although nothing changed here */
};
#define VALUE "ready"

struct label_options {
    char *node, *daemon, *api, *prefix, *account, *startup_taint, *driver;
    uint64_t every_seconds;
};
static const struct sl_option rows[] = {
    SL_OPTION(label_options, node, STRING, "", "name of the node; $NODE_NAME unless given",
              .value = "NAME"),
    SL_OPTION(label_options, daemon, STRING, "http://127.0.0.1:9464", "where the daemon answers",
              .value = "URL"),
    SL_OPTION(label_options, api, STRING, "",
              "the API server; unless given, as $KUBERNETES_SERVICE_HOST and _PORT say",
              .value = "URL"),
    SL_OPTION(label_options, prefix, STRING, "model.csi.sluice.dev",
              "before the slash of each label; all labels with it are this command's",
              .value = "DOMAIN"),
    SL_OPTION(label_options, account, STRING, "/var/run/secrets/kubernetes.io/serviceaccount",
              "folder with the token and the ca.crt of a service account", .value = "DIR"),
    SL_OPTION(label_options, startup_taint, STRING, "",
              "key of a taint to remove once the kubelet has registered the driver; empty: none",
              .value = "KEY"),
    SL_OPTION(label_options, driver, STRING, "csi.sluice.dev", "the CSI driver of the daemon",
              .value = "NAME"),
    SL_OPTION(label_options, every_seconds, UINT, "10",
              "time between two questions to the daemon; 0: ask once, and exit with the result",
              .maximum = 86400, .value = "SECONDS"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"label", sizeof(struct label_options), rows};

/** Names of labels, without the prefix. */
struct names {
    char *items[LABELS_MAX];
    size_t count;
};

struct labeller {
    const char *daemon, *prefix, *account;
    const char *taint, *driver; /* taint "": none is removed */
    char *node_url, *drivers_url;
    struct sl_cancel *cancel;
    struct names applied; /* what the node has, as far as is known */
    uint64_t looked_ns;   /* at the node; 0: it must be looked at */
    char complaint[sizeof(((struct sl_err *)0)->message)]; /* what was told last */
};

/* ---- names ----------------------------------------------------------------------------------- */

static void names_release(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->items[i]);
    names->count = 0;
}

static bool names_have(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return false;
}

static bool names_equal(const struct names *left, const struct names *right)
{
    for (size_t i = 0; i < left->count; i++)
        if (!names_have(right, left->items[i]))
            return false;
    return left->count == right->count;
}

static int names_add(struct names *names, const char *name, struct sl_err *err)
{
    if (names->count == LABELS_MAX)
        return sl_fail(err, SL_E_USAGE, "the node has more than %d models to be labelled with",
                       LABELS_MAX);
    names->items[names->count] = sl_strdup(name, err);
    if (!names->items[names->count])
        return -1;
    names->count++;
    return 0;
}

/* May it follow the slash of a label's key? */
static bool is_label_name(const char *name)
{
    size_t bytes = strlen(name);
    if (!bytes || bytes > LABEL_NAME_MAX || !isalnum((unsigned char)name[0]) ||
        !isalnum((unsigned char)name[bytes - 1]))
        return false;
    for (const char *at = name; *at; at++)
        if (!isalnum((unsigned char)*at) && !strchr("-_.", *at))
            return false;
    return true;
}

/* Lower case, as names of nodes and domains of labels are. */
static bool is_domain(const char *name)
{
    size_t bytes = strlen(name);
    for (const char *at = name; *at; at++)
        if (!islower((unsigned char)*at) && !isdigit((unsigned char)*at) && !strchr("-.", *at))
            return false;
    return bytes && bytes <= NODE_NAME_MAX && isalnum((unsigned char)name[0]) &&
           isalnum((unsigned char)name[bytes - 1]);
}

/* ---- the daemon ------------------------------------------------------------------------------ */

/* One request on a connection of its own: *answer of status 200, to be released. */
static int ask(const struct labeller *labeller, const struct sl_request *request,
               const struct sl_tls_options *tls, size_t limit, struct sl_answer *answer,
               struct sl_err *err)
{
    const struct sl_connect connect = {.tls = tls,
                                       .cancel = labeller->cancel,
                                       .stall_seconds = ANSWER_SECONDS,
                                       .connect_seconds = ANSWER_SECONDS,
                                       .direct = true};
    char what[400];
    snprintf(what, sizeof(what), "%s '%.300s'", request->method, request->url);
    SL_AUTO(sl_exchange) exchange = sl_exchange_new(&connect, err);
    if (!exchange || sl_exchange_simple(exchange, request, limit, answer, err) < 0)
        return sl_wrap(err, "%s", what);
    if (answer->status == 200)
        return 0;
    json_t *status = sl_json_parse(sl_buf_string(&answer->body), answer->body.used, "answer", NULL);
    const char *message = sl_json_get_string(status, "message");
    sl_http_fail(err, answer->status, NULL, what, message);
    json_decref(status);
    sl_answer_release(answer);
    return -1;
}

/* Those of the config that are whole: others have names that nobody else is to learn. */
static int take_models(const json_t *root, struct names *ready, struct sl_err *err)
{
    const json_t *model, *models = json_object_get(root, "models");
    size_t i;
    if (!json_is_array(models))
        return sl_fail(err, SL_E_FORMAT, "the daemon's answer has no list of models");
    json_array_foreach(models, i, model)
    {
        const char *name = sl_json_get_string(model, "name");
        const char *origin = sl_json_get_string(model, "origin");
        if (!name || !origin || strcmp(origin, "config") != 0 ||
            !sl_json_get_string(model, "version"))
            continue;
        if (!is_label_name(name))
            sl_log(SL_LOG_WARN, "model '%.80s' gets no label: no label may have such a name", name);
        else if (!names_have(ready, name) && names_add(ready, name, err) < 0)
            return -1;
    }
    return 0;
}

static int ask_daemon(const struct labeller *labeller, struct names *ready, struct sl_err *err)
{
    struct sl_answer answer = {0};
    sl_autofree char *url = sl_asprintf(err, "%s/v1/models", labeller->daemon);
    const struct sl_request request = {.method = "GET", .url = url};
    if (!url || ask(labeller, &request, NULL, LISTING_BYTES_MAX, &answer, err) < 0)
        return -1;
    json_t *root =
        sl_json_parse(sl_buf_string(&answer.body), answer.body.used, "the daemon's answer", err);
    int done = root ? take_models(root, ready, err) : -1;
    json_decref(root);
    sl_answer_release(&answer);
    return done;
}

/* ---- the API server -------------------------------------------------------------------------- */

#define METADATA     "Accept: application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#define WHOLE        "Accept: application/json"
#define MERGE_PATCH  "Content-Type: application/merge-patch+json" /* RFC 7386 */
#define PLACED_PATCH "Content-Type: application/json-patch+json"  /* RFC 6902 */

struct call {
    const char *method, *url, *accept;
    const char *type, *body; /* NULL: none */
};

/* The token is read anew each time: the kubelet replaces it. */
static int ask_api(const struct labeller *labeller, const struct call *call,
                   struct sl_answer *answer, struct sl_err *err)
{
    sl_autofree char *token_path = sl_asprintf(err, "%s/token", labeller->account);
    sl_autofree char *ca_path = sl_asprintf(err, "%s/ca.crt", labeller->account);
    sl_autosecret char *token = token_path && ca_path ? sl_token_from_file(token_path, err) : NULL;
    sl_autosecret char *bearer = token ? sl_asprintf(err, "Authorization: Bearer %s", token) : NULL;
    if (!bearer)
        return -1;
    const char *const headers[] = {bearer, call->accept, call->type, NULL};
    const struct sl_tls_options tls = {.ca_file = ca_path, .verify = true};
    const struct sl_request request = {.method = call->method,
                                       .url = call->url,
                                       .headers = headers,
                                       .body = call->body,
                                       .body_bytes = call->body ? strlen(call->body) : 0};
    return ask(labeller, &request, &tls, ANSWER_BYTES_MAX, answer, err);
}

/* NULL, or to be released by json_decref(). */
static json_t *read_object(const struct labeller *labeller, const char *url, const char *accept,
                           struct sl_err *err)
{
    struct sl_answer answer = {0};
    const struct call call = {.method = "GET", .url = url, .accept = accept};
    if (ask_api(labeller, &call, &answer, err) < 0)
        return NULL;
    json_t *root = sl_json_parse(sl_buf_string(&answer.body), answer.body.used,
                                 "the API server's answer", err);
    sl_answer_release(&answer);
    return root;
}

static int patch_node(const struct labeller *labeller, const char *type, const char *body,
                      struct sl_err *err)
{
    struct sl_answer answer = {0};
    const struct call call = {"PATCH", labeller->node_url, METADATA, type, body};
    int done = ask_api(labeller, &call, &answer, err);
    sl_answer_release(&answer);
    return done;
}

/* Of the node's labels those that are ours; strange: those of them with another value. */
static int take_labels(const struct labeller *labeller, json_t *root, struct names *found,
                       struct names *strange, struct sl_err *err)
{
    json_t *labels = json_object_get(json_object_get(root, "metadata"), "labels"), *value;
    size_t bytes = strlen(labeller->prefix);
    const char *key;
    json_object_foreach(labels, key, value)
    {
        if (strncmp(key, labeller->prefix, bytes) != 0 || key[bytes] != '/')
            continue;
        const char *text = json_string_value(value);
        bool good = text && strcmp(text, VALUE) == 0;
        if (names_add(good ? found : strange, key + bytes + 1, err) < 0)
            return -1;
    }
    return 0;
}

static void write_label(const struct labeller *labeller, const char *name, const char *value,
                        struct sl_json *json)
{
    char key[NODE_NAME_MAX + 1 + LABEL_NAME_MAX + 1];
    snprintf(key, sizeof(key), "%s/%.63s", labeller->prefix, name);
    sl_json_key(json, key);
    if (value)
        sl_json_string(json, value);
    else
        sl_json_null(json);
}

/* A merge patch (RFC 7386) from what there is to what is wanted. */
static void write_patch(const struct labeller *labeller, const struct names *found,
                        const struct names *strange, const struct names *ready,
                        struct sl_json *json)
{
    sl_json_init(json, ANSWER_BYTES_MAX);
    sl_json_object(json);
    sl_json_key(json, "metadata");
    sl_json_object(json);
    sl_json_key(json, "labels");
    sl_json_object(json);
    for (size_t i = 0; i < ready->count; i++)
        if (!names_have(found, ready->items[i]))
            write_label(labeller, ready->items[i], VALUE, json);
    for (size_t i = 0; i < found->count; i++)
        if (!names_have(ready, found->items[i]))
            write_label(labeller, found->items[i], NULL, json);
    for (size_t i = 0; i < strange->count; i++)
        if (!names_have(ready, strange->items[i]))
            write_label(labeller, strange->items[i], NULL, json);
    for (int level = 0; level < 3; level++)
        sl_json_end(json);
}

static int patch_labels(const struct labeller *labeller, const struct names *found,
                        const struct names *strange, const struct names *ready, struct sl_err *err)
{
    struct sl_json json;
    write_patch(labeller, found, strange, ready, &json);
    const char *text = sl_json_text(&json, err);
    char models[40];
    int done = text ? patch_node(labeller, MERGE_PATCH, text, err) : -1;
    if (done == 0)
        sl_log(SL_LOG_INFO, "the node is labelled with %s: %s",
               sl_human_count(ready->count, "model", models), text);
    sl_json_release(&json);
    return done;
}

static int update_labels(const struct labeller *labeller, json_t *node, const struct names *ready,
                         struct sl_err *err)
{
    struct names found = {.count = 0}, strange = {.count = 0};
    int done = take_labels(labeller, node, &found, &strange, err);
    if (done == 0 && (strange.count || !names_equal(&found, ready)))
        done = patch_labels(labeller, &found, &strange, ready, err);
    names_release(&found);
    names_release(&strange);
    return done;
}

/* ---- the startup taint ----------------------------------------------------------------------- */

/* 1, 0; -1: it cannot be told. */
static int is_registered(const struct labeller *labeller, struct sl_err *err)
{
    json_t *root = read_object(labeller, labeller->drivers_url, WHOLE, err), *driver;
    json_t *drivers = json_object_get(json_object_get(root, "spec"), "drivers");
    int found = root ? 0 : -1;
    size_t i;
    json_array_foreach(drivers, i, driver)
    {
        const char *name = sl_json_get_string(driver, "name");
        if (name && strcmp(name, labeller->driver) == 0)
            found = 1;
    }
    json_decref(root);
    return found;
}

static bool is_ours(const struct labeller *labeller, const json_t *taint)
{
    const char *key = sl_json_get_string(taint, "key");
    return key && strcmp(key, labeller->taint) == 0;
}

/* From the last on, so that those before it keep their places; nothing is written if none is there.
 */
static int write_removal(const struct labeller *labeller, const json_t *taints, struct sl_buf *out,
                         struct sl_err *err)
{
    for (size_t i = json_array_size(taints); i-- > 0;) {
        const json_t *taint = json_array_get(taints, i);
        if (!is_ours(labeller, taint))
            continue;
        sl_autofree char *was = json_dumps(taint, JSON_COMPACT);
        if (!was)
            return sl_fail(err, SL_E_NO_SPACE, "out of memory");
        if (sl_buf_printf(out, err,
                          "%s{\"op\":\"test\",\"path\":\"/spec/taints/%zu\",\"value\":%s},"
                          "{\"op\":\"remove\",\"path\":\"/spec/taints/%zu\"}",
                          out->used ? "," : "[", i, was, i) < 0)
            return -1;
    }
    return out->used ? sl_buf_text(out, "]", err) : 0;
}

static int remove_taint(const struct labeller *labeller, json_t *node, struct sl_err *err)
{
    json_t *taints = json_object_get(json_object_get(node, "spec"), "taints");
    sl_autobuf patch = SL_BUF_INIT(ANSWER_BYTES_MAX);
    if (*labeller->taint && write_removal(labeller, taints, &patch, err) < 0)
        return -1;
    if (!patch.used)
        return 0;
    int there = is_registered(labeller, err);
    if (there < 0)
        return -1;
    if (!there)
        return sl_fail(err, SL_E_TIMEOUT,
                       "the node keeps the taint '%.253s': its kubelet has not registered the CSI "
                       "driver '%.63s' yet",
                       labeller->taint, labeller->driver);
    if (patch_node(labeller, PLACED_PATCH, sl_buf_string(&patch), err) < 0)
        return -1;
    sl_log(SL_LOG_INFO, "the node has lost the taint '%s': its CSI driver is registered",
           labeller->taint);
    return 0;
}

/* ---- both ------------------------------------------------------------------------------------ */

static int update(struct labeller *labeller, const struct names *ready, struct sl_err *err)
{
    labeller->looked_ns = 0;
    json_t *node =
        read_object(labeller, labeller->node_url, *labeller->taint ? WHOLE : METADATA, err);
    bool done = node && update_labels(labeller, node, ready, err) == 0 &&
                remove_taint(labeller, node, err) == 0;
    if (done)
        labeller->looked_ns = sl_now_ns();
    json_decref(node);
    return done ? 0 : -1;
}

static int look(struct labeller *labeller, struct sl_err *err)
{
    struct names ready = {.count = 0};
    int done = ask_daemon(labeller, &ready, err);
    uint64_t again_ns = labeller->looked_ns + AGAIN_SECONDS * SL_NS_PER_S;
    if (done == 0 && (!labeller->looked_ns || sl_now_ns() > again_ns ||
                      !names_equal(&labeller->applied, &ready)))
        done = update(labeller, &ready, err);
    if (done == 0) {
        names_release(&labeller->applied);
        labeller->applied = ready;
        return 0;
    }
    names_release(&ready);
    return -1;
}

/* What goes on being wrong is told once. */
static void complain(struct labeller *labeller, const struct sl_err *why)
{
    if (why->kind == SL_E_CANCELED || strcmp(why->message, labeller->complaint) == 0)
        return;
    snprintf(labeller->complaint, sizeof(labeller->complaint), "%s", why->message);
    sl_log(SL_LOG_WARN, "%s", why->message);
}

static void follow(struct labeller *labeller, unsigned seconds)
{
    do {
        struct sl_err why = SL_ERR_INIT;
        if (look(labeller, &why) < 0)
            complain(labeller, &why);
        else
            *labeller->complaint = 0;
    } while (sl_sleep_ms(seconds * 1000, labeller->cancel, NULL) == 0);
}

static const char *given(const char *value, const char *variable)
{
    value = value && *value ? value : getenv(variable);
    return value ? value : "";
}

/* Without slashes at its end: a path follows. */
static char *trim_url(const char *url, struct sl_err *err)
{
    size_t bytes = strlen(url);
    while (bytes && url[bytes - 1] == '/')
        bytes--;
    return sl_strndup(url, bytes, err);
}

/* At once: else it would be complained of for ever. */
static int check_urls(const char *daemon, const char *api, struct sl_err *err)
{
    sl_autourl parsed = {0}, api_parsed = {0};
    if (sl_url_parse(daemon, &parsed, err) < 0)
        return sl_wrap(err, "--daemon");
    if (sl_url_parse(api, &api_parsed, err) < 0)
        return sl_wrap(err, "--api");
    return sl_token_url_check(api, "--api", err);
}

static char *make_api(const char *value, struct sl_err *err)
{
    const char *host = given(NULL, "KUBERNETES_SERVICE_HOST");
    const char *port = given(NULL, "KUBERNETES_SERVICE_PORT");
    if (value && *value)
        return trim_url(value, err);
    if (*host && *port)
        return sl_asprintf(err, strchr(host, ':') ? "https://[%s]:%s" : "https://%s:%s", host,
                           port);
    sl_fail(err, SL_E_USAGE, "where is the API server? Give --api, or run this in a pod");
    return NULL;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct label_options *options = cli->options;
    const char *node = given(options->node, "NODE_NAME");
    sl_autofree char *daemon = trim_url(options->daemon, err);
    struct labeller labeller = {.cancel = cli->cancel,
                                .daemon = daemon,
                                .prefix = options->prefix,
                                .taint = options->startup_taint ? options->startup_taint : "",
                                .driver = options->driver,
                                .account = options->account};
    if (!is_domain(node))
        return sl_fail(err, SL_E_USAGE,
                       "'%.80s' is not a name of a node: give --node or $NODE_NAME", node);
    if (!is_domain(labeller.prefix))
        return sl_fail(err, SL_E_USAGE, "--prefix: '%.80s' is not a domain in lower case",
                       labeller.prefix);
    sl_autofree char *api = make_api(options->api, err);
    sl_autofree char *url = api ? sl_asprintf(err, "%s/api/v1/nodes/%s", api, node) : NULL;
    sl_autofree char *drivers =
        api ? sl_asprintf(err, "%s/apis/storage.k8s.io/v1/csinodes/%s", api, node) : NULL;
    labeller.node_url = url;
    labeller.drivers_url = drivers;
    if (!daemon || !url || !drivers || check_urls(daemon, url, err) < 0)
        return -1;
    int done = 0;
    sl_cli_shut_others_out();
    if (options->every_seconds)
        follow(&labeller, (unsigned)options->every_seconds);
    else
        done = look(&labeller, err);
    names_release(&labeller.applied);
    return done;
}

const struct sl_command sl_cmd_label = {
    .name = "label",
    .usage = "sluice label [--node NAME]",
    .summary = "label this node of a Kubernetes cluster with the models that its daemon has",
    .description =
        "For a container beside `sluice serve`; the chart's node.labels runs it. Each model of the "
        "daemon's config that is whole and in memory becomes a label of the node, "
        "`model.csi.sluice.dev/NAME: ready`, by which a scheduler finds such nodes. The label is "
        "removed when the model is no longer there. Labels with another prefix are never touched, "
        "and no label is while the daemon does not answer. Models that pods asked for by URI get "
        "no labels.\n"
        "\n"
        "With --startup-taint it removes the taint with this key from the node, as soon as the "
        "CSINode of the node has the driver. Nodes are made with it, so that pods which do not "
        "tolerate it wait until then.\n"
        "\n"
        "It needs a service account that may get and patch nodes, and get csinodes for the taint. "
        "It ends at SIGTERM with exit code 0 and leaves the labels: models outlive the daemon.",
    .examples = "sluice label --node \"$NODE_NAME\"                # until SIGTERM\n"
                "sluice label --every-seconds 0               # once: exit code 3 if it may not",
    .options = &table,
    .operand_min = 0,
    .operand_max = 0,
    .run = run,
};
