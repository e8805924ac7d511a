/* Versions of one object, named in the sources of a node's models: models of their own, whatever
 * the store says of them. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "model_maker.h"
#include "node_case.h"
#include "range_server.h"
#include "registry_settle.h"

enum { VERSIONS = 2, ITEMS = 1000 };
enum says { ID, ETAG, NOTHING, SAYS };

static struct node_case c;
static struct sl_server *server;
static struct {
    uint8_t *data;
    size_t bytes;
} versions[VERSIONS];
static enum says says;

/* Without the name of a version there is nothing. */
static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    static const char query[] = "/b/m.safetensors?versionId=v";
    unsigned long begin, end;
    char range[64];
    (void)arg;
    size_t which = strncmp(request->target, query, sizeof(query) - 1) == 0
                       ? (size_t)(request->target[sizeof(query) - 1] - 'A')
                       : VERSIONS;
    if (which >= VERSIONS) {
        reply->status = 404;
        return true;
    }
    size_t bytes = versions[which].bytes;
    ck_assert(sl_server_header(request, "Range", range, sizeof(range)));
    ck_assert_int_eq(sscanf(range, "bytes=%lu-%lu", &begin, &end), 2);
    end = end < bytes ? end : bytes - 1;
    reply->status = 206;
    int used = snprintf(reply->headers, sizeof(reply->headers),
                        "Content-Range: bytes %lu-%lu/%zu\r\n", begin, end, bytes);
    if (says == ID)
        snprintf(reply->headers + used, 100, "x-amz-version-id: v%c\r\n", (char)('A' + which));
    else if (says == ETAG)
        snprintf(reply->headers + used, 100, "ETag: \"%zu\"\r\n", which);
    reply->body_bytes = end + 1 - begin;
    reply->body = malloc(reply->body_bytes);
    memcpy(reply->body, versions[which].data + begin, reply->body_bytes);
    return true;
}

static void setup(void)
{
    node_case_init(&c);
    server = sl_server_start();
    for (unsigned i = 0; i < VERSIONS; i++)
        versions[i].data = sl_model_safetensors("a", ITEMS * (i + 1), &versions[i].bytes);
    sl_server_handle(server, serve, NULL);
}

static void teardown(void)
{
    node_case_release(&c);
    sl_server_stop(server);
    for (unsigned i = 0; i < VERSIONS; i++)
        free(versions[i].data);
}

SL_CASE(.setup = setup, .teardown = teardown)

static size_t add_model(char *text, size_t room, const char *name, unsigned version)
{
    return (size_t)snprintf(text, room,
                            "---\napiVersion: sluice/v1alpha1\nkind: Model\n"
                            "metadata: {name: %s}\n"
                            "source: {uri: \"s3://b/m.safetensors#v%c\", s3: {endpoint: \"%s\", "
                            "anonymous: true, addressing: path}}\nsink: {pool: {}}\n",
                            name, (char)('A' + version), sl_server_url(server, ""));
}

/* Attach, and see which version it is. */
static struct sluice_model *expect_version(const char *name, unsigned version)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    struct sluice_model *model = node_case_load(&c, name);
    ck_assert_msg(model != NULL, "%s", c.error.message);
    ck_assert_int_eq(sluice_wait_all(model, -1, -1, &c.error), 0);
    ck_assert_int_eq(sluice_find(model, "a", &tensor, &c.error), 0);
    ck_assert_uint_eq(tensor.bytes, sizeof(float) * ITEMS * (version + 1));
    return model;
}

SL_TEST_LOOP(two_versions_of_one_key_are_two_models, 0, SAYS)
{
    struct sluice_model_info infos[VERSIONS] = {{.size = sizeof(infos[0])},
                                                {.size = sizeof(infos[0])}};
    struct sluice_model *models[VERSIONS];
    char text[2048];
    says = (enum says)_i;
    size_t used = add_model(text, sizeof(text), "one", 0);
    add_model(text + used, sizeof(text) - used, "two", 1);
    node_case_open(&c, "", text, NULL);
    for (unsigned i = 0; i < VERSIONS; i++) {
        models[i] = expect_version(i ? "two" : "one", i);
        sluice_model_info(models[i], &infos[i]);
    }
    ck_assert_int_ne(memcmp(infos[0].identity, infos[1].identity, sizeof(infos[0].identity)), 0);
    sl_registry_settle(c.node->registry);
    ck_assert_uint_eq(node_case_counts(&c).loads, VERSIONS);
    for (unsigned i = 0; i < VERSIONS; i++)
        sluice_detach(models[i]);
    ck_assert_uint_ne(node_case_inode(&c, "one", NULL), node_case_inode(&c, "two", NULL));
}

/* What lies there of the other version is not taken for it. */
SL_TEST_LOOP(a_model_whose_source_names_another_version_is_loaded_again, 0, SAYS)
{
    char text[2048];
    says = (enum says)_i;
    for (unsigned i = 0; i < 2 * VERSIONS; i++) {
        add_model(text, sizeof(text), "one", i % VERSIONS);
        node_case_open(&c, "", text, NULL);
        sluice_detach(expect_version("one", i % VERSIONS));
        node_case_end(&c);
    }
}
