/* sluice node against a real daemon, and against what is none. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "json.h"
#include "model_maker.h"
#include "run_sluice.h"
#include "scratch.h"

enum { PATH_BYTES = 512 };
static char scratch[SL_SCRATCH_PATH_BYTES], model[PATH_BYTES], config[PATH_BYTES], sock[PATH_BYTES],
    out[PATH_BYTES], log_[PATH_BYTES];
static int scratch_fd;
static struct ran ran;

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
}

static void setup(void)
{
    char text[4096];
    scratch_fd = sl_scratch_open(scratch);
    snprintf(model, sizeof(model), "%s/weights.bin", scratch);
    snprintf(config, sizeof(config), "%s/node.yaml", scratch);
    snprintf(sock, sizeof(sock), "%s/control.sock", scratch);
    snprintf(out, sizeof(out), "%s/out", scratch);
    snprintf(log_, sizeof(log_), "%s/log", scratch);
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
    setenv("SLUICE_CONTROL_SOCKET", sock, 1);
    setenv("SLUICE_LISTEN", "127.0.0.1:0", 1); /* the usual port is the machine's */
    write_file(model, "weights");
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/node\nbudgetBytes: 1GiB\n"
             "control: {socket: %s}\n",
             scratch, sock);
    write_file(config, text);
}

