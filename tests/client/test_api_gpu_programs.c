/* Programs that use memory of a GPU through libsluice: the package for Python, and `sluice pool`,
 * against the fake driver and a daemon that follows a script. */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "claims.h"
#include "gpu_script.h"
#include "mem.h"
#include "run_sluice.h"
#include "skip.h"

static const struct fake_cuda_control *fake;
static const struct sl_cuda *cuda;
static struct pool_script script;

static void setup(void)
{
    pool_script_init(&script);
    fake->set_devices(2);
    cuda = sl_cuda_open(NULL);
    ck_assert_ptr_nonnull(cuda);
}

static void teardown(void)
{
    pool_script_release(&script);
    check_no_cuda_left(fake);
}

SL_TEST(python_sees_memory_of_a_gpu)
{
    struct ran ran = {0};
    gpu_script_start(&script, cuda, 1);
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    setenv("FAKE_CUDA_VISIBLE", "1,0", 1); /* in Python's process: there it is the first */
    int done = run_python(&ran, "pool_gpu_client.py", script.socket);
    unsetenv("FAKE_CUDA_DEVICES");
    unsetenv("FAKE_CUDA_VISIBLE");
    if (done < 0)
        SL_SKIP("no Python that can open this build's library");
    ck_assert_msg(ran.exit_code == 0 && strcmp(ran.out, "ok\n") == 0 && !*ran.err, "%s%s", ran.out,
                  ran.err);
    ran_release(&ran);
}

/* Tensors that are dropped, closed, or alive at the end, each with work in flight. */
SL_TEST(python_may_leave_while_the_gpu_works)
{
    static const char *const hows[] = {"drop", "close", "stay", "raise", "kill"};
    gpu_script_start(&script, cuda, 0);
    setenv("FAKE_CUDA_DELAY_US", "20000", 1);
    for (size_t i = 0; i < SL_COUNT(hows); i++) {
        struct ran ran = {0};
        if (run_python_with(&ran, "pool_gpu_leaver.py", script.socket, hows[i]) < 0)
            SL_SKIP("no Python that can open this build's library");
        ck_assert_msg(ran.exit_code == 0 && strcmp(ran.out, "ok\n") == 0 && !*ran.err, "%s: %s%s",
                      hows[i], ran.out, ran.err);
        ran_release(&ran);
    }
    unsetenv("FAKE_CUDA_DELAY_US");
}

SL_TEST(python_copies_what_cannot_be_pinned)
{
    struct ran ran = {0};
    gpu_script_start_on_host(&script);
    setenv("FAKE_CUDA_REGISTER", "writable", 1);
    int done = run_python(&ran, "pool_pinned_client.py", script.socket);
    unsetenv("FAKE_CUDA_REGISTER");
    if (done < 0)
        SL_SKIP("no Python that can open this build's library");
    ck_assert_msg(ran.exit_code == 0 && strcmp(ran.out, "ok\n") == 0 && !*ran.err, "%s%s", ran.out,
                  ran.err);
    ran_release(&ran);
}

SL_TEST(people_attach_to_a_gpu)
{
    struct ran ran = {0};
    gpu_script_start(&script, cuda, 0);
    if (!getenv("SLUICE"))
        SL_SKIP("SLUICE does not name the program");
    RUN(&ran, "pool", "--socket", script.socket, "attach", "m", "--device", "cuda:0");
    ck_assert_msg(ran.exit_code == 0 && strstr(ran.out, "m: 6 tensors"), "%s%s", ran.out, ran.err);
    RUN(&ran, "pool", "--socket", script.socket, "attach", "m", "--device", "cuda:9");
    ck_assert_int_eq(ran.exit_code, 9);
    ck_assert_msg(strstr(ran.err, "there is no cuda:9"), "%s", ran.err);
    ran_release(&ran);
}

static bool prepare(void)
{
    fake = use_fake_cuda();
    return true;
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = prepare)
