/* What a registry is told and says: references, manifests, challenges, logins. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "buf.h"
#include "claims.h"
#include "cpu_time.h"
#include "fake_clock.h"
#include "oci_store.h"
#include "stores.h"
#include "thread.h"

#define DIGEST "sha256:00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

/* ---- references ------------------------------------------------------------------------------ */

static const struct {
    const char *uri, *host, *repo, *reference, *path;
} good_uris[] = {
    {"oci://ghcr.io/org/model", "ghcr.io", "org/model", "latest", ""},
    {"oci://ghcr.io/org/model/", "ghcr.io", "org/model", "latest", ""},
    {"OCI://localhost:5000/a/b/c:v1.2_x-y", "localhost:5000", "a/b/c", "v1.2_x-y", ""},
    {"oci://localhost/m@" DIGEST, "localhost", "m", DIGEST, ""},
    {"oci://h.io/m:tag@" DIGEST "/x", "h.io", "m", DIGEST, "x"},
    {"oci://h.io/m:v1/sub/a b%.bin", "h.io", "m", "v1", "sub/a b%.bin"},
    {"oci://h.io/m:v1/sub/", "h.io", "m", "v1", "sub/"},
    {"oci://llama", "docker.io", "library/llama", "latest", ""},
    {"oci://org/llama:7b", "docker.io", "org/llama", "7b", ""},
    {"oci://docker.io/llama", "docker.io", "library/llama", "latest", ""},
    {"oci://[::1]:5000/m:v1", "[::1]:5000", "m", "v1", ""},
    {"oci://h.io/a__b/c---d.e", "h.io", "a__b/c---d.e", "latest", ""},
};

SL_TEST_LOOP(a_reference_is_taken_apart, 0, SL_COUNT(good_uris))
{
    struct sl_oci_uri parts;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_oci_uri_parse(good_uris[_i].uri, &parts, &err) == 0, "%s: %s",
                  good_uris[_i].uri, err.message);
    ck_assert_str_eq(parts.host, good_uris[_i].host);
    ck_assert_str_eq(parts.repo, good_uris[_i].repo);
    ck_assert_str_eq(parts.reference, good_uris[_i].reference);
    ck_assert_str_eq(parts.path, good_uris[_i].path);
    sl_oci_uri_release(&parts);
}

static const struct {
    const char *uri, *says;
} bad_uris[] = {
    {"oci://", "names no repository"},
    {"oci:///x", "names no repository"},
    {"oci://ghcr.io/", "names no repository"},
    {"oci://ghcr.io/Org/Model", "names no repository"},
    {"oci://ghcr.io/org//model", "names no repository"},
    {"oci://ghcr.io/-org", "names no repository"},
    {"oci://ghcr.io/a._b", "names no repository"},
    {"oci://ghcr.io/../x", "names no repository"},
    {"oci://user:pass@ghcr.io/m", "names no registry"},
    {"oci://ghcr.io?x=1/m", "names no registry"},
    {"oci://ghcr.io/m:", "invalid tag"},
    {"oci://ghcr.io/m:.v1", "invalid tag"},
    {"oci://ghcr.io/m:v1 x", "invalid tag"},
    {"oci://ghcr.io/m@sha256:12", "has a digest"},
    {"oci://ghcr.io/m@sha512:" DIGEST, "has a digest"},
    {"oci://ghcr.io/m:v1/../x", "invalid path"},
    {"oci://ghcr.io/m:v1//x", "invalid path"},
};

SL_TEST_LOOP(a_wrong_reference_is_refused, 0, SL_COUNT(bad_uris))
{
    struct sl_oci_uri parts;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_oci_uri_parse(bad_uris[_i].uri, &parts, &err), 0);
    ck_assert_msg(strstr(err.message, bad_uris[_i].says), "%s: %s", bad_uris[_i].uri, err.message);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    sl_oci_uri_release(&parts);
}

SL_TEST(no_prefix_of_a_reference_is_read_beyond)
{
    static const char uri[] = "oci://ghcr.io:443/org/model_x:v1@" DIGEST "/sub/file.bin";
    for (size_t bytes = 0; bytes < sizeof(uri); bytes++) {
        struct sl_oci_uri parts;
        struct sl_err err = SL_ERR_INIT;
        sl_autofree char *text = strndup(uri, bytes); /* so that a sanitizer sees its end */
        sl_oci_uri_parse(text, &parts, &err);
        sl_oci_uri_release(&parts);
    }
}

