/* sluice version: ours, that of every library that handles bytes from outside, and for which GPUs
 * there are kernels. */
#include <expat.h>
#include <openssl/crypto.h>
#include <sodium.h>
#include <stdio.h>
#include <yaml.h>

#include "cli.h"
#include "json.h"
#include "kernel_images.h"
#include "libcurl.h"
#include "libmicrohttpd.h"

enum { LIBRARIES_MAX = 8, VERSION_JSON_MAX = 4096 };

struct library {
    const char *name, *version;
};

static const char missing[] = "not installed"; /* of those that are opened when they are needed */

static const char *libcurl_version(void)
{
    return sl_libcurl_open(NULL) < 0 ? missing : sl_libcurl.version_info(CURLVERSION_NOW)->version;
}

static const char *libmicrohttpd_version(void)
{
    return sl_libmicrohttpd_open(NULL) < 0 ? missing : sl_libmicrohttpd.get_version();
}

static size_t list_libraries(struct library libraries[LIBRARIES_MAX])
{
    size_t count = 0;
    libraries[count++] = (struct library){"libcurl", libcurl_version()};
    libraries[count++] = (struct library){"openssl", OpenSSL_version(OPENSSL_VERSION_STRING)};
    libraries[count++] = (struct library){"libyaml", yaml_get_version_string()};
    libraries[count++] = (struct library){"jansson", jansson_version_str()};
    libraries[count++] = (struct library){"expat", XML_ExpatVersion()};
    libraries[count++] = (struct library){"libsodium", sodium_version_string()};
    libraries[count++] = (struct library){"libmicrohttpd", libmicrohttpd_version()};
    return count;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct library libraries[LIBRARIES_MAX];
    size_t count = list_libraries(libraries);
    if (!cli->json) {
        printf("sluice %s\n", SLUICE_VERSION);
        for (size_t i = 0; i < count; i++)
            printf("  %-14s %s\n", libraries[i].name, libraries[i].version);
        printf("  %-14s %s\n", "GPU kernels", sl_kernel_images_text());
        return 0;
    }
    struct sl_json json;
    sl_json_init(&json, VERSION_JSON_MAX);
    sl_json_object(&json);
    sl_json_key_string(&json, "version", SLUICE_VERSION);
    sl_json_key(&json, "libraries");
    sl_json_object(&json);
    for (size_t i = 0; i < count; i++)
        sl_json_key_string(&json, libraries[i].name, libraries[i].version);
    sl_json_end(&json);
    sl_json_key_string(&json, "gpu_kernels", sl_kernel_images_text());
    sl_json_end(&json);
    int done = sl_cli_print_json(&json, err);
    sl_json_release(&json);
    return done;
}

const struct sl_command sl_cmd_version = {
    .name = "version",
    .usage = "sluice version",
    .summary = "print the version of sluice and of its libraries",
    .description =
        "Prints the version of sluice and, below it, the versions of the libraries that it was "
        "started with. It also shows for which GPUs it has kernels (casts, slices, checksums and "
        "decryption on the GPU itself), and whether the kernel can decrypt TLS for it.",
    .examples = "sluice version --json   # for scripts",
    .operand_min = 0,
    .operand_max = 0,
    .run = run,
};
