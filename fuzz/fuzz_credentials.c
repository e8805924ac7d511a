/*
 * What services answer that give out temporary keys. The first byte chooses: a container endpoint
 * (JSON), instance metadata (a token, a role, JSON: the same bytes each time) or an STS (XML). No
 * key that comes out may break a header.
 */
#include <openssl/crypto.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "creds.h"
#include "creds_remote.h"
#include "fuzz_peer.h"

static char token_path[64], base[64];

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerInitialize(int *argc, char ***argv);

static void forget_token(void)
{
    unlink(token_path);
}

int LLVMFuzzerInitialize(int *argc, char ***argv)
{
    char url[80];
    (void)argc, (void)argv;
    snprintf(base, sizeof(base), "http://127.0.0.1:%u", fuzz_peer_start());
    snprintf(url, sizeof(url), "%s/keys", base);
    setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", url, 1);
    setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", base, 1);
    snprintf(token_path, sizeof(token_path), "/tmp/fuzz-token-XXXXXX");
    int fd = mkstemp(token_path);
    if (fd < 0 || write(fd, "token", 5) != 5)
        abort();
    close(fd);
    atexit(forget_token);
    return 0;
}

static void check_text(const char *text)
{
    if (text && strpbrk(text, "\r\n"))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const struct sl_web_identity identity = {.role_arn = "arn:aws:iam::1:role/r",
                                             .token_file = token_path,
                                             .endpoint = base,
                                             .region = "us-east-1"};
    struct sl_err err = SL_ERR_INIT;
    sl_autokey key = {0};
    bool none;
    if (bytes < 2 || !*token_path)
        return 0;
    fuzz_peer_say(data + 1, bytes - 1);
    int done = data[0] % 3 == 0   ? sl_creds_from_container(NULL, &key, &err)
               : data[0] % 3 == 1 ? sl_creds_from_instance(NULL, &key, &none, &err)
                                  : sl_creds_from_sts(&identity, NULL, NULL, &key, &err);
    if (done == 0) {
        check_text(key.access_key);
        check_text(key.secret_key);
        check_text(key.session_token);
    }
    fuzz_peer_say(NULL, 0);
    return 0;
}
