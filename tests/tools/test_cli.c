/* The command line as a user meets it: flags, help, exit codes, signals, what goes to which stream.
 */
#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "cli.h"
#include "json.h"
#include "run_sluice.h"

static struct ran ran;

static void setup(void)
{
    unsetenv("KUBERNETES_SERVICE_HOST");
    setenv("SLUICE_TERMINATION_LOG", "/dev/null", 1);
}
static void teardown(void)
{
    ran_release(&ran);
}

static void expect_usage(const char *message)
{
    char line[1024];
    snprintf(line, sizeof(line), "sluice: error: %s\n", message);
    ck_assert_str_eq(ran.err, line);
    ck_assert_str_eq(ran.out, "");
    ck_assert_int_eq(ran.exit_code, 2);
}

/* ---- flags ---------------------------------------------------------------------------------- */

SL_TEST(an_unknown_flag_names_the_nearest)
{
    RUN(&ran, "version", "--jsno");
    expect_usage("unknown flag '--jsno', did you mean '--json'?");
    RUN(&ran, "version", "--zebra=1");
    expect_usage("unknown flag '--zebra': see `sluice version --help`");
    RUN(&ran, "load", "m.yaml", "--conections", "4");
    expect_usage("unknown flag '--conections', did you mean '--connections'?");
    RUN(&ran, "version", "-json");
    expect_usage("unknown flag '-json', did you mean '--json'?");
    RUN(&ran, "--zebra");
    expect_usage("unknown flag '--zebra': see `sluice --help`");
}

SL_TEST(all_wrong_flags_are_said_at_once)
{
    RUN(&ran, "load", "m.bin", "--frob", "--jsno", "--log-level=loud");
    ck_assert_int_eq(ran.exit_code, 2);
    static const char *const lines[] = {"unknown flag '--frob'", "did you mean '--json'?",
                                        "--log-level: ", "3 mistakes on the command line"};
    for (size_t i = 0; i < 4; i++)
        ck_assert_msg(strstr(ran.err, lines[i]) != NULL, "%s", ran.err);
}

SL_TEST(a_wrong_flag_hides_no_wrong_value)
{
    RUN(&ran, "load", "m.bin", "--frob", "--connections", "abc", "--to", "/x", "--set",
        "verify.hashes=maybe", "--set", "no.such=1", "--attempts", "3");
    ck_assert_int_eq(ran.exit_code, 2);
    static const char *const lines[] = {
        "unknown flag '--frob'", "--connections: expected a whole number or 'auto'",
        "--set verify.hashes: expected one of", "--set no.such: unknown key 'no'",
        "error: 4 mistakes on the command line"};
    for (size_t i = 0; i < SL_COUNT(lines); i++)
        ck_assert_msg(strstr(ran.err, lines[i]) != NULL, "%s", ran.err);
    ck_assert_msg(!strstr(ran.err, "missing"), "%s", ran.err);
    RUN(&ran, "load", "m.bin", "--frob", "--attempts", "3");
    expect_usage("unknown flag '--frob': see `sluice load --help`");
}

SL_TEST(a_missing_destination_is_said_beside_wrong_values)
{
    RUN(&ran, "load", "m.bin", "--connections", "abc");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_str_eq(ran.err,
                     "sluice: error: --connections: expected a whole number or 'auto', not 'abc'\n"
                     "sluice: error: --to DIR is missing: where to publish 'm.bin' (the name of a "
                     "spec ends in .yaml)\n"
                     "sluice: error: 2 mistakes on the command line, nothing was done: see `sluice "
                     "docs spec`\n");
    RUN(&ran, "load", "m.bin", "--connections", "4");
    expect_usage("--to DIR is missing: where to publish 'm.bin' (the name of a spec ends in "
                 ".yaml)");
}

