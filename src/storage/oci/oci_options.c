/* What a spec may say of registries. */
#include <string.h>

#include "oci_store.h"

static int check_mirror(const char *text, struct sl_err *err)
{
    struct sl_oci_mirror mirror;
    int result = sl_oci_mirror_parse(text, &mirror, err);
    sl_oci_mirror_release(&mirror);
    return result;
}

/* For one registry at least: whichever way it is asked. */
static bool is_same_mirror(const char *a, const char *b)
{
    struct sl_oci_mirror one, other;
    bool same = sl_oci_mirror_parse(a, &one, NULL) == 0;
    same = sl_oci_mirror_parse(b, &other, NULL) == 0 && same;
    same = same && strcmp(one.host, other.host) == 0 && strcmp(one.prefix, other.prefix) == 0 &&
           (!one.registry || !other.registry || strcmp(one.registry, other.registry) == 0);
    sl_oci_mirror_release(&one);
    sl_oci_mirror_release(&other);
    return same;
}

static const struct sl_option oci_rows[] = {
    SL_OPTION(sl_oci_options, docker_config, STRING, "",
              "file with logins, as `docker login` writes it; empty: REGISTRY_AUTH_FILE, "
              "DOCKER_CONFIG, KSERVE_OCI_DOCKER_CONFIG, the usual places",
              .value = "FILE"),
    SL_OPTION(sl_oci_options, plain_http, BOOL, "false",
              "ask a registry on another machine over plain http, without a login; one on this "
              "machine is always asked so"),
    SL_OPTION(sl_oci_options, credential_helpers, BOOL, "false",
              "run docker-credential-NAME where the file with logins names one, as for ECR"),
    SL_OPTION(sl_oci_options, image_folder, STRING, "models",
              "the folder of container images (modelcars) that is the model; '/' is all of them"),
    SL_OPTION(
        sl_oci_options, check_layers_up_to, BYTES, "32MiB",
        "layers that are archives are read whole and checked first, up to this size; of larger "
        "ones files come by ranges, without a hash"),
    SL_OPTION(sl_oci_options, mirrors, LIST, "",
              "[REGISTRY=]HOST[:PORT][/PREFIX] of registries with the same blobs, asked in this "
              "order before the registry for what its digest checks",
              .check = check_mirror, .same = is_same_mirror, .value = "HOST"),
    SL_OPTION(sl_oci_options, trust_mirrors, BOOL, "false",
              "where the registry cannot be reached, believe mirrors: what a tag means, and "
              "headers of files before the files are checked"),
    SL_OPTION_END,
};

const struct sl_option_table sl_oci_table = {"oci", sizeof(struct sl_oci_options), oci_rows};
