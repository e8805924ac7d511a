/* What is not whole is not mounted: every format in every state. tests/tools/test_whole.c has the
 * same for commands. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "claims.h"
#include "memory_store.h"
#include "volume_case.h"
#include "whole_case.h"

static struct volume_case c;
static struct volume_ask_case request;
static struct {
    char name[96];
    uint8_t *data;
} objects[WHOLE_FORMATS * 3];
static size_t object_count;

static void setup(void)
{
    volume_case_init(&c);
}

static void teardown(void)
{
    volume_case_release(&c);
    while (object_count)
        free(objects[--object_count].data);
}

SL_CASE(.setup = setup, .teardown = teardown, .prepare = volume_case_possible)

static void put_object(const char *name, const void *data, size_t bytes, void *arg)
{
    ck_assert_uint_lt(object_count, SL_COUNT(objects));
    char *full = objects[object_count].name;
    snprintf(full, sizeof(objects->name), "w%zu/%s", *(const size_t *)arg, name);
    objects[object_count].data = malloc(bytes + 1);
    memcpy(objects[object_count].data, data, bytes);
    ck_assert_int_eq(sl_memory_put(full, objects[object_count++].data, bytes, NULL), 0);
}

SL_TEST_LOOP(what_is_not_whole_is_not_mounted, 0, STATES)
{
    size_t used = 0;
    for (size_t f = 0; f < WHOLE_FORMATS; f++) {
        whole_put(&whole_formats[f], (enum whole_state)_i, put_object, &f);
        used += (size_t)snprintf(c.models + used, sizeof(c.models) - used,
                                 VOLUME_CASE_MODEL("w%zu", "memory://w%zu/"), f, f);
    }
    volume_case_open(&c);
    for (size_t f = 0; f < WHOLE_FORMATS; f++) {
        char name[16], file[VOLUME_CASE_PATH + 96];
        const struct whole_format *format = &whole_formats[f];
        bool fine = _i == WHOLE || _i == INDEX_STALE;
        snprintf(name, sizeof(name), "w%zu", f);
        volume_case_wish(&c, &request, name);
        volume_case_set(&request, "model", name);
        int done = volume_case_publish(&c, &request);
        snprintf(file, sizeof(file), "%s/%s", request.target, format->name);
        ck_assert_msg((done == 0) == fine && (access(file, F_OK) == 0) == fine, "%s, %s: %s",
                      format->name, whole_states[_i], c.err.message);
        const char *named = whole_named(format, (enum whole_state)_i);
        ck_assert_msg(fine || strstr(c.err.message, named), "%s, %s: no '%s' in %s", format->name,
                      whole_states[_i], named, c.err.message);
    }
}