SL_TEST(an_unsupported_scheme_lists_those_that_are)
{
    static const struct {
        const char *uri, *says;
    } rows[] = {
        {"ftp://host/m", "URI: 'ftp://' is not supported: use a path, or one of "},
        {"hdfs://host/m", "URI: 'hdfs://' is not supported: use a path, or one of "},
        {"htps://host/m", "URI: 'htps://' is not supported, did you mean 'https://'? There are: "},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        RUN(&ran, "load", rows[i].uri, "--to", "/dev/shm/x");
        ck_assert_msg(ran.exit_code == 2 && strstr(ran.err, rows[i].says), "%s", ran.err);
        ck_assert_msg(strstr(ran.err, "s3://") && strstr(ran.err, "rediss://"), "%s", ran.err);
    }
}

SL_TEST(a_path_that_is_not_there_may_have_meant_something_else)
{
    static const struct {
        const char *operand, *hint;
    } rows[] = {
        {"Org/Model-0.5B", "; a repository of the Hub is written hf://Org/Model-0.5B\n"},
        {"gpt-j-6b-fp16", "; for the public model gpt-j-6b-fp16 `sluice models --spec "
                          "gpt-j-6b-fp16` prints a spec\n"},
        {"gptj", "; for the public model gpt-j-6b `sluice models --spec gpt-j-6b` prints a spec\n"},
        {"s3:/bucket/key", "; a URI has a colon and two slashes: s3://bucket/key\n"},
        {"model", "mounted here\n"},
        {"a/b/c", "mounted here\n"},
        {"a//b/c", "mounted here\n"},
        {"./a", "mounted here\n"},
        {"a/", "mounted here\n"},
        {"../a", "mounted here\n"},
        {"no-public-model", "mounted here\n"},
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        RUN(&ran, "plan", rows[i].operand);
        ck_assert_msg(ran.exit_code == 4 && strstr(ran.err, rows[i].hint), "%s", ran.err);
    }
}

SL_TEST(json_has_every_mistake)
{
    RUN(&ran, "load", "/x", "--to", "/y", "--connections", "abc", "--attempts", "q", "--json");
    json_t *result = sl_json_parse(ran.out, strlen(ran.out), "result", NULL);
    const json_t *mistakes = json_object_get(json_object_get(result, "error"), "mistakes");
    ck_assert_uint_eq(json_array_size(mistakes), 2);
    ck_assert_ptr_nonnull(strstr(json_string_value(json_array_get(mistakes, 0)), "--attempts"));
    json_decref(result);
}

SL_TEST(quiet_and_verbose_are_levels_of_the_log)
{
    RUN(&ran, "load", "/nowhere/x", "--to", "/nowhere/y", "-q");
    ck_assert_ptr_null(strstr(ran.err, "failed"));
    ck_assert_int_ne(ran.exit_code, 0);
    RUN(&ran, "plan", "s3://b/m/", "-v", "--attempts", "1", "--unreachable-seconds", "0", "--set",
        "source.s3.endpoint=http://127.0.0.1:1", "--set", "source.s3.anonymous=true");
    ck_assert_ptr_nonnull(strstr(ran.err, "is at http://127.0.0.1:1"));
}

SL_TEST(completion_knows_what_operands_may_be)
{
    RUN(&ran, "completion", "bash");
    ck_assert_ptr_nonnull(strstr(ran.out, "node) words='models load retry"));
    RUN(&ran, "completion", "zsh");
    ck_assert_ptr_nonnull(strstr(ran.out, "'1:what:(models load retry"));
    RUN(&ran, "completion", "fish");
    ck_assert_ptr_nonnull(strstr(ran.out, "-f -a 'models load retry"));
}

SL_TEST(an_unknown_command_names_the_nearest)
{
    RUN(&ran, "laod");
    expect_usage("unknown command 'laod', did you mean 'sluice load'?");
    RUN(&ran, "frobnicate");
    expect_usage("unknown command 'frobnicate': see `sluice help`");
}

SL_TEST(operands_are_counted)
{
    RUN(&ran, "completion");
    expect_usage("'sluice completion' needs an operand: sluice completion bash|zsh|fish");
    RUN(&ran, "version", "x");
    expect_usage("'x' is one operand too many: sluice version");
}

