/*
 * What figures depend on, read from /proc, /sys and the environment of a pod. The names of the
 * environment are those of tensorizer's benchmark beside our own, so that its manifests need no
 * change there.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysinfo.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "bench.h"
#include "publish.h"

static void take(char *text, size_t bytes, const char *const *names)
{
    for (; *names && !*text; names++) {
        const char *value = getenv(*names);
        if (value)
            snprintf(text, bytes, "%s", value);
    }
}

static void take_environment(struct sl_bench_facts *facts)
{
    static const char *const node[] = {"SLUICE_NODE", "NODE_NAME", "K8S_NODE_NAME", NULL};
    static const char *const pod[] = {"SLUICE_POD", "POD_NAME", "K8S_POD_NAME", NULL};
    static const char *const region[] = {"SLUICE_REGION", "K8S_POD_REGION", NULL};
    static const char *const speed[] = {"SLUICE_LINK_SPEED", "K8S_LINK_SPEED", NULL};
    take(facts->node, sizeof(facts->node), node);
    take(facts->pod, sizeof(facts->pod), pod);
    take(facts->region, sizeof(facts->region), region);
    take(facts->link_speed, sizeof(facts->link_speed), speed);
    const char *index = getenv("JOB_COMPLETION_INDEX");
    facts->indexed = index && sscanf(index, "%9" SCNu64, &facts->index) == 1;
}

/* "model name : AMD EPYC …" of x86; empty elsewhere. */
static void take_cpu(char *text, size_t bytes)
{
    char line[512];
    FILE *file = fopen("/proc/cpuinfo", "re");
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "model name", 10) != 0)
            continue;
        const char *value = strchr(line, ':');
        value = value ? value + 1 + strspn(value + 1, " \t") : "";
        snprintf(text, bytes, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (file)
        fclose(file);
}

/* The nearest limit of our cgroup and its parents, 0 if none. */
static uint64_t memory_limit(void)
{
    struct sl_room room = {0};
    uint64_t limit = 0;
    sl_room_check("/dev/shm", 0, 0, &room, NULL);
    for (unsigned i = 0; i < room.count; i++)
        if (strncmp(room.limits[i].what, "cgroup", 6) == 0 &&
            (!limit || room.limits[i].limit < limit))
            limit = room.limits[i].limit;
    return limit;
}

void sl_bench_facts(struct sl_bench_facts *facts)
{
    struct utsname system;
    struct sysinfo info;
    *facts = (struct sl_bench_facts){0};
    take_environment(facts);
    snprintf(facts->version, sizeof(facts->version), "%s", SLUICE_VERSION);
    if (uname(&system) == 0) {
        snprintf(facts->kernel, sizeof(facts->kernel), "%s", system.release);
        snprintf(facts->machine, sizeof(facts->machine), "%.31s", system.machine);
        if (!*facts->node)
            snprintf(facts->node, sizeof(facts->node), "%s", system.nodename);
    }
    take_cpu(facts->cpu, sizeof(facts->cpu));
    facts->cpus = sl_cpu_count();
    if (sysinfo(&info) == 0)
        facts->memory_bytes = (uint64_t)info.totalram * info.mem_unit;
    facts->memory_limit = memory_limit();
}
