/* Parent and child share a page with two semaphores: nothing of it is a descriptor, so that tests
 * may count theirs. */
#include "early_child.h"

#include <check.h>
#include <errno.h>
#include <semaphore.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct sl_early_child {
    pid_t pid;
    sem_t go, arrived;
    char order[SL_EARLY_ORDER_BYTES];
};

static void await(sem_t *semaphore)
{
    while (sem_wait(semaphore) < 0)
        if (errno != EINTR)
            _exit(125);
}

struct sl_early_child *sl_early_child_start(int (*run)(struct sl_early_child *self,
                                                       const void *order))
{
    pid_t parent = getpid();
    struct sl_early_child *child =
        mmap(NULL, sizeof(*child), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(child, MAP_FAILED);
    ck_assert_int_eq(sem_init(&child->go, 1, 0), 0);
    ck_assert_int_eq(sem_init(&child->arrived, 1, 0), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(126);
        await(&child->go);
        _exit(run(child, child->order));
    }
    child->pid = pid;
    return child;
}

void sl_early_child_go(struct sl_early_child *child, const void *order, size_t bytes)
{
    ck_assert_uint_le(bytes, sizeof(child->order));
    if (bytes)
        memcpy(child->order, order, bytes);
    sem_post(&child->go);
}

_Noreturn void sl_early_child_arrive(struct sl_early_child *self)
{
    sem_post(&self->arrived);
    for (;;)
        pause();
}

void sl_early_child_await(struct sl_early_child *child)
{
    siginfo_t info = {0};
    for (;;) {
        struct timespec soon;
        clock_gettime(CLOCK_REALTIME, &soon);
        soon.tv_sec++;
        if (sem_timedwait(&child->arrived, &soon) == 0)
            return;
        ck_assert(errno == ETIMEDOUT || errno == EINTR);
        ck_assert_int_eq(waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT), 0);
        ck_assert_msg(info.si_pid == 0, "the child ended early, with %d", info.si_status);
    }
}

int sl_early_child_end(struct sl_early_child *child)
{
    int status;
    ck_assert_int_eq(waitpid(child->pid, &status, 0), child->pid);
    sem_destroy(&child->go);
    sem_destroy(&child->arrived);
    munmap(child, sizeof(*child));
    return status;
}

int sl_early_child_kill(struct sl_early_child *child)
{
    kill(child->pid, SIGKILL);
    return sl_early_child_end(child);
}