/* ---- manifests ------------------------------------------------------------------------------- */

static int parse(const char *text, struct sl_oci_manifest *manifest, struct sl_err *err)
{
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_oci_manifest_parse(text, strlen(text), "cannot open 'oci://h/m'", manifest, err);
}

#define LAYER(type, more)                                                                          \
    "{\"mediaType\":\"" type "\",\"size\":7,\"digest\":\"" DIGEST "\"" more "}"
#define NAMED(name) ",\"annotations\":{\"org.opencontainers.image.title\":\"" name "\"}"

/* clang-format off */
static const char packed[] = "{\"layers\":["
    LAYER("x/raw", NAMED("a.bin")) ","
    LAYER("application/vnd.docker.ai.gguf.v3", "") ","
    LAYER("application/vnd.docker.ai.gguf.v3", "") ","
    LAYER("application/vnd.docker.ai.license", "") ","
    LAYER("application/vnd.ollama.image.json", ",\"name\":\"t.json\"") ","
    LAYER("x/signature", "") "]}";
/* clang-format on */

SL_TEST(names_come_from_annotations_and_kinds)
{
    static const char *const names[] = {"a.bin", "model-00001-of-00002.gguf",
                                        "model-00002-of-00002.gguf", "LICENSE", "t.json"};
    struct sl_oci_manifest manifest;
    struct sl_err err;
    ck_assert_int_eq(parse(packed, &manifest, &err), 0);
    ck_assert_uint_eq(manifest.count, SL_COUNT(names));
    for (size_t i = 0; i < SL_COUNT(names); i++) {
        ck_assert_str_eq(manifest.files[i].name, names[i]);
        ck_assert_uint_eq(manifest.files[i].bytes, 7);
        ck_assert_str_eq(manifest.files[i].pin, DIGEST);
        ck_assert(manifest.files[i].hashed);
        ck_assert_uint_eq(manifest.files[i].sha256[1], 0x11);
    }
    sl_oci_manifest_release(&manifest);
}

/* In any order, below a folder or not; of two of one name the first. */
SL_TEST(a_file_is_found_by_its_name)
{
    static const char text[] =
        "{\"layers\":[" LAYER("x", NAMED("s/b")) "," LAYER("x", NAMED("s.b")) "," LAYER(
            "x", NAMED("a")) "," LAYER("x", NAMED("s/a")) "," LAYER("x", NAMED("a")) "]}";
    struct sl_oci_manifest manifest;
    struct sl_err err;
    ck_assert_int_eq(parse(text, &manifest, &err), 0);
    ck_assert_int_eq(sl_oci_manifest_sort(&manifest, &err), 0);
    ck_assert_ptr_eq(sl_oci_manifest_find(&manifest, "", "s/b"), &manifest.files[0]);
    ck_assert_ptr_eq(sl_oci_manifest_find(&manifest, "s/", "b"), &manifest.files[0]);
    ck_assert_ptr_eq(sl_oci_manifest_find(&manifest, "s/", "a"), &manifest.files[3]);
    ck_assert_ptr_eq(sl_oci_manifest_find(&manifest, "", "a"), &manifest.files[2]);
    ck_assert_ptr_eq(sl_oci_manifest_find(&manifest, "", "s.b"), &manifest.files[1]);
    ck_assert_ptr_null(sl_oci_manifest_find(&manifest, "s/", ""));
    ck_assert_ptr_null(sl_oci_manifest_find(&manifest, "s/", "c"));
    ck_assert_ptr_null(sl_oci_manifest_find(&manifest, "", "z"));
    ck_assert_ptr_null(sl_oci_manifest_find(&manifest, "", ""));
    sl_oci_manifest_release(&manifest);
}

