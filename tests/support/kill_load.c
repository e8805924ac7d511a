/* A request is asked for when all before it is written down, so the place is known to the byte. */
#include "kill_load.h"

#include <check.h>
#include <signal.h>
#include <stdlib.h>

#include "await.h"
#include "run_sluice.h"

void sl_kill_load(struct sl_server *server, const char *const *arguments, unsigned nth)
{
    unsigned at = sl_server_request_count(server) + nth;
    SL_SCRIPT(server, {.first = at, .fault = SL_FAULT_STALL, .after = -1, .unhandled = true});
    const char *program = getenv("SLUICE");
    ck_assert_msg(program != NULL, "SLUICE is not set to the program under test");
    pid_t child = start_program(program, arguments);
    SL_AWAIT(sl_server_request_count(server) >= at, "the request to be killed at");
    kill(child, SIGKILL);
    ck_assert_int_eq(wait_sluice(child), 128 + SIGKILL);
    sl_server_script(server, NULL, 0);
}
