/* Who may have what, with whose rights: namespaces, prefixes, secrets, tokens. */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "log.h"
#include "metrics.h"
#include "range_server.h"
#include "volume_case.h"
#include "volumes_parts.h"

static struct volume_case c;
static struct volume_ask_case request;
static struct sl_server *server;

#define TOKENS "csi.storage.k8s.io/serviceAccount.tokens"
#define SPACE  "csi.storage.k8s.io/pod.namespace"
#define ROLE   "arn:aws:iam::1:role/a"

static void setup(void)
{
    setenv("AWS_EC2_METADATA_DISABLED", "true", 1);
    setenv("AWS_ACCESS_KEY_ID", "AKDAEMON", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "daemonsecret", 1);
    volume_case_init(&c);
    server = NULL;
}

static void teardown(void)
{
    volume_case_release(&c);
    if (server)
        sl_server_stop(server);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible)

/* ---- the matrix ----------------------------------------------------------------------------- */

enum { ASK_MODEL = 1, ASK_URI = 2, ASK_SECRET = 4, ASK_TOKEN = 8, ASK_POOL = 16 };

SL_TEST(every_row_of_a_namespace_grants_only_what_it_says)
{
    static const struct {
        const char *space;
        int ask;
        const char *what;
        const char *refusal; /* NULL: granted */
        const char *sharing;
    } rows[] = {
        {"team-a", ASK_MODEL, "gpt-j", NULL, ""},
        {"team-a", ASK_MODEL, "gpt-x", NULL, ""},
        {"team-a", ASK_MODEL, "llama", "may not mount the model 'llama'", ""},
        {"team-a", ASK_URI, "s3://team-a/x", "must bring its own credentials", ""},
        {"team-a", ASK_URI | ASK_SECRET, "s3://team-a/x", NULL, "secret "},
        {"team-a", ASK_URI | ASK_TOKEN, "s3://team-a/x", "must bring its own credentials", ""},
        {"team-a", ASK_URI | ASK_SECRET, "s3://team-b/x", "may not ask for 's3://team-b/x'", ""},
        {"team-a", ASK_URI | ASK_SECRET, "https://u:hush@h/x", "may not ask for 'https://h/x'", ""},
        {"team-a", ASK_URI | ASK_SECRET, "s3://team-a/../team-b/x", "'..'", ""},
        {"team-a", ASK_POOL, "", "may not use the pool", ""},
        {"team-b", ASK_URI | ASK_TOKEN, "s3://team-b/x", NULL, "token "},
        {"team-b", ASK_URI, "s3://team-b/x", "no token", ""},
        {"team-b", ASK_URI | ASK_SECRET, "s3://team-b/x", "may not use a secret", ""},
        {"team-b", ASK_MODEL, "llama", NULL, ""},
        {"team-c", ASK_URI, "s3://shared/x", NULL, "daemon 0"},
        {"team-c", ASK_URI | ASK_TOKEN, "s3://shared/x", NULL, "daemon 0"},
        {"team-c", ASK_URI | ASK_SECRET, "s3://shared/x", "may not use a secret", ""},
        {"team-c", ASK_URI, "/srv/models/x", NULL, "daemon 12"},
        {"team-c", ASK_POOL, "", NULL, ""},
        {"team-d", ASK_URI | ASK_SECRET, "https://h/m/x", "only for s3://", ""},
        {"team-d", ASK_URI, "https://h/m/x", NULL, "daemon 0"},
        {"nobody", ASK_MODEL, "gpt-j", "may mount nothing", ""},
        {"nobody", ASK_URI, "s3://shared/x", "may mount nothing", ""},
    };
    snprintf(c.keys, sizeof(c.keys), "pool: {socket: %s/pool.sock}", c.path);
    snprintf(
        c.csi, sizeof(c.csi),
        ", namespaces: ["
        "{name: team-a, models: [\"gpt-*\"], uriPrefixes: [\"s3://team-a/\"], credentials: "
        "[secret]},"
        "{name: team-b, uriPrefixes: [\"s3://team-b/\"], credentials: [token], roleArn: \"" ROLE
        "\"},"
        "{name: team-c, uriPrefixes: [\"s3://shared/\", \"/srv/models/\"], pool: true},"
        "{name: team-d, uriPrefixes: [\"https://h/m/\"], credentials: [daemon, secret]}]");
    volume_case_open(&c);
    const uint8_t salt[SL_VOLUME_SALT] = {1};
    const struct sl_volume_pair secrets[] = {{"access_key_id", "AK"},
                                             {"secret_access_key", "hush"}};
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        int ask = rows[i].ask;
        struct sl_volume_grant grant;
        struct sl_volume_request asked = {.pod_namespace = rows[i].space,
                                          .pod = "p",
                                          .account = "default",
                                          .pool = ask & ASK_POOL,
                                          .model = ask & ASK_MODEL ? rows[i].what : NULL,
                                          .uri = ask & ASK_URI ? rows[i].what : NULL};
        if (ask & ASK_TOKEN)
            asked.tokens = "{\"sts.amazonaws.com\": {\"token\": \"jwt\"}}";
        c.err = (struct sl_err)SL_ERR_INIT;
        int done = sl_volume_rights_grant(&c.volumes->locked.rights, &asked, secrets,
                                          ask & ASK_SECRET ? 2 : 0, salt, &grant, &c.err);
        ck_assert_msg((done == 0) == !rows[i].refusal, "%zu: %s", i, c.err.message);
        if (rows[i].refusal)
            ck_assert_msg(strstr(c.err.message, rows[i].refusal), "%zu: %s", i, c.err.message);
        else
            ck_assert_msg(strncmp(grant.sharing, rows[i].sharing, strlen(rows[i].sharing)) == 0,
                          "%zu: %s", i, grant.sharing);
        ck_assert_ptr_null(strstr(c.err.message, "hush"));
        sl_caller_credentials_release(&grant.credentials);
    }
}