/* How long it takes to read a manifest of so many layers, with names of their own or without. */
static uint64_t read_layers(const char *type, bool named, unsigned count)
{
    struct sl_err err = SL_ERR_INIT;
    struct sl_oci_manifest manifest;
    sl_autobuf text = SL_BUF_INIT(8 << 20);
    ck_assert_int_eq(sl_buf_text(&text, "{\"layers\":[", &err), 0);
    for (unsigned i = 0; i < count; i++) {
        sl_buf_printf(&text, &err, "%s{\"mediaType\":\"%s\",\"size\":7,\"digest\":\"" DIGEST "\"",
                      i ? "," : "", type);
        if (named)
            sl_buf_printf(&text, &err, ",\"name\":\"LICENSE-%05u-of-%05u\"", i + 1, count);
        ck_assert_int_eq(sl_buf_text(&text, "}", &err), 0);
    }
    ck_assert_int_eq(sl_buf_text(&text, "]}", &err), 0);
    struct sl_cpu_time before = sl_cpu_time();
    ck_assert_msg(parse(sl_buf_string(&text), &manifest, &err) == 0, "%s", err.message);
    uint64_t used_ns = sl_cpu_time_between(before, sl_cpu_time()).used_ns;
    ck_assert_uint_eq(manifest.count, count);
    ck_assert_str_eq(manifest.files[count - 1].name, "LICENSE-20000-of-20000");
    sl_oci_manifest_release(&manifest);
    return used_ns;
}

/* Those are numbered, and each number must not be counted anew. */
SL_TEST(the_work_on_layers_without_names_grows_with_their_number_alone)
{
    static const char type[] = "application/vnd.ollama.image.license";
    uint64_t named_ns = read_layers(type, true, 20000);
    uint64_t unnamed_ns = read_layers(type, false, 20000);
    ck_assert_msg(unnamed_ns < 20 * named_ns + SL_NS_PER_S, "%u ms with names, %u ms without",
                  (unsigned)(named_ns / SL_NS_PER_MS), (unsigned)(unnamed_ns / SL_NS_PER_MS));
}

static const struct {
    const char *text, *says;
} bad_manifests[] = {
    {"", "near end of file"},
    {"[]", "not a manifest"},
    {"{}", "not a manifest"},
    {"{\"layers\":[]}", "none of its 0 layers"},
    {"{\"layers\":[{\"mediaType\":\"x.tar\",\"size\":-1,\"digest\":\"" DIGEST "\"}]}",
     "not a size"},
    {"{\"layers\":[{\"mediaType\":\"x.tar\",\"size\":1,\"digest\":\"\"}]}", "a digest"},
    {"{\"layers\":[{\"mediaType\":\"x\",\"size\":-1,\"digest\":\"" DIGEST "\"" NAMED("a") "}]}",
     "not a size"},
    {"{\"layers\":[{\"mediaType\":\"x\",\"size\":9223372036854775807,\"digest\":\"" DIGEST
     "\"" NAMED("a") "}]}",
     "not a size"},
    {"{\"layers\":[{\"mediaType\":\"x\",\"size\":1,\"digest\":\"sha256:../../x\"" NAMED("a") "}]}",
     "a digest"},
    {"{\"layers\":[{\"mediaType\":\"x\",\"size\":1" NAMED("a") "}]}", "a digest"},
    {"{\"manifests\":[]}", "index of 0"},
    {"{\"manifests\":[{\"digest\":\"x\"}]}", "a digest"},
    {"{\"manifests\":[{\"digest\":\"" DIGEST "\"},{\"digest\":\"" DIGEST "\"}]}",
     "not one of them"},
};

SL_TEST_LOOP(a_wrong_manifest_is_refused, 0, SL_COUNT(bad_manifests))
{
    struct sl_oci_manifest manifest;
    struct sl_err err;
    ck_assert_int_lt(parse(bad_manifests[_i].text, &manifest, &err), 0);
    ck_assert_msg(strstr(err.message, bad_manifests[_i].says), "%s: %s", bad_manifests[_i].text,
                  err.message);
    sl_oci_manifest_release(&manifest);
}

#define IMAGE_LAYER "application/vnd.oci.image.layer.v1.tar"
#define UNPACK                                                                                     \
    ",\"annotations\":{\"org.opencontainers.image.title\":\"d\",\"io.deis.oras.content.unpack\":"  \
    "\"true\"}"

