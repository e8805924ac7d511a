/* The config of the node daemon: what it means, and that every mistake is told with its place. */
#include "alloc_fail.h"
#include "node_spec.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"

#define NODE "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: /dev/shm/n\n"
#define MODEL                                                                                      \
    "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: /m}\n"

static struct sl_node_spec node;
static struct sl_specs specs;
static struct sl_err err;
static struct sl_buf complaints;

static void reset(void)
{
    sl_node_spec_release(&node);
    sl_specs_release(&specs);
    sl_buf_release(&complaints);
    complaints = (struct sl_buf)SL_BUF_INIT(1 << 20);
    err = (struct sl_err)SL_ERR_INIT;
}

static int parse(const char *text)
{
    reset();
    return sl_node_spec_parse(text, strlen(text), "n.yaml", &node, &specs, &complaints, &err);
}

static void expect(const char *text, const char *wanted)
{
    ck_assert_int_eq(parse(text), -1);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_str_eq(sl_buf_string(&complaints), wanted);
}

SL_TEST(what_is_not_said_has_a_default)
{
    ck_assert_msg(parse(NODE) == 0, "%s", err.message);
    ck_assert_str_eq(node.directory, "/dev/shm/n");
    ck_assert_uint_eq(node.budget_bytes, SL_AUTO_VALUE);
    ck_assert_uint_eq(node.loads_at_once, 2);
    ck_assert_ptr_null(node.control.socket);
    ck_assert_str_eq(node.control.mode, "auto");
    ck_assert_uint_eq(specs.count, 0);
}

SL_TEST(models_follow_in_the_same_file_and_need_no_sink)
{
    ck_assert_msg(parse(NODE "models: [{file: a.yaml, pin: false}, {file: b}]\n" MODEL) == 0, "%s",
                  err.message);
    const struct sl_node_spec_models *models = node.models.items;
    ck_assert_uint_eq(node.models.count, 2);
    ck_assert(!models[0].pin && models[1].pin);
    ck_assert_uint_eq(specs.count, 1);
    ck_assert_str_eq(specs.items[0].metadata.name, "m");
}

SL_TEST(a_path_of_a_spec_does_not_count_and_its_layout_does)
{
    ck_assert_msg(parse(NODE MODEL "sink: {tmpfs: {path: /x, layout: safetensors}}\n---\n"
                                   "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: o}\n"
                                   "source: {uri: /m}\nsink: {tmpfs: {path: /x}}\n") == 0,
                  "%s", err.message);
    ck_assert_uint_eq(specs.count, 2);
    ck_assert_int_eq(specs.items[0].sink.tmpfs.layout, SL_LAYOUT_SAFETENSORS);
}

SL_TEST(every_mistake_is_told_with_its_place)
{
    expect("apiVersion: sluice/v1alpha1\nkind: Node\nbudgetByte: 1G\nloadsAtOnce: 0\n"
           "control: {socket: run/c, mode: rw, uids: [root]}\n"
           "pool: {gids: [4294967295], sockets: /x}\n" MODEL "extra: 1\n",
           "n.yaml:1:1: 'directory' is missing: where the models lie, on a tmpfs: each version in "
           "a folder of its own, `NAME/VERSION`, and the link `NAME/current`\n"
           "n.yaml:3:1: unknown key 'budgetByte', did you mean 'budgetBytes'?\n"
           "n.yaml:4:14: 'loadsAtOnce': expected a number from 1 to 64, not '0'\n"
           "n.yaml:5:19: 'socket': 'run/c' must be an absolute path\n"
           "n.yaml:5:32: 'mode': 'rw' is not a mode of a socket, such as 0660\n"
           "n.yaml:5:43: 'uids': 'root' is not a numeric id, such as 1000\n"
           "n.yaml:6:15: 'gids': '4294967295' is not a numeric id, such as 1000\n"
           "n.yaml:6:28: unknown key 'sockets' in 'pool', did you mean 'socket'?\n"
           "n.yaml:12:1: unknown key 'extra'\n");
}