static void sharing_of(const char *space, const char *access, const char *secret, const char *token,
                       char text[128])
{
    const uint8_t salt[SL_VOLUME_SALT] = {1};
    const struct sl_volume_pair secrets[] = {
        {"access_key_id", access}, {"secret_access_key", secret}, {"session_token", token}};
    const struct sl_volume_request asked = {.pod_namespace = space, .uri = "s3://b/x"};
    struct sl_volume_grant grant;
    ck_assert_int_eq(
        sl_volume_rights_grant(&c.volumes->locked.rights, &asked, secrets, 3, salt, &grant, &c.err),
        0);
    snprintf(text, 128, "%s", grant.sharing);
    sl_caller_credentials_release(&grant.credentials);
}

SL_TEST(only_equal_secrets_of_one_namespace_share_a_copy)
{
    char first[128], other[128];
    snprintf(c.csi, sizeof(c.csi),
             ", namespaces: [{name: \"*\", uriPrefixes: [\"s3://b/\"], credentials: [secret]}]");
    volume_case_open(&c);
    sharing_of("team-a", "AK", "hush", "", first);
    sharing_of("team-a", "AK", "hush", "", other);
    ck_assert_str_eq(first, other);
    static const char *const others[][4] = {{"team-b", "AK", "hush", ""},
                                            {"team-a", "AK", "wrong", ""},
                                            {"team-a", "AK2", "hush", ""},
                                            {"team-a", "AK", "hush", "session"},
                                            {"team-a", "AKh", "ush", ""}};
    for (size_t i = 0; i < SL_COUNT(others); i++) {
        sharing_of(others[i][0], others[i][1], others[i][2], others[i][3], other);
        ck_assert_str_ne(first, other);
    }
}

/* ---- a store that lets keys in -------------------------------------------------------------- */

static unsigned exchanged;

