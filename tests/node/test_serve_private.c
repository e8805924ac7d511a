/* The daemon's memory and descriptors are not for other processes of its user. */
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "await.h"
#include "claims.h"
#include "model_maker.h"
#include "run_sluice.h"
#include "scratch.h"
#include "thread.h"

enum { NOBODY = 65534, PATH_BYTES = 512, LIMIT_SECONDS = 60 };

static char scratch[SL_SCRATCH_PATH_BYTES];

static const char *in_scratch(const char *name, char path[PATH_BYTES])
{
    snprintf(path, PATH_BYTES, "%s/%s", scratch, name);
    return path;
}

static void write_file(const char *name, const void *data, size_t bytes)
{
    char path[PATH_BYTES];
    FILE *file = fopen(in_scratch(name, path), "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_uint_eq(fwrite(data, 1, bytes, file), bytes);
    ck_assert_int_eq(fclose(file), 0);
}

static void write_config(void)
{
    char text[4 * PATH_BYTES];
    size_t bytes;
    uint8_t *model = sl_model_safetensors("a,b", 50000, &bytes);
    write_file("weights.safetensors", model, bytes);
    free(model);
    snprintf(text, sizeof(text),
             "apiVersion: sluice/v1alpha1\nkind: Node\ndirectory: %s/models\nbudgetBytes: 64MiB\n"
             "listen: 127.0.0.1:0\npool: {socket: %s/pool.sock}\n---\n"
             "apiVersion: sluice/v1alpha1\nkind: Model\nmetadata: {name: m}\n"
             "source: {uri: \"file://%s/weights.safetensors\"}\nsink: {pool: {}}\n",
             scratch, scratch, scratch);
    write_file("node.yaml", text, strlen(text));
}

/* Until it has told where it listens. */
static void await_announcement(const char *out, pid_t daemon)
{
    struct stat status;
    SL_AWAIT((stat(out, &status) == 0 && status.st_size > 0) || waitpid(daemon, NULL, WNOHANG) != 0,
             "the daemon's announcement");
    ck_assert_msg(stat(out, &status) == 0 && status.st_size > 0, "the daemon ended: see %s",
                  scratch);
}

static void look_into(pid_t pid)
{
    static const char *const files[] = {"mem", "environ", "fd", "fd/0", "map_files"};
    for (size_t i = 0; i < SL_COUNT(files); i++) {
        char path[64];
        snprintf(path, sizeof(path), "/proc/%d/%s", pid, files[i]);
        errno = 0;
        ck_assert_msg(open(path, O_RDONLY | O_CLOEXEC) < 0, "'%s' can be opened", path);
        ck_assert_int_eq(errno, EACCES);
    }
}

static void serve_and_look(void)
{
    char config[PATH_BYTES], out[PATH_BYTES], log[PATH_BYTES], socket[PATH_BYTES];
    struct ran ran = {0};
    int scratch_fd = sl_scratch_open(scratch);
    write_config();
    const char *const arguments[] = {"serve", "--json", in_scratch("node.yaml", config), NULL};
    pid_t daemon = start_sluice(arguments, in_scratch("out", out), in_scratch("log", log));
    await_announcement(out, daemon);
    setenv("SLUICE_POOL_SOCKET", in_scratch("pool.sock", socket), 1);
    RUN(&ran, "pool", "attach", "m", "--", "true"); /* it works without its own /proc files */
    ck_assert_msg(ran.exit_code == 0, "%s", ran.err);
    look_into(daemon);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(wait_sluice(daemon), 0);
    ran_release(&ran);
    sl_scratch_close(scratch_fd, scratch);
}

SL_TEST(others_of_its_user_do_not_look_into_the_daemon)
{
    int status;
    if (geteuid() != 0) {
        serve_and_look();
        return;
    }
    fflush(NULL);
    pid_t child = fork(); /* root sees everything: as somebody else */
    if (child == 0) {
        if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0 || access(getenv("SLUICE"), X_OK) < 0)
            _exit(77);
        serve_and_look();
        _exit(0);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77)
        printf("skipped: others_of_its_user_do_not_look_into_the_daemon: another user cannot run "
               "this build\n");
    else
        ck_assert_int_eq(WEXITSTATUS(status), 0);
}

SL_CASE(.seconds = 2 * LIMIT_SECONDS)
