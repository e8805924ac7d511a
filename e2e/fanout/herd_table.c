/*
 * The table of docs/scale.md: build/tests/herd [NODES ...]; without any, 4, 16, 128 and 1000, which
 * takes minutes. One column for each: times one node alone, and copies from the store.
 */
#include "herd.h"

#include <stdio.h>
#include <stdlib.h>

#include "mem.h"

enum { COLUMNS_MAX = 8, LARGE = 500 };

static const struct herd usual = {.blocks = 4096,
                                  .block_bytes = 8 << 20,
                                  .quanta = 8,
                                  .node_mbit = 25000,
                                  .origin_mbit = 100000,
                                  .connection_mbit = 1000,
                                  .origin_ms = 30,
                                  .poll_ms = 500,
                                  .served = 4096,
                                  .connections = 32,
                                  .origin_share = 0.25,
                                  .slow_part = 10,
                                  .seed = 7};

static void direct(struct herd *herd)
{
    herd->direct = true;
}
static void cold(struct herd *herd)
{
    herd->warm = false;
}
static void warm(struct herd *herd)
{
    herd->warm = true;
}
static void slow(struct herd *herd)
{
    herd->slow = (herd->nodes + 99) / 100;
}
static void cut(struct herd *herd)
{
    herd->dead = (herd->nodes + 99) / 100;
}
static void killed(struct herd *herd)
{
    cut(herd);
    herd->refuses = true;
}
static void late(struct herd *herd)
{
    herd->late = herd->nodes / 4;
}
static void spread(struct herd *herd)
{
    herd->spread_ms = 1000;
}
static void all_gone(struct herd *herd)
{
    herd->dead = herd->nodes;
    herd->refuses = true;
}

static const struct {
    const char *name;
    void (*set)(struct herd *herd);
} rows[] = {
    {"each from the store", direct},
    {"cold ring", cold},
    {"the same, all begin within a second", spread},
    {"the same, a quarter of the nodes come late", late},
    {"the same, 1 % of the links ten times slower", slow},
    {"the same, 1 % of the machines cut off", cut},
    {"the same, 1 % of the caches killed", killed},
    {"the same, all caches killed", all_gone},
    {"warm ring", warm},
};

int main(int argc, char **argv)
{
    unsigned nodes[COLUMNS_MAX] = {4, 16, 128, 1000}, columns = 4;
    if (argc > 1)
        columns = SL_MIN((unsigned)argc - 1, (unsigned)COLUMNS_MAX);
    for (unsigned i = 0; argc > 1 && i < columns; i++)
        nodes[i] = (unsigned)strtoul(argv[i + 1], NULL, 10);
    printf("| times one node alone / copies |");
    for (unsigned i = 0; i < columns; i++)
        printf(" %u nodes |", nodes[i]);
    printf("\n| --- |");
    for (unsigned i = 0; i < columns; i++)
        printf(" --- |");
    for (size_t row = 0; row < SL_COUNT(rows); row++) {
        printf("\n| %s |", rows[row].name);
        for (unsigned i = 0; i < columns; i++) {
            struct herd herd = usual;
            struct herd_result result;
            herd.nodes = nodes[i];
            if (herd.nodes > LARGE)
                herd.quanta = 2;
            rows[row].set(&herd);
            herd_run(&herd, &result);
            printf(" %.2f / %.2f |", result.worst / result.alone, result.copies);
            fflush(stdout);
        }
    }
    printf("\n");
    return 0;
}