static void refuse(struct sl_server_reply *reply)
{
    reply->status = 403;
    reply->body = strdup("<Error><Code>AccessDenied</Code><Message>no</Message></Error>");
    reply->body_bytes = strlen(reply->body);
}

/* STS, and a bucket that lets in AKTEAMA and what STS gave out. */
static bool judge(const struct sl_server_request *sent, struct sl_server_reply *reply, void *arg)
{
    (void)arg;
    char line[1024] = "";
    if (strcmp(sent->method, "POST") == 0 && strstr(sent->body, "AssumeRoleWithWebIdentity")) {
        exchanged++;
        if (!strstr(sent->body, "&WebIdentityToken=jwt-of-b&") &&
            !strstr(sent->body, "&WebIdentityToken=jwt-of-b")) {
            refuse(reply);
            return true;
        }
        reply->status = 200;
        reply->body = strdup(
            "<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>"
            "<AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKROLEB</AccessKeyId>"
            "<SecretAccessKey>SK</SecretAccessKey><SessionToken>TK</SessionToken>"
            "<Expiration>2999-01-01T00:00:00Z</Expiration></Credentials>"
            "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>");
        reply->body_bytes = strlen(reply->body);
        return true;
    }
    sl_server_header(sent, "Authorization", line, sizeof(line));
    bool is_a = strstr(line, "Credential=AKTEAMA/"), is_b = strstr(line, "Credential=AKROLEB/");
    if (is_a || is_b || strstr(line, "Credential=AKDAEMON/shared"))
        return false;
    refuse(reply);
    return true;
}

static void start_store(void)
{
    static uint8_t bytes[5000];
    server = sl_server_start();
    sl_server_put(server, "/b/x.bin", bytes, sizeof(bytes), "\"1\"");
    sl_server_handle(server, judge, NULL);
    setenv("AWS_ENDPOINT_URL_S3", sl_server_url(server, ""), 1);
    setenv("AWS_ENDPOINT_URL_STS", sl_server_url(server, ""), 1);
    *c.models = 0; /* its load would count, whenever it ends */
    snprintf(c.csi, sizeof(c.csi),
             ", namespaces: ["
             "{name: team-a, uriPrefixes: [\"s3://b/\"], credentials: [secret]},"
             "{name: team-b, uriPrefixes: [\"s3://b/\"], credentials: [token], roleArn: \"" ROLE
             "\"},"
             "{name: team-c, uriPrefixes: [\"s3://b/\"]}]");
    volume_case_open(&c);
}

static void ask_uri(const char *uid, const char *space)
{
    volume_case_wish(&c, &request, uid);
    volume_case_set(&request, "model", NULL);
    volume_case_set(&request, "uri", "s3://b/x.bin");
    volume_case_set(&request, SPACE, space);
}

static void bring(const char *access, const char *secret)
{
    volume_case_secret(&request, "access_key_id", access);
    volume_case_secret(&request, "secret_access_key", secret);
}

static uint64_t loads(void)
{
    struct sl_registry_counts counts;
    sl_registry_counts(c.node->registry, &counts);
    return counts.loads;
}

SL_TEST(a_tenant_reads_with_its_own_rights_alone)
{
    start_store();
    ask_uri("a1", "team-a");
    bring("AKTEAMA", "hush-a");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    ck_assert_uint_eq(c.volumes->locked.credentials.count, 0); /* wiped when it was loaded */
    uint64_t before = loads();

    ask_uri("a2", "team-a"); /* the same secret: what is there */
    bring("AKTEAMA", "hush-a");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    ck_assert_uint_eq(loads(), before);

    ask_uri("a3", "team-a"); /* nothing that it could not read itself, and no fall back */
    bring("AKOTHER", "hush-a");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, c.err.code,
                        "model s3://b/x.bin: ");
    ask_uri("a4", "team-a");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, "", "must bring its own");
    ask_uri("a5", "team-c"); /* with the daemon's, which the store does not let in */
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, c.err.code,
                        "model s3://b/x.bin: ");
    ask_uri("a6", "team-a"); /* half of a secret */
    volume_case_secret(&request, "access_key_id", "AKTEAMA");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, "",
                        "needs access_key_id and secret_access_key");
    volume_case_set(&request, "uri", NULL);
    volume_case_set(&request, "model", "uri-0000");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NOT_FOUND, "", "has no model");
    ck_assert_uint_eq(c.volumes->locked.credentials.count, 0);
}

