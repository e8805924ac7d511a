/* See spec_case.h. */
#include "spec_case.h"

#include <stdlib.h>
#include <string.h>

struct sl_specs specs;
struct sl_err err;
struct sl_buf complaints = SL_BUF_INIT(1 << 20);

const char spec_everything[] =
    "apiVersion: sluice/v1alpha1\n"
    "kind: Model\n"
    "metadata:\n"
    "  name: gpt-j-6b\n"
    "source:\n"
    "  uri: s3://${BUCKET}/gpt-j-6b/\n"
    "  include: [\"*.safetensors\", '*.json']\n"
    "  exclude: []\n"
    "  mirrors: [\"https://mirror/gpt-j-6b/\"]\n"
    "  s3: {endpoint: \"http://127.0.0.1:7480\", region: eu-west-1, addressing: path, profile: , "
    "anonymous: yes}\n"
    "  tls: {verify: off}\n"
    "tensors:\n"
    "  include: [\"transformer.h.*\"]\n"
    "verify:\n"
    "  hashes: no\n"
    "  sha256: {model.safetensors: "
    "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08}\n"
    "sink:\n"
    "  tmpfs: {path: /models, layout: safetensors, shardBytes: 2GiB, owner: 1000}\n"
    "readers: {connections: 16, rangeBytes: 8Mi, memoryBytes: auto, stallSeconds: 5, attempts: 3}\n"
    "listen: 127.0.0.1:9464\n";

void spec_case_setup(void)
{
    memset(&err, 0, sizeof(err));
    setenv("BUCKET", "models", 1);
    setenv("EMPTY", "", 1);
    setenv("TRICK", "a: b\n- ${BUCKET} # x", 1);
    unsetenv("UNSET");
}

void spec_case_reset(void)
{
    sl_specs_release(&specs);
    sl_buf_release(&complaints);
}

int parse_with(const char *text, const struct sl_spec_setting *settings, size_t count)
{
    spec_case_reset();
    memset(&err, 0, sizeof(err));
    return sl_spec_parse(text, strlen(text), "m.yaml", settings, count, &specs, &complaints, &err);
}

int parse(const char *text)
{
    return parse_with(text, NULL, 0);
}

void expect(const char *text, const char *wanted)
{
    ck_assert_msg(parse(text) < 0, "accepted: %s", text);
    ck_assert_int_eq(err.kind, SL_E_USAGE);
    ck_assert_ptr_null(specs.items);
    ck_assert_str_eq(sl_buf_string(&complaints), wanted);
}