SL_TEST(a_flag_needs_its_value)
{
    RUN(&ran, "version", "--log-level");
    expect_usage("'--log-level' needs a value: --log-level error|warn|info|debug|trace");
    RUN(&ran, "version", "--log-level", "loud");
    expect_usage("--log-level: expected one of error|warn|info|debug|trace, not 'loud'");
    RUN(&ran, "version", "--no-json=false");
    expect_usage("'--no-json' takes no value");
    RUN(&ran, "version", "--json=perhaps");
    expect_usage("--json: expected true or false, not 'perhaps'");
}

SL_TEST(flags_may_stand_anywhere_and_take_either_form)
{
    static const char *const lines[][5] = {
        {"version", "--json"},
        {"--json", "version"},
        {"version", "--json=true", "--log-level=debug"},
        {"--log-level", "debug", "version", "--json"},
        {"version", "--no-json", "--json=yes"},
    };
    for (size_t i = 0; i < SL_COUNT(lines); i++) {
        run_sluice(&ran, lines[i]);
        ck_assert_msg(ran.exit_code == 0 && ran.out[0] == '{', "%zu: %s%s", i, ran.out, ran.err);
    }
    RUN(&ran, "version", "--json", "--no-json");
    ck_assert_int_eq(strncmp(ran.out, "sluice ", 7), 0);
}

SL_TEST(dashes_end_the_flags)
{
    RUN(&ran, "help", "--", "--json");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_ptr_nonnull(strstr(ran.err, "no page is called '--json'"));
    RUN(&ran, "--", "version");
    expect_usage("'--' before any command: see `sluice help`");
}

SL_TEST(set_wants_a_key_and_a_value)
{
    RUN(&ran, "plan", "m.yaml", "--set", "readers");
    expect_usage("--set takes KEY=VALUE, such as verify.hashes=all, not 'readers'");
}

/* ---- help ----------------------------------------------------------------------------------- */

SL_TEST(no_command_is_a_usage_error_with_help)
{
    run_sluice(&ran, (const char *const[]){NULL});
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_str_eq(ran.out, "");
    ck_assert_ptr_nonnull(strstr(ran.err, "Usage: sluice COMMAND"));
}

SL_TEST(help_names_every_command_and_flag)
{
    RUN(&ran, "--help");
    ck_assert_int_eq(ran.exit_code, 0);
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        char line[128];
        snprintf(line, sizeof(line), "\n  %s ", (*command)->name);
        ck_assert_msg(strstr(ran.out, line), "%s", (*command)->name);
    }
    RUN(&ran, "load", "--help");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(ran.out, " more are in `sluice help load`:"));
    ck_assert_ptr_null(strstr(ran.out, "--connections NUMBER|auto"));
    ck_assert_ptr_nonnull(strstr(ran.out, "--set KEY=VALUE"));
    ck_assert_ptr_nonnull(
        strstr(ran.out, "Flags of every command; 3 more are in `sluice help load`"));
    size_t shown = 0;
    for (const char *p = ran.out; (p = strstr(p, "\n  --")); p++)
        shown++;
    ck_assert_uint_eq(shown, 6);
    RUN(&ran, "help", "load");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_ptr_nonnull(strstr(ran.out, "--log-format auto|text|json"));
    ck_assert_ptr_nonnull(strstr(ran.out, "--connections NUMBER|auto"));
    ck_assert_ptr_nonnull(strstr(ran.out, "--set KEY=VALUE"));
}

SL_TEST(every_command_explains_itself_in_eighty_columns)
{
    for (const struct sl_command *const *command = sl_commands(); *command; command++) {
        RUN(&ran, (*command)->name, "--help");
        ck_assert_int_eq(ran.exit_code, 0);
        ck_assert_int_eq(strncmp(ran.out, "Usage: sluice ", 14), 0);
        size_t columns = 0;
        for (const char *p = strchr(ran.out, '\n'); *p; p++) {
            columns = *p == '\n' ? 0 : columns + ((*p & 0xc0) != 0x80);
            ck_assert_msg(columns <= 80, "%s --help: %.90s", (*command)->name, p - columns + 1);
        }
        RUN(&ran, "help", (*command)->name);
        ck_assert_int_eq(ran.exit_code, 0);
    }
}