SL_TEST(a_name_of_a_tenants_copy_is_no_way_to_it)
{
    char name[64];
    start_store();
    ask_uri("a1", "team-a");
    bring("AKTEAMA", "hush-a");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    snprintf(name, sizeof(name), "%s", c.volumes->locked.volumes->record.model);
    volume_case_wish(&c, &request, "b1");
    volume_case_set(&request, SPACE, "team-b");
    volume_case_set(&request, "model", name);
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NOT_FOUND, "", "has no model");
}

SL_TEST(a_pods_token_is_exchanged_for_its_namespaces_role)
{
    start_store();
    ask_uri("b1", "team-b");
    volume_case_secret(&request, TOKENS, "{\"sts.amazonaws.com\": {\"token\": \"jwt-of-b\"}}");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    ck_assert_uint_eq(exchanged, 1);
    uint64_t before = loads();
    ask_uri("b2", "team-b"); /* as attribute, too, and the service account is the same */
    volume_case_set(&request, TOKENS, "{\"other\": {\"token\": \"jwt-of-b\"}}");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    ck_assert_uint_eq(loads(), before);
    ask_uri("b3", "team-b"); /* another one has its own */
    volume_case_set(&request, "csi.storage.k8s.io/serviceAccount.name", "intruder");
    volume_case_set(&request, TOKENS, "{\"sts.amazonaws.com\": {\"token\": \"jwt-of-x\"}}");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, c.err.code,
                        "model s3://b/x.bin: ");
    static const char *const bad[] = {"{}", "no JSON", "[]", "{\"a\": {\"token\": \"\"}}",
                                      "{\"a\": {\"token\": \"x\"}, \"b\": {\"token\": \"y\"}}"};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ask_uri("b4", "team-b");
        volume_case_set(&request, TOKENS, bad[i]);
        volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, "",
                            "no token for the");
    }
}

static unsigned files_seen;

/* Manifests, journals, records, kept specs. */
static int look_for_secrets(const char *path, const struct stat *status, int type, struct FTW *at)
{
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    (void)at;
    if (type != FTW_F || !S_ISREG(status->st_mode))
        return 0;
    files_seen++;
    return sl_buf_read_file(&text, path, &c.err) < 0 || memmem(text.data, text.used, "hush", 4) ||
           memmem(text.data, text.used, "AKTEAMA", 7);
}

SL_TEST(no_secret_is_told_anywhere)
{
    sl_autobuf out = SL_BUF_INIT(4 << 20);
    struct sl_json json;
    start_store();
    ask_uri("a1", "team-a");
    bring("AKTEAMA", "hush-a");
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);
    ck_assert_int_eq(sl_metrics_write(&out, false, &c.err), 0);
    sl_json_init(&json, 4 << 20);
    sl_json_object(&json);
    sl_registry_json(c.node->registry, true, &json);
    sl_volumes_json(c.volumes, &json);
    sl_json_end(&json);
    ck_assert_int_eq(sl_buf_text(&out, sl_json_text(&json, &c.err), &c.err), 0);
    sl_json_release(&json);
    ck_assert_ptr_nonnull(strstr(sl_buf_string(&out), "\"namespace\":\"team-a\""));
    ck_assert_ptr_null(strstr(sl_buf_string(&out), "hush"));
    ck_assert_ptr_null(strstr(sl_buf_string(&out), "AKTEAMA"));
    ck_assert_int_eq(nftw(c.path, look_for_secrets, 16, FTW_PHYS), 0);
    ck_assert_uint_ge(files_seen, 4);
}