/* What a layer is: a file 'f', a tar 't' of a model, a tar of an image 'i'. */
static const struct {
    const char *text;
    char is;
} kinds[] = {
    {LAYER(IMAGE_LAYER, ""), 'i'},
    {LAYER("application/vnd.docker.image.rootfs.diff.tar", ""), 'i'},
    {LAYER("application/vnd.cncf.model.weight.v1.tar", ""), 't'},
    {LAYER("application/vnd.cncf.model.weight.v1.tar",
           ",\"annotations\":{\"org.cncf.model.filepath\":\"d\"}"),
     't'},
    {LAYER("application/vnd.docker.ai.dir.tar", ""), 't'},
    {LAYER(IMAGE_LAYER, UNPACK), 't'},
    {LAYER("x/y", UNPACK), 't'},
    {LAYER(IMAGE_LAYER, NAMED("a.bin")), 'f'}, /* as `oras push` calls every file */
    {LAYER(IMAGE_LAYER "+gzip", NAMED("a.tar.gz")), 'f'},
};

SL_TEST_LOOP(a_layer_is_what_its_packer_means, 0, SL_COUNT(kinds))
{
    struct sl_oci_manifest manifest;
    struct sl_err err;
    char text[1024];
    snprintf(text, sizeof(text), "{\"layers\":[%s]}", kinds[_i].text);
    ck_assert_msg(parse(text, &manifest, &err) == 0, "%s: %s", text, err.message);
    ck_assert_uint_eq(manifest.count, kinds[_i].is == 'f');
    ck_assert_uint_eq(manifest.layer_count, kinds[_i].is != 'f');
    ck_assert_msg(manifest.count || manifest.layers[0].image == (kinds[_i].is == 'i'), "%s", text);
    sl_oci_manifest_release(&manifest);
}

static const struct {
    const char *pin;
    bool good;
} pins[] = {
    {DIGEST, true},
    {DIGEST "+512/1024", true},
    {DIGEST "+0/1", true},
    {DIGEST "+5000/1+gzip", true},
    {DIGEST "+0/1+zstd", true},
    {DIGEST "+0/0+zstd", false},
    {DIGEST "+0/1+none", false},
    {DIGEST "+0/1+", false},
    {DIGEST "+0/1+gzip ", false},
    {DIGEST "+9999999999999999999/1+gzip", false},
    {DIGEST "+", false},
    {DIGEST "+1", false},
    {DIGEST "+1/1", false},
    {DIGEST "+2/1", false},
    {DIGEST "+1/2 ", false},
    {DIGEST "+-1/2", false},
    {DIGEST "x", false},
    {"sha256:1+1/2", false},
    {"", false},
    {DIGEST "+99999999999999999999/999999999999999999999", false},
};

SL_TEST_LOOP(a_pin_is_a_digest_or_a_piece_of_it, 0, SL_COUNT(pins))
{
    struct sl_oci_piece piece;
    ck_assert_msg(sl_oci_pin_parse(pins[_i].pin, &piece) == pins[_i].good, "%s", pins[_i].pin);
    if (pins[_i].good)
        ck_assert_str_eq(piece.digest, DIGEST);
}

SL_TEST(an_index_leads_to_this_platform)
{
#define OTHER        "sha256:ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"
#define ON(os, arch) ",\"platform\":{\"os\":\"" os "\",\"architecture\":\"" arch "\"}"
#if defined(__aarch64__)
#define MINE ON("linux", "arm64")
#else
#define MINE ON("linux", "amd64")
#endif
    struct sl_oci_manifest manifest;
    struct sl_err err;
    ck_assert_int_eq(parse("{\"manifests\":[{\"digest\":\"" OTHER
                           "\"" ON("linux", "s390x") "},{\"digest\":\"" DIGEST "\"" MINE
                                                     "},{\"digest\":\"" OTHER
                                                     "\"" ON("unknown", "unknown") "}]}",
                           &manifest, &err),
                     0);
    ck_assert_str_eq(manifest.child, DIGEST);
    sl_oci_manifest_release(&manifest);
    ck_assert_int_eq(parse("{\"manifests\":[{\"digest\":\"" OTHER
                           "\"" ON("unknown", "unknown") "},{\"digest\":\"" DIGEST "\"}]}",
                           &manifest, &err),
                     0);
    ck_assert_str_eq(manifest.child, DIGEST);
    sl_oci_manifest_release(&manifest);
}

/* ---- challenges ------------------------------------------------------------------------------ */