static void teardown(void)
{
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

#define EXPECT(code, word)                                                                         \
    ck_assert_msg(ran.exit_code == (code) && (strstr(ran.out, word) || strstr(ran.err, word)),     \
                  "exit code %d\n%s\n%s", ran.exit_code, ran.out, ran.err)

static bool answers(void)
{
    RUN(&ran, "node", "models");
    return ran.exit_code == 0;
}

static pid_t start_daemon(void)
{
    pid_t daemon = start_sluice((const char *const[]){"serve", config, NULL}, out, log_);
    SL_AWAIT(answers(), "the daemon's first answer");
    return daemon;
}

/* Of the model "m". */
static void write_spec(const char *spec)
{
    char text[PATH_BYTES * 4];
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {uri: "
             "\"%s\"}\n",
             model);
    write_file(spec, text);
}

static bool is_logged(const char *words)
{
    size_t bytes;
    uint8_t *text = sl_model_read(scratch, "log", &bytes);
    bool told = text && strstr((char *)text, words);
    free(text);
    return told;
}

SL_TEST(who_changed_what_and_when_a_model_is_tried_again_is_logged)
{
    char text[1024], words[128];
    snprintf(text, sizeof(text),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: gone}\nsource: {uri: "
             "/nowhere/at/all}\n");
    FILE *file = fopen(config, "a");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    pid_t daemon = start_daemon();
    SL_AWAIT(is_logged("check the path, and that it is mounted here; next try in "), "the failure");
    RUN(&ran, "node", "models");
    EXPECT(0, "gone                             failed ");
    EXPECT(0, "\n  failing since 20");
    EXPECT(0, ", 1 try, NOT_FOUND; next try in ");
    RUN(&ran, "node", "pin", "gone");
    snprintf(words, sizeof(words), "POST /v1/models/gone/pin by uid %u, pid ", geteuid());
    SL_AWAIT(is_logged(words), "who asked");
    ck_assert(is_logged(": 202\n"));
    RUN(&ran, "node", "evict", "never");
    EXPECT(4, "never");
    SL_AWAIT(is_logged(": 404, "), "what it was refused for");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

SL_TEST(what_is_no_file_is_refused_at_once)
{
    char spec[PATH_BYTES * 2], below[PATH_BYTES * 2];
    snprintf(spec, sizeof(spec), "%s/m.yaml", scratch);
    snprintf(below, sizeof(below), "%s/weights.bin/m.yaml", scratch);
    const char *const commands[][2] = {
        {"serve", NULL}, {"serve", "--check"}, {"node", "load"}, {"plan", NULL}};
    for (size_t i = 0; i < SL_COUNT(commands); i++) {
        const char *first = commands[i][0], *second = commands[i][1];
        RUN(&ran, first, second ? second : "-q", spec);
        EXPECT(4, "a file that can be read: cannot open '");
        RUN(&ran, first, second ? second : "-q", below);
        EXPECT(4, "a file that can be read: cannot open '");
        ck_assert_int_eq(mkfifo(spec, 0600), 0);
        RUN(&ran, first, second ? second : "-q", spec);
        EXPECT(2, "is a pipe or a device: give a file");
        ck_assert_int_eq(unlink(spec), 0);
    }
    ck_assert_int_eq(mkfifo(spec, 0600), 0);
    FILE *file = fopen(config, "a");
    ck_assert_ptr_nonnull(file);
    fputs("models: [{file: m.yaml}]\n", file);
    ck_assert_int_eq(fclose(file), 0);
    RUN(&ran, "serve", config);
    EXPECT(2, "is a pipe or a device: give a file");
    ck_assert_int_eq(unlink(spec), 0);
    write_spec(spec);
    pid_t daemon = start_daemon();
    ck_assert_int_eq(unlink(spec), 0);
    ck_assert_int_eq(mkfifo(spec, 0600), 0);
    kill(daemon, SIGHUP);
    SL_AWAIT(is_logged("the new config is not used, the old one stays in force"), "the reload");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

SL_TEST(a_token_file_that_is_not_there_is_said_at_the_start_and_by_check)
{
    char text[PATH_BYTES * 4], token[PATH_BYTES * 2];
    snprintf(token, sizeof(token), "%s/token", scratch);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/node\nbudgetBytes: 1GiB\n"
             "control: {socket: %s, tokenFile: %s}\n",
             scratch, sock, token);
    write_file(config, text);
    RUN(&ran, "serve", "--check", config);
    EXPECT(0, "warning: control.tokenFile: ");
    EXPECT(0, "nothing can be changed through 'listen'");
    pid_t daemon = start_daemon();
    ck_assert(is_logged("warning: control.tokenFile: "));
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
    write_file(token, "0123456789abcdef");
    RUN(&ran, "serve", "--check", config);
    EXPECT(0, "ok: ");
    ck_assert_ptr_null(strstr(ran.err, "tokenFile"));
}

static unsigned mode_of_socket(void)
{
    struct stat status;
    ck_assert_int_eq(stat(sock, &status), 0);
    return status.st_mode & 0777;
}

/* Else those whom a new list names could not even connect. */
SL_TEST(the_mode_of_the_control_socket_follows_from_a_new_config)
{
    static const char *const more[] = {"uids: [\"12345\"]", "", "mode: \"0640\", group: \"0\""};
    static const unsigned modes[] = {0666, 0600, 0640};
    char text[PATH_BYTES * 4];
    pid_t daemon = start_daemon();
    ck_assert_uint_eq(mode_of_socket(), 0600);
    for (size_t i = 0; i < SL_COUNT(more); i++) {
        snprintf(text, sizeof(text),
                 "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/node\nbudgetBytes: 1GiB\n"
                 "control: {socket: %s, %s}\n",
                 scratch, sock, more[i]);
        write_file(config, text);
        kill(daemon, SIGHUP);
        SL_AWAIT(mode_of_socket() == modes[i], "the mode");
    }
    SL_AWAIT(is_logged("'control.group' has changed in the config: restart"), "the warning");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

SL_TEST(a_spec_comes_by_standard_input_too)
{
    char text[PATH_BYTES * 2], piped[PATH_BYTES * 4];
    pid_t daemon = start_daemon();
    snprintf(text, sizeof(text),
             "{apiVersion: sluice/v1alpha1, kind: Model, metadata: {name: m}, source: {uri: "
             "\"%s\"}}",
             model);
    snprintf(piped, sizeof(piped), "echo '%s' | \"$SLUICE\" node load - --watch", text);
    run_program(&ran, "/bin/sh", (const char *const[]){"-c", piped, NULL});
    EXPECT(0, "loading what '-' says");
    RUN(&ran, "node", "models");
    EXPECT(0, "m                                ready ");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

SL_TEST(a_day_with_the_daemon)
{
    char spec[PATH_BYTES * 2];
    snprintf(spec, sizeof(spec), "%s/m.yaml", scratch);
    write_spec(spec);
    pid_t daemon = start_daemon();
    RUN(&ran, "node", "load", spec);
    EXPECT(0, "loading");
    RUN(&ran, "node", "load", "m", "--watch");
    EXPECT(0, "ready");
    RUN(&ran, "node", "pin", "m");
    EXPECT(0, "pinned m");
    RUN(&ran, "node", "models");
    EXPECT(0, "pinned");
    RUN(&ran, "node", "evict", "m");
    ck_assert_int_ne(ran.exit_code, 0); /* it is pinned */
    RUN(&ran, "node", "unpin", "m", "--json");
    EXPECT(0, "\"pinned\":false");
    RUN(&ran, "node", "evict", "m");
    EXPECT(0, "evicting m");
    RUN(&ran, "node", "load", "s3://bucket/m/");
    EXPECT(2, "takes a model's name, no path or URI");
    RUN(&ran, "node", "load", "models/m");
    EXPECT(2, "takes a model's name, no path or URI");
    RUN(&ran, "node", "pin", "no such model");
    ck_assert_int_eq(ran.exit_code, 4);
    ck_assert_int_eq(unlink(model), 0);
    RUN(&ran, "node", "retry", "m", "--watch");
    EXPECT(4, "model 'm': ");
    RUN(&ran, "node", "forget", "m");
    EXPECT(0, "forgetting m");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

static bool is_listed(const char *words)
{
    RUN(&ran, "node", "models", "--json");
    return strstr(ran.out, words) != NULL;
}

/* What the config pins is unpinned in the config: no command sends to another one that sends back.
 */
SL_TEST(what_the_config_pins_is_unpinned_there)
{
    char text[1024];
    snprintf(text, sizeof(text),
             "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: held}\nsource: {uri: "
             "\"%s\"}\n",
             model);
    FILE *file = fopen(config, "a");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    ck_assert_int_eq(fclose(file), 0);
    pid_t daemon = start_daemon();
    RUN(&ran, "node", "load", "held", "--watch");
    EXPECT(0, "ready");
    for (const char *const *each = (const char *const[]){"evict", "unpin", NULL}; *each; each++) {
        RUN(&ran, "node", *each, "held");
        EXPECT(2, "list its spec file there below `models:` with `pin: false`");
        ck_assert_ptr_null(strstr(ran.err, "unpin it"));
    }
    RUN(&ran, "node", "models", "--json");
    EXPECT(0, "\"pinned_by\":\"config\"");
    RUN(&ran, "node", "load", "held");
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

/* A spec of two models: --watch waits for both, also where one fails, and says which. */
SL_TEST(watch_waits_for_each_model_of_a_spec)
{
    char spec[PATH_BYTES * 2], text[4096];
    const char *const form = "---\napiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: %s}\n"
                             "source: {uri: \"%s\"}\n";
    pid_t daemon = start_daemon();
    snprintf(spec, sizeof(spec), "%s/two.yaml", scratch);
    int used = snprintf(text, sizeof(text), form, "first", model);
    snprintf(text + used, sizeof(text) - (size_t)used, form, "second", model);
    write_file(spec, text);
    RUN(&ran, "node", "load", spec, "--watch");
    EXPECT(0, "first");
    EXPECT(0, "second");
    ck_assert_ptr_nonnull(strstr(ran.out, "ready"));
    ck_assert_ptr_null(strstr(ran.out, "loading   "));
    RUN(&ran, "node", "load", spec, "--watch", "--json");
    EXPECT(0, "\"models\":[{");
    ck_assert_ptr_nonnull(strstr(strstr(ran.out, "\"ready\"") + 1, "\"ready\""));
    used = snprintf(text, sizeof(text), form, "bad", "/nowhere/at/all");
    snprintf(text + used, sizeof(text) - (size_t)used, form, "third", model);
    write_file(spec, text);
    RUN(&ran, "node", "load", spec, "--watch");
    EXPECT(4, "model 'bad': ");
    EXPECT(4, "third");
    ck_assert(is_listed("third"));
    kill(daemon, SIGTERM);
    ck_assert_int_eq(wait_sluice(daemon), 0);
}

SL_TEST(what_is_no_daemon_is_said)
{
    RUN(&ran, "node", "models");
    EXPECT(7, "there is no socket");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_lt(strlen(sock), sizeof(address.sun_path));
    memcpy(address.sun_path, sock, strlen(sock));
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    RUN(&ran, "node", "models"); /* nobody listens */
    EXPECT(7, "the daemon does not answer");
    close(fd);
    RUN(&ran, "node", "frob", "m");
    EXPECT(2, "unknown node command 'frob'");
    RUN(&ran, "node", "pin");
    EXPECT(2, "needs the name of a model");
    RUN(&ran, "node", "models", "m");
    EXPECT(2, "takes no name");
}

SL_CASE(.setup = setup, .teardown = teardown, .seconds = 60)