/* ---- the pool ------------------------------------------------------------------------------- */

SL_TEST(a_pod_gets_the_folder_of_the_pools_socket_and_nothing_else)
{
    char folder[VOLUME_CASE_PATH], path[VOLUME_CASE_PATH * 2];
    snprintf(folder, sizeof(folder), "%s/pool", c.path);
    ck_assert_int_eq(mkdir(folder, 0755), 0);
    snprintf(c.keys, sizeof(c.keys), "pool: {socket: %s/pool.sock}", folder);
    snprintf(c.csi, sizeof(c.csi), ", namespaces: [{name: team-a, pool: true}]");
    volume_case_open(&c);
    volume_case_wish(&c, &request, "u1");
    volume_case_set(&request, "model", NULL);
    volume_case_set(&request, "pool", "true");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NO_SPACE, "folder",
                        "and nothing else");

    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(path, sizeof(path), "%s/pool.sock", folder);
    ck_assert_uint_lt(strlen(path), sizeof(address.sun_path));
    memcpy(address.sun_path, path, strlen(path) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    ck_assert_msg(volume_case_publish(&c, &request) == 0, "%s", c.err.message);

    char linked[64]; /* the target's own path is longer than an address takes */
    snprintf(linked, sizeof(linked), "/proc/self/cwd/pool.sock");
    ck_assert_int_eq(chdir(request.target), 0);
    memcpy(address.sun_path, linked, strlen(linked) + 1);
    int client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(client, (struct sockaddr *)&address, sizeof(address)), 0);
    ck_assert_int_eq(unlink("pool.sock"), -1); /* read-only */
    ck_assert_int_eq(chdir("/"), 0);
    close(client);
    volume_case_end(&c);
    ck_assert_int_eq(unlink(path), 0); /* a daemon that ends takes its socket along */
    volume_case_open(&c);              /* and the next daemon knows it */
    ck_assert_uint_eq(volume_case_mounts(request.target), 1);
    ck_assert_int_eq(volume_case_unpublish(&c, &request), 0);
    ck_assert_uint_eq(volume_case_mounts(request.target), 0);
    close(fd);

    snprintf(path, sizeof(path), "%s/control.sock", folder);
    ck_assert_int_eq(mkdir(path, 0755), 0);
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_NO_SPACE, "folder",
                        "and nothing else");
}

/* ---- checks beforehand, and a new config ---------------------------------------------------- */

SL_TEST(what_can_never_be_published_is_told_beforehand)
{
    const struct sl_volume_pair good = {"model", "m"}, unknown = {"model", "x"},
                                odd = {"size", "1"}, uri = {"uri", "s3://b/x"};
    volume_case_open(&c);
    ck_assert_int_eq(sl_volumes_check(c.volumes, &good, 1, &c.err), 0);
    const struct sl_volume_pair *bad[] = {&unknown, &odd, &uri};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        ck_assert_int_eq(sl_volumes_check(c.volumes, bad[i], 1, &c.err), -1);
        ck_assert_int_eq(c.err.kind, SL_E_USAGE);
    }
}

SL_TEST(a_new_config_changes_rights_and_takes_no_mount_away)
{
    struct sl_node_spec_namespace row = {.name = (char *)(uintptr_t) "team-z"};
    struct sl_node_spec spec = {.csi = {.namespaces = {&row, 1}}};
    volume_case_open(&c);
    volume_case_mounted(&c, &request, "u1");
    ck_assert_int_eq(sl_volumes_reload(c.volumes, &spec, &c.err), 0);
    ck_assert_int_eq(volume_case_publish(&c, &request), 0); /* for a mounted target always */
    volume_case_wish(&c, &request, "u2");
    volume_case_refused(&c, volume_case_publish(&c, &request), SL_E_AUTH, "", "may mount nothing");
}