SL_TEST(caches_are_named_as_in_a_model)
{
    static const char *const forms[] = {"'http://a:1'", "['http://a:1']",
                                        "{caches: ['http://a:1'], blockBytes: 1Mi}", "[]", "{}"};
    for (size_t i = 0; i < SL_COUNT(forms); i++) {
        char text[256];
        snprintf(text, sizeof(text), NODE "through: %s\n", forms[i]);
        ck_assert_msg(parse(text) == 0, "%s", err.message);
        ck_assert_uint_eq(node.through.caches.count, i < 3);
        ck_assert(node.through.named.caches == (i < 4));
        ck_assert(node.through.named.block_bytes == (i == 2));
        ck_assert_uint_eq(node.through.block_bytes, i == 2 ? 1 << 20 : 8 << 20);
    }
    expect(NODE "through: [http://a/models]\n",
           "n.yaml:4:11: 'caches': a cache is named as http://HOST:PORT, and no more\n");
    expect(NODE "through: {cache: a}\n",
           "n.yaml:4:11: unknown key 'cache' in 'through', did you mean 'caches'?\n");
}

SL_TEST(rules_for_who_signs_name_a_place_and_a_signer)
{
    ck_assert_msg(parse(NODE "signing:\n"
                             "  - {prefix: \"*\", modelSigning: {publicKeyFile: /k}}\n"
                             "  - {prefix: \"s3://free/\"}\n") == 0,
                  "%s", err.message);
    const struct sl_node_spec_signing *rules = node.signing.items;
    ck_assert_uint_eq(node.signing.count, 2);
    ck_assert(sl_spec_signing_is_set(&rules[0].model_signing));
    ck_assert_str_eq(rules[0].model_signing.file, "model.sig");
    ck_assert(!sl_spec_signing_is_set(&rules[1].model_signing));
    expect(
        NODE "signing:\n"
             "  - {prefix: \"prod\", modelSigning: {publicKeyFile: /k}}\n"
             "  - {prefix: \"s3://a/\", modelSigning: {}}\n"
             "  - {prefix: \"s3://A/\"}\n",
        "n.yaml:5:14: 'prefix': 'prod' must be a URI with a host or bucket, such as s3://models/, "
        "or an absolute path\n"
        "n.yaml:6:25: 'modelSigning' names no signer: give it 'publicKeyFile', 'certificates' or "
        "'keyless'\n"
        "n.yaml:7:5: 's3://A/' has two rules\n");
}

SL_TEST(a_node_comes_first_and_alone)
{
    expect(NODE "---\n" NODE, "n.yaml:5:1: a second Node in one file\n");
    expect("", "n.yaml: no config in it: see `sluice docs node`\n");
    expect(NODE "pool: {socket: /s}\ncontrol: {socket: /s}\n",
           "n.yaml:4:8: 'pool' and 'control' need a socket each\n");
    expect("apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: //\n",
           "n.yaml:3:1: 'directory' must be a folder of its own, not '/'\n");
}

SL_TEST(two_models_need_two_names)
{
    expect(NODE MODEL MODEL, "n.yaml:12:12: another model of this file is called 'm'\n");
}

SL_TEST(text_of_callers_sees_no_environment)
{
    static const char text[] = "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
                               "source: {uri: \"/${HOME}\"}\n";
    reset();
    ck_assert_int_eq(
        sl_spec_parse_placed(text, strlen(text), "request", false, &specs, &complaints, &err), 0);
    ck_assert_str_eq(specs.items[0].source.uri, "/${HOME}");
}

SL_TEST(every_failing_allocation_is_told)
{
    static const char text[] =
        NODE "models: [{file: a.yaml}]\ncontrol: {socket: /c, uids: [1, 2]}\n" MODEL;
    for (unsigned n = 1;; n++) {
        reset();
        sl_alloc_fail_at(n);
        int done = parse(text);
        sl_alloc_fail_at(0);
        if (done == 0)
            break;
        ck_assert_int_eq(err.kind, SL_E_NO_SPACE);
        ck_assert_uint_lt(n, 1000);
    }
}