static const struct {
    const char *header, *realm, *service, *scope;
    bool basic;
} challenges[] = {
    {"Bearer realm=\"https://a/token\",service=\"a, b\",scope=\"repository:x:pull\"",
     "https://a/token", "a, b", "repository:x:pull", false},
    {"bearer  Realm=https://a , error=\"invalid\\\"_token\"", "https://a", NULL, NULL, false},
    {"Basic realm=\"r\", Bearer realm=\"https://b\"", "https://b", NULL, NULL, false},
    {"Bearer realm=\"https://b\", Basic realm=\"r\"", "https://b", NULL, NULL, false},
    {"Negotiate, Basic realm=\"r\"", "r", NULL, NULL, true},
    {"Basic", NULL, NULL, NULL, true},
};

static bool same(const char *a, const char *b)
{
    return a && b ? strcmp(a, b) == 0 : a == b;
}

SL_TEST_LOOP(a_challenge_is_taken_apart, 0, SL_COUNT(challenges))
{
    struct sl_oci_challenge challenge;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_msg(sl_oci_challenge_parse(challenges[_i].header, &challenge, &err) == 0, "%s: %s",
                  challenges[_i].header, err.message);
    ck_assert(same(challenge.realm, challenges[_i].realm));
    ck_assert(same(challenge.service, challenges[_i].service));
    ck_assert(same(challenge.scope, challenges[_i].scope));
    ck_assert_int_eq(challenge.basic, challenges[_i].basic);
    sl_oci_challenge_release(&challenge);
}