SL_TEST(the_version_can_be_asked_either_way)
{
    RUN(&ran, "--version");
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert_int_eq(strncmp(ran.out, "sluice " SLUICE_VERSION "\n", strlen(SLUICE_VERSION) + 8),
                     0);
    RUN(&ran, "version", "--json");
    struct sl_err err = SL_ERR_INIT;
    json_t *json = sl_json_parse(ran.out, strlen(ran.out), "version", &err);
    ck_assert_ptr_nonnull(json);
    ck_assert_str_eq(sl_json_get_string(json, "version"), SLUICE_VERSION);
    ck_assert_ptr_nonnull(sl_json_get_string(json_object_get(json, "libraries"), "libcurl"));
    json_decref(json);
}

SL_TEST(shells_take_their_completion)
{
    static const char *const shells[] = {"bash", "zsh", "fish"};
    for (size_t i = 0; i < SL_COUNT(shells); i++) {
        RUN(&ran, "completion", shells[i]);
        ck_assert_int_eq(ran.exit_code, 0);
        ck_assert_ptr_nonnull(strstr(ran.out, "range-bytes"));
        ck_assert_ptr_null(strstr(ran.out, "  memory, limits, certificates"));
        char name[] = "/tmp/sluice-completion-XXXXXX";
        int fd = mkstemp(name);
        ck_assert_int_eq(write(fd, ran.out, strlen(ran.out)), (ssize_t)strlen(ran.out));
        close(fd);
        struct ran check = {0};
        run_program(&check, shells[i], (const char *const[]){"-n", name, NULL});
        if (check.exit_code != 127)
            ck_assert_msg(check.exit_code == 0, "%s: %s", shells[i], check.err);
        ran_release(&check);
        unlink(name);
    }
    RUN(&ran, "completion", "bsh");
    expect_usage("no completion for 'bsh', did you mean 'bash'?");
}

SL_TEST(bash_completes_flags_and_choices)
{
    RUN(&ran, "completion", "bash");
    char *script = strdup(ran.out), command[400000];
    snprintf(
        command, sizeof(command),
        "%s\nCOMP_WORDS=(sluice load --memo) COMP_CWORD=2; _sluice; echo \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(sluice load --log-format '') COMP_CWORD=3; _sluice; echo \"${COMPREPLY[@]}\"\n"
        "COMP_WORDS=(sluice comp) COMP_CWORD=1; _sluice; echo \"${COMPREPLY[@]}\"\n",
        script);
    free(script);
    run_program(&ran, "bash", (const char *const[]){"-c", command, NULL});
    if (ran.exit_code != 127)
        ck_assert_str_eq(ran.out, "--memory-bytes\nauto text json\ncompletion\n");
}

/* ---- errors --------------------------------------------------------------------------------- */

SL_TEST(json_errors_go_to_stdout_and_the_line_to_stderr)
{
    RUN(&ran, "docs", "nothing-like-it", "--json");
    ck_assert_int_eq(ran.exit_code, 2);
    ck_assert_int_eq(strncmp(ran.err, "sluice: error: no page is called", 32), 0);
    struct sl_err err = SL_ERR_INIT;
    json_t *json = sl_json_parse(ran.out, strlen(ran.out), "error", &err);
    ck_assert_ptr_nonnull(json);
    json_t *error = json_object_get(json, "error");
    ck_assert_str_eq(sl_json_get_string(error, "kind"), "USAGE");
    ck_assert_str_eq(sl_json_get_string(error, "code"), "");
    ck_assert_ptr_nonnull(sl_json_get_string(error, "message"));
    json_decref(json);
}

SL_TEST(a_container_gets_json_lines)
{
    setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1", 1);
    RUN(&ran, "laod");
    ck_assert_int_eq(ran.exit_code, 2);
    struct sl_err err = SL_ERR_INIT;
    json_t *json = sl_json_parse(ran.err, strlen(ran.err), "line", &err);
    ck_assert_msg(json != NULL, "%s", ran.err);
    ck_assert_str_eq(sl_json_get_string(json, "level"), "error");
    ck_assert_str_eq(sl_json_get_string(json, "kind"), "USAGE");
    json_decref(json);
    RUN(&ran, "laod", "--log-format", "text");
    ck_assert_int_eq(ran.err[0], '{'); /* the command is judged before the flag is reached */
    RUN(&ran, "--log-format", "text", "laod");
    ck_assert_int_eq(strncmp(ran.err, "sluice: error: ", 15), 0);
}

