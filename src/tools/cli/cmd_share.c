/* sluice share: the server of web/ on a directory, until a signal. */
#include <poll.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli.h"
#include "log.h"
#include "web.h"
#include "web_http.h"

enum { DRAIN_MS = 700 }; /* of the second that SIGTERM leaves */

struct share_options {
    char *listen;
};

static const struct sl_option rows[] = {
    SL_OPTION(share_options, listen, STRING, "127.0.0.1:9470",
              "address and port to serve at; port 0 takes any free one", .flag = "listen"),
    SL_OPTION_END,
};
static const struct sl_option_table table = {"share", sizeof(struct share_options), rows};

/* A connection that sends a file holds two descriptors. */
static void raise_file_limit(void)
{
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) < 0)
        return;
    rlim_t wanted = SL_MIN(files.rlim_max, (rlim_t)16384);
    if (files.rlim_cur < wanted) {
        files.rlim_cur = wanted;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

static int announce(const struct sl_cli *cli, const char *url, unsigned port, struct sl_err *err)
{
    struct sl_json json;
    sl_json_init(&json, 8192);
    sl_json_object(&json);
    sl_json_key_string(&json, "url", url);
    sl_json_key_uint(&json, "port", port);
    sl_json_key_string(&json, "directory", cli->operands[0]);
    sl_json_end(&json);
    const char *text = sl_json_text(&json, err);
    int result = text ? printf("%s\n", cli->json ? text : url) : -1;
    sl_json_release(&json);
    if (result < 0 || fflush(stdout) != 0)
        return sl_fail(err, SL_E_NO_SPACE, "cannot write to stdout");
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    const struct share_options *options = cli->options;
    char url[SL_WEB_URL_BYTES];
    raise_file_limit();
    const struct sl_web_config config = {
        .listen = options->listen ? options->listen : "127.0.0.1:9470",
        .share_directory = cli->operands[0],
        .share_prefix = "/",
    };
    SL_AUTO(sl_web) web = sl_web_start(&config, err);
    if (!web)
        return -1;
    if (sl_web_url(config.listen, sl_web_port(web), url, err) < 0 ||
        announce(cli, url, sl_web_port(web), err) < 0)
        return -1;
    struct pollfd wait = {sl_cancel_fd(cli->cancel), POLLIN, 0};
    while (!sl_cancel_raised(cli->cancel))
        poll(&wait, 1, -1);
    sl_web_drain(web, DRAIN_MS);
    return 0;
}

const struct sl_command sl_cmd_share = {
    .name = "share",
    .usage = "sluice share DIR [--listen ADDRESS:PORT]",
    .summary = "serve the files of a directory by HTTP ranges, read only",
    .description =
        "Serves every regular file below DIR to every client that can reach the address, without "
        "asking for a password: the default address is reachable from this machine alone. Answers "
        "GET and HEAD with\n"
        "single ranges, strong ETags and the conditional headers of RFC 9110; a path "
        "that ends in a slash\n"
        "lists its directory, as JSON if the Accept header asks for application/json. "
        "Symbolic links\n"
        "that lead out of DIR are not followed. Never shown are .sluice and what a node daemon "
        "keeps for itself, such as specs of clients, in files that only its user can read.\n"
        "\n"
        "A directory into which sluice loads a model is served only while the model is "
        "complete; 503 with\n"
        "Retry-After is the answer meanwhile.\n"
        "\n"
        "Loads of other machines may name its URL in source.through: objects of stores that lie in "
        "DIR, or up\n"
        "to two folders below it, as sluice has published them, come from here. What is not here, "
        "or is another\n"
        "version, a part, or made of an object, it refuses with 421, and the store is asked.\n"
        "\n"
        "The names healthz, readyz, startupz, metrics and v1 answer as those of `sluice "
        "load --listen` do,\n"
        "where DIR has no file of that name.\n"
        "\n"
        "When it listens, it prints one line: its URL, or with --json an object with "
        "url, port and\n"
        "directory. It ends at SIGTERM or SIGINT with exit code 0.",
    .examples = "sluice share /dev/shm/model   # at http://127.0.0.1:9470/\n"
                "sluice share models --listen 127.0.0.1:0 --json   # any free port, in JSON\n"
                "sluice load http://127.0.0.1:9470/ --to /dev/shm/copy   # on the same machine\n"
                "sluice load s3://models/llama/ --to /dev/shm/m --through http://10.0.0.11:9470",
    .options = &table,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