SL_TEST_LOOP(a_challenge_that_nobody_can_answer_is_an_error, 0, 5)
{
    static const char *const headers[] = {"", "Negotiate abc", "Bearer service=\"x\"", "=,=", "\""};
    struct sl_oci_challenge challenge;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_oci_challenge_parse(headers[_i], &challenge, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    sl_oci_challenge_release(&challenge);
}

/* ---- logins ---------------------------------------------------------------------------------- */

static int login_of(const char *text, const char *host, const char *repo,
                    struct sl_oci_login *login, struct sl_err *err)
{
    *login = (struct sl_oci_login){0};
    *err = (struct sl_err)SL_ERR_INIT;
    return sl_oci_login_parse(text, strlen(text), "/c.json", host, repo, login, err);
}

static const struct {
    const char *text, *host, *repo, *user;
} logins[] = {
    {"{\"auths\":{\"h.io\":{\"auth\":\"dTpwOnE=\"}}}", "h.io", "a/b", "u"},
    {"{\"auths\":{\"https://h.io/v1/\":{\"username\":\"u\",\"password\":\"p:q\"}}}", "h.io", "a",
     "u"},
    {"{\"h.io\":{\"auth\":\"dTpwOnE=\"}}", "h.io", "a", "u"},
    {"{\"auths\":{\"h.io\":{\"username\":\"x\",\"password\":\"y\"},"
     "\"h.io/a\":{\"username\":\"u\",\"password\":\"p:q\"},"
     "\"h.io/a/b\":{\"username\":\"z\",\"password\":\"y\"}}}",
     "h.io", "a/c", "u"},
    {"{\"auths\":{\"https://index.docker.io/v1/\":{\"auth\":\"dTpwOnE=\"}}}", "docker.io",
     "library/x", "u"},
    {"{\"auths\":{\"h.io\":{\"auth\":\"dTpwOnE=\"}}}", "h.io.evil.com", "a", NULL},
    {"{\"auths\":{\"h.io/aa\":{\"auth\":\"dTpwOnE=\"}}}", "h.io", "aab", NULL},
    {"{\"auths\":{\"h.io\":{}},\"credsStore\":\"desktop\"}", "h.io", "a", NULL},
    {"{}", "h.io", "a", NULL},
};

SL_TEST_LOOP(the_longest_entry_of_a_place_is_its_login, 0, SL_COUNT(logins))
{
    struct sl_oci_login login;
    struct sl_err err;
    ck_assert_msg(login_of(logins[_i].text, logins[_i].host, logins[_i].repo, &login, &err) == 0,
                  "%s", err.message);
    ck_assert(same(login.user, logins[_i].user));
    ck_assert(same(login.password, logins[_i].user ? "p:q" : NULL));
    ck_assert(same(login.helper, strstr(logins[_i].text, "desktop") ? "desktop" : NULL));
    sl_oci_login_release(&login);
}

SL_TEST_LOOP(a_broken_file_of_logins_is_refused, 0, 4)
{
    static const char *const texts[] = {"", "{", "{\"auths\":{\"h.io\":{\"auth\":\"dT\"}}}",
                                        "{\"auths\":{\"h.io\":{\"auth\":\"dXUu\"}}}"};
    struct sl_oci_login login;
    struct sl_err err;
    ck_assert_int_lt(login_of(texts[_i], "h.io", "a", &login, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_msg(strstr(err.message, "/c.json"), "%s", err.message);
    sl_oci_login_release(&login);
}

SL_TEST_LOOP(a_login_is_said_to_come_from_where_it_lies, 0, 2)
{
    static const char helper[] = "{\"credsStore\":\"desktop\"}",
                      login_json[] = "{\"auths\":{\"h.io\":{\"auth\":\"dTpwOnE=\"}}}";
    struct sl_oci_login login = {0};
    struct sl_err err = SL_ERR_INIT;
    const char *second = _i ? "{}" : login_json;
    ck_assert_int_eq(
        sl_oci_login_parse(helper, strlen(helper), "/a.json", "h.io", "a", &login, &err), 0);
    ck_assert_int_eq(
        sl_oci_login_parse(second, strlen(second), "/b.json", "h.io", "a", &login, &err), 0);
    ck_assert(same(login.user, _i ? NULL : "u"));
    ck_assert_str_eq(login.from, _i ? "'/a.json'" : "'/b.json'");
    ck_assert(same(login.helper, _i ? "desktop" : NULL));
    sl_oci_login_release(&login);
}

/* ---- helpers --------------------------------------------------------------------------------- */

/* A program of that name, alone in its folder, which is all of PATH but the shell's. */
static void make_helper(char folder[32], const char *text)
{
    char path[256];
    snprintf(folder, 32, "/tmp/sluice-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/docker-credential-x", folder);
    FILE *file = fopen(path, "w");
    fprintf(file, "#!/bin/sh\n%s\n", text);
    fclose(file);
    ck_assert_int_eq(chmod(path, 0755), 0);
    snprintf(path, sizeof(path), "%s:/usr/bin:/bin", folder);
    setenv("PATH", path, 1);
}

static void remove_helper(const char *folder)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/docker-credential-x", folder);
    remove(path);
    remove(folder);
}

#define SAYS(user, secret)                                                                         \
    "echo '{\"ServerURL\":\"h.io\",\"Username\":\"" user "\",\"Secret\":\"" secret "\"}'"

static const struct {
    const char *text, *user, *password, *identity, *says;
} helpers[] = {
    {SAYS("u", "p:q"), "u", "p:q", NULL, NULL},
    {"test \"$(cat)\" = h.io && test \"$1\" = get && " SAYS("u", "p"), "u", "p", NULL, NULL},
    {SAYS("<token>", "id"), NULL, NULL, "id", NULL},
    {"exec <&-; " SAYS("u", "p"), "u", "p", NULL, NULL}, /* it does not read what it is asked */
    {SAYS("u", "p") "; exit 1", NULL, NULL, NULL, NULL}, /* it has none */
    {"kill -9 $$", NULL, NULL, NULL, NULL},
    {SAYS("u", ""), NULL, NULL, NULL, "did not answer with a login"},
    {SAYS("", "p"), NULL, NULL, NULL, "did not answer with a login"},
    {"echo s3cret", NULL, NULL, NULL, "did not answer with a login"},
    {"echo '{\"Username\":1,\"Secret\":[]}'", NULL, NULL, NULL, "did not answer with a login"},
    {"exec cat /dev/zero", NULL, NULL, NULL, "more than 64 KiB"},
};

SL_TEST_LOOP(a_helper_is_asked_for_a_login, 0, SL_COUNT(helpers))
{
    struct sl_oci_login login = {0};
    struct sl_err err = SL_ERR_INIT;
    char folder[32];
    make_helper(folder, helpers[_i].text);
    int done = sl_oci_helper_ask("x", "h.io", NULL, &login, &err);
    remove_helper(folder);
    ck_assert_msg((done < 0) == (helpers[_i].says != NULL), "%s: %s", helpers[_i].text,
                  err.message);
    ck_assert(same(login.user, helpers[_i].user) && same(login.password, helpers[_i].password));
    ck_assert(same(login.identity, helpers[_i].identity));
    if (done < 0) {
        ck_assert_int_eq(err.kind, SL_E_AUTH);
        ck_assert_msg(strstr(err.message, helpers[_i].says), "%s", err.message);
        ck_assert_msg(!strstr(err.message, "s3cret"), "%s", err.message);
    }
    sl_oci_login_release(&login);
}

struct hanging {
    char folder[32], begun[64];
    struct sl_cancel *cancel;
    bool ends_by_time;
};

/* Once it runs. */
static void *end_it(void *arg)
{
    const struct hanging *hanging = arg;
    SL_AWAIT(access(hanging->begun, F_OK) == 0, "the helper");
    if (hanging->ends_by_time)
        fake_clock_turn(61 * SL_NS_PER_S);
    else
        sl_cancel_raise(hanging->cancel, 0);
    return NULL;
}

SL_TEST_LOOP(a_helper_that_hangs_is_ended_in_time, 0, 2)
{
    struct sl_oci_login login = {0};
    struct sl_err err = SL_ERR_INIT;
    struct hanging hanging = {.cancel = sl_cancel_new(&err), .ends_by_time = _i};
    pthread_t thread;
    make_helper(hanging.folder, "echo > \"${0%/*}/begun\"; sleep 1000");
    snprintf(hanging.begun, sizeof(hanging.begun), "%s/begun", hanging.folder);
    fake_clock_hold();
    ck_assert_int_eq(pthread_create(&thread, NULL, end_it, &hanging), 0);
    ck_assert_int_lt(sl_oci_helper_ask("x", "h.io", hanging.cancel, &login, &err), 0);
    ck_assert_int_eq(err.kind, hanging.ends_by_time ? SL_E_AUTH : SL_E_CANCELED);
    ck_assert(!hanging.ends_by_time || strstr(err.message, "takes too long"));
    pthread_join(thread, NULL);
    remove(hanging.begun);
    remove_helper(hanging.folder);
    sl_cancel_free(hanging.cancel);
}

SL_TEST_LOOP(no_helper_is_looked_for_beside_path, 0, 6)
{
    static const char *const names[] = {"", "../x", "x/y", "a b", "none", "x"};
    struct sl_oci_login login = {0};
    struct sl_err err = SL_ERR_INIT;
    char folder[32];
    make_helper(folder, SAYS("u", "p"));
    if (_i == 5) { /* where sluice was started, and relative to it */
        ck_assert_int_eq(chdir(folder), 0);
        setenv("PATH", ":.:./", 1);
    }
    ck_assert_int_lt(sl_oci_helper_ask(names[_i], "h.io", NULL, &login, &err), 0);
    remove_helper(folder);
    ck_assert_int_eq(err.kind, _i < 4 ? SL_E_USAGE : SL_E_AUTH);
}

SL_TEST(a_helper_that_hangs_is_ended_with_the_load)
{
    struct sl_oci_login login = {0};
    struct sl_err err = SL_ERR_INIT;
    char folder[32];
    struct sl_cancel *cancel = sl_cancel_new(&err);
    make_helper(folder, "sleep 1000 & sleep 1000");
    sl_cancel_raise(cancel, 15);
    ck_assert_int_lt(sl_oci_helper_ask("x", "h.io", cancel, &login, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_CANCELED);
    remove_helper(folder);
    sl_cancel_free(cancel);
}

/* ---- opening --------------------------------------------------------------------------------- */

SL_TEST(a_login_never_goes_over_plain_http_to_another_machine)
{
    char file[] = "/dev/null";
    struct sl_oci_options options = {.plain_http = true, .docker_config = file};
    const struct sl_source_config config = {.options[0] = {&sl_oci_table, &options}};
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    struct sl_err err = SL_ERR_INIT;
    ck_assert_int_lt(sl_store_open("oci://registry.test/m:v1", &config, &store, &key, &err), 0);
    ck_assert_int_eq(err.kind, SL_E_AUTH);
    options.docker_config = NULL;
    ck_assert_int_eq(sl_store_open("oci://registry.test/m:v1", &config, &store, &key, &err), 0);
    ck_assert_str_eq(sl_store_uri(store), "oci://registry.test/m:v1/");
}

SL_CASE(.setup = NULL)