SL_TEST(the_outcome_is_left_for_kubernetes)
{
    char name[] = "/tmp/sluice-termination-XXXXXX", text[512] = "";
    int fd = mkstemp(name);
    setenv("SLUICE_TERMINATION_LOG", name, 1);
    RUN(&ran, "docs", "nothing-like-it");
    ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
    ck_assert_int_eq(strncmp(text, "error USAGE: no page is called", 30), 0);
    ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1);
    close(fd);
    unlink(name);
}

SL_TEST(output_that_cannot_be_written_is_an_error)
{
    char err_path[] = "/tmp/sluice-full-XXXXXX";
    int fd = mkstemp(err_path);
    int code = wait_sluice(
        start_sluice((const char *const[]){"docs", "spec", NULL}, "/dev/full", err_path));
    ck_assert_int_eq(code, 6);
    char text[256] = "";
    ck_assert_int_gt(read(fd, text, sizeof(text) - 1), 0);
    ck_assert_str_eq(text,
                     "sluice: error: cannot write to standard output: No space left on device\n");
    close(fd);
    unlink(err_path);
}

SL_TEST(all_mistakes_of_a_spec_are_shown)
{
    char name[] = "/tmp/sluice-spec-XXXXXX.yaml";
    static const char text[] =
        "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\nsource: {urii: /m}\n"
        "sink: {tmpfs: {path: /t}}\nlisten: [a]\n";
    int fd = mkstemps(name, 5);
    ck_assert_int_eq(write(fd, text, sizeof(text) - 1), (ssize_t)sizeof(text) - 1);
    close(fd);
    RUN(&ran, "plan", name);
    ck_assert_int_eq(ran.exit_code, 2);
    char wanted[1024];
    snprintf(
        wanted, sizeof(wanted),
        "sluice: error: %s:4:10: unknown key 'urii' in 'source', did you mean 'uri'?\n"
        "sluice: error: %s:6:9: 'listen' must be one value, not a list\n"
        "sluice: error: 2 mistakes in the model spec, nothing was done: see `sluice docs spec`\n",
        name, name);
    ck_assert_str_eq(ran.err, wanted);
    unlink(name);
}

static size_t count(const char *text, const char *word)
{
    size_t found = 0;
    for (; (text = strstr(text, word)) != NULL; text++)
        found++;
    return found;
}

