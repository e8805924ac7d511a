/*
 * What a run took: wall-clock time, processor time of the process, and the highest anonymous
 * memory, which a thread samples, since the kernel's own high-water mark counts mapped files and
 * never falls.
 */
#include <inttypes.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "bench_parts.h"

enum { SAMPLE_MS = 10 };

struct sl_bench_meter {
    uint64_t began_ns;
    double began_cpu;
    pthread_t thread;
    struct sl_cancel *stop;
    uint64_t peak; /* of the thread, until it is joined */
};

uint64_t sl_bench_memory(pid_t pid)
{
    char path[48];
    uint64_t resident = 0, shared = 0;
    snprintf(path, sizeof(path), "/proc/%ld/statm", (long)pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return 0;
    int got = fscanf(file, "%*u %" SCNu64 " %" SCNu64, &resident, &shared);
    fclose(file);
    return got == 2 && resident > shared ? (resident - shared) * (uint64_t)sysconf(_SC_PAGESIZE)
                                         : 0;
}

static double cpu_seconds(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void *watch(void *arg)
{
    struct sl_bench_meter *meter = arg;
    do {
        uint64_t now = sl_bench_memory(getpid());
        meter->peak = SL_MAX(meter->peak, now);
    } while (sl_sleep_ms(SAMPLE_MS, meter->stop, NULL) == 0);
    return NULL;
}

struct sl_bench_meter *sl_bench_meter_start(struct sl_err *err)
{
    sl_autofree struct sl_bench_meter *meter = sl_alloc(sizeof(*meter), err);
    if (!meter)
        return NULL;
    meter->stop = sl_cancel_new(err);
    if (!meter->stop || sl_thread_start(&meter->thread, "sluice-meter", watch, meter, err) < 0) {
        sl_cancel_free(meter->stop);
        return NULL;
    }
    meter->began_cpu = cpu_seconds();
    meter->began_ns = sl_now_ns();
    return sl_steal(&meter);
}

void sl_bench_meter_stop(struct sl_bench_meter *meter, struct sl_bench_sample *sample)
{
    if (!meter)
        return;
    sample->seconds = (double)(sl_now_ns() - meter->began_ns) / (double)SL_NS_PER_S;
    sample->cpu_seconds = cpu_seconds() - meter->began_cpu;
    sl_cancel_raise(meter->stop, 0);
    pthread_join(meter->thread, NULL);
    sample->peak_memory_bytes = meter->peak;
    sl_cancel_free(meter->stop);
    free(meter);
}