static bool prepare(void)
{
    reset();
    return true;
}

SL_CASE(.prepare = prepare)

/* ---- csi ------------------------------------------------------------------------------------ */

SL_TEST(volumes_need_one_line_and_have_defaults)
{
    ck_assert_msg(parse(NODE "csi: {enabled: true}\n") == 0, "%s", err.message);
    ck_assert(node.csi.enabled);
    ck_assert_str_eq(node.csi.driver_name, "csi.sluice.dev");
    ck_assert_str_eq(node.csi.kubelet_directory, "/var/lib/kubelet");
    ck_assert_str_eq(node.csi.socket, "/var/lib/kubelet/plugins/csi.sluice.dev/csi.sock");
    ck_assert_str_eq(node.csi.registration,
                     "/var/lib/kubelet/plugins_registry/csi.sluice.dev-reg.sock");
    ck_assert_uint_eq(node.csi.wait_seconds, 90);
    ck_assert_uint_eq(node.csi.namespaces.count, 0);
    ck_assert_msg(parse(NODE "csi: {enabled: true, registration: \"\"}\n") == 0, "%s", err.message);
    ck_assert(!node.csi.registration || !*node.csi.registration);
}

SL_TEST(rights_of_namespaces_that_contradict_each_other_are_told)
{
    static const char *const bad[][2] = {
        {"csi: {driverName: io2}", "not a CSI driver name"},
        {"csi: {driverName: \"../x\"}", "not a CSI driver name"},
        {"csi: {waitSeconds: 111}", "waitSeconds"},
        {"csi: {kubeletDirectory: var}", "absolute path"},
        {"csi: {kubeletDirectory: /}", "not '/'"},
        {"csi: {enabled: true, socket: /s, registration: /s}", "need a socket each"},
        {"csi: {namespaces: [{models: [m]}]}", "name"},
        {"csi: {namespaces: [{name: Team}]}", "not a namespace"},
        {"csi: {namespaces: [{name: a}, {name: a}]}", "'a' has two entries"},
        {"csi: {namespaces: [{name: a, uriPrefixes: [\"s3://\"]}]}", "host or bucket"},
        {"csi: {namespaces: [{name: a, credentials: [secret]}]}", "no 'uriPrefixes'"},
        {"csi: {namespaces: [{name: a, uriPrefixes: [\"s3://b/\"], credentials: [mine]}]}",
         "expected daemon, secret or token"},
        {"csi: {namespaces: [{name: a, uriPrefixes: [\"s3://b/\"], credentials: [token]}]}",
         "no 'roleArn'"},
        {"csi: {namespaces: [{name: a, uriPrefixes: [\"s3://b/\"], roleArn: \"arn:x\"}]}",
         "takes no tokens"},
        {"csi: {namespaces: [{name: a, uriPrefixes: [\"https://h/\"], credentials: [secret]}]}",
         "are for s3://"},
        {"csi: {namespaces: [{name: a, pool: true}]}", "'pool.socket' is not set"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char text[600];
        snprintf(text, sizeof(text), NODE "%s\n", bad[i][0]);
        ck_assert_msg(parse(text) == -1, "%s", bad[i][0]);
        ck_assert_int_eq(err.kind, SL_E_USAGE);
        ck_assert_msg(strstr(sl_buf_string(&complaints), bad[i][1]), "%s: %s", bad[i][0],
                      sl_buf_string(&complaints));
    }
    ck_assert_msg(parse(NODE "csi: {namespaces: [{name: \"*\", models: [\"a*\"]}, {name: team-a, "
                             "uriPrefixes: [\"s3://b/\"], credentials: [secret, daemon]}]}\n") == 0,
                  "%s", err.message);
}