/* A destination on a disk has a line of its own, without a rate. */
SL_TEST(a_result_is_said_once_with_one_rate)
{
    char folder[] = "/tmp/sluice-said-XXXXXX", file[64], to[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(file, sizeof(file), "%s/m.bin", folder);
    snprintf(to, sizeof(to), "%s/to", folder);
    FILE *model = fopen(file, "w");
    ck_assert_ptr_nonnull(model); /* enough for a rate in KiB/s or more, however slow it is */
    ck_assert(ftruncate(fileno(model), 1024 * 1024) == 0 && fclose(model) == 0);
    RUN(&ran, "load", file, "--to", to);
    ck_assert_msg(ran.exit_code == 0 && count(ran.err, "B/s") == 1 &&
                      count(ran.err, " is in ") == 1 && !strstr(ran.err, "%") && !*ran.out,
                  "%s%s", ran.out, ran.err);
    RUN(&ran, "rm", to);
    RUN(&ran, "load", file, "--to", to, "--log-format", "json");
    ck_assert_msg(count(ran.err, "B/s") == 1 && count(ran.err, "\"progress\":{") == 1, "%s",
                  ran.err);
    RUN(&ran, "load", file, "--to", to);
    ck_assert_msg(ran.exit_code == 0 && count(ran.err, "there already") == 1 &&
                      !count(ran.err, "B/s") && !strstr(ran.err, "%"),
                  "%s", ran.err);
    RUN(&ran, "load", "/nowhere/at/all.bin", "--to", to);
    ck_assert_msg(ran.exit_code == 4 && count(ran.err, "\n") == 1, "%s", ran.err);
    RUN(&ran, "rm", to);
    ck_assert_int_eq(ran.exit_code, 0);
    ck_assert(unlink(file) == 0 && rmdir(folder) == 0);
}

/* ---- signals -------------------------------------------------------------------------------- */

/* `share` serves until a signal; it says where once it listens. */
SL_TEST(a_signal_ends_a_server)
{
    char err_path[] = "/tmp/sluice-share-XXXXXX";
    int fd = mkstemp(err_path);
    pid_t pid = start_sluice(
        (const char *const[]){"share", "/usr/include", "--listen", "127.0.0.1:0", NULL}, err_path,
        err_path);
    char text[256] = "";
    SL_AWAIT(pread(fd, text, sizeof(text) - 1, 0) > 0 && strstr(text, "127.0.0.1"),
             "where it listens");
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    int code = wait_sluice(pid);
    ck_assert_msg(code == 0, "%d: %s", code, text);
    close(fd);
    unlink(err_path);
}

/* Else files, or sockets, would have these numbers, and logs would be written into them. */
SL_TEST(no_file_takes_the_place_of_a_stream_that_is_closed)
{
    char out[] = "/tmp/sluice-share-XXXXXX", command[512], text[256] = "", path[64];
    int fd = mkstemp(out);
    snprintf(command, sizeof(command),
             "exec \"$SLUICE\" share /usr/include --listen 127.0.0.1:0 <&- 2>&- >%s", out);
    pid_t pid = start_program("sh", (const char *const[]){"-c", command, NULL});
    SL_AWAIT(pread(fd, text, sizeof(text) - 1, 0) > 0 && strstr(text, "127.0.0.1"),
             "where it listens");
    static const int streams[] = {STDIN_FILENO, STDERR_FILENO};
    for (size_t i = 0; i < SL_COUNT(streams); i++) {
        char target[64] = "";
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, streams[i]);
        ck_assert_int_gt(readlink(path, target, sizeof(target) - 1), 0);
        ck_assert_str_eq(target, "/dev/null");
    }
    ck_assert_int_eq(kill(pid, SIGTERM), 0);
    ck_assert_int_eq(wait_sluice(pid), 0);
    run_program(&ran, "sh", (const char *const[]){"-c", "exec \"$SLUICE\" version >&-", NULL});
    ck_assert_msg(ran.exit_code == 6 && strstr(ran.err, "standard output"), "%d: %s", ran.exit_code,
                  ran.err);
    close(fd);
    unlink(out);
}

/* Does the process run `sluice`, itself or emulated, and sleep, as it does while it waits for its
 * input? */
static bool is_asleep(pid_t pid)
{
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t bytes = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[bytes > 0 ? bytes : 0] = 0;
    return strstr(text, "(sluice) S") || strstr(text, "(qemu-aarch64-st) S");
}

SL_TEST(a_signal_ends_the_wait_for_a_spec)
{
    char directory[] = "/tmp/sluice-signal-XXXXXX", fifo[64], command[512];
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(fifo, sizeof(fifo), "%s/spec", directory);
    ck_assert_int_eq(mkfifo(fifo, 0600), 0);
    snprintf(command, sizeof(command), "exec \"$SLUICE\" plan - < %s", fifo);
    static const int signals[] = {SIGTERM, SIGINT, SIGHUP};
    for (size_t i = 0; i < SL_COUNT(signals); i++) {
        pid_t pid = start_program("sh", (const char *const[]){"-c", command, NULL});
        int writer =
            open(fifo, O_WRONLY | O_CLOEXEC); /* returns when the shell opens the other end */
        ck_assert_int_ge(writer, 0);
        SL_AWAIT(is_asleep(pid), "the wait for a spec");
        ck_assert_int_eq(kill(pid, signals[i]), 0);
        ck_assert_int_eq(wait_sluice(pid), 128 + signals[i]);
        close(writer);
    }
    unlink(fifo);
    rmdir(directory);
}

SL_CASE(.setup = setup, .teardown = teardown)
