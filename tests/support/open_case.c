/* Models that the library opens. */
#include "open_case.h"

#include <check.h>
#include <stdlib.h>

#include "fake_clock.h"
#include "thread.h"

struct sluice_error error;

struct sluice_source *open_it(const char *uri, const struct sluice_open_options *options)
{
    struct sluice_source *source;
    ck_assert_msg(sluice_open(uri, options, &source, &error) == 0, "%s: %s", uri, error.message);
    return source;
}

struct sluice_tensor tensor_of(const struct sluice_source *source, uint64_t number)
{
    struct sluice_tensor tensor = {.size = sizeof(tensor)};
    ck_assert_int_eq(sluice_source_tensor(source, number, &tensor, &error), 0);
    return tensor;
}

struct sluice_source_info info_of(const struct sluice_source *source)
{
    struct sluice_source_info info = {.size = sizeof(info)};
    sluice_source_info(source, &info);
    return info;
}

uint8_t *whole(struct sluice_source *source, uint64_t number)
{
    struct sluice_tensor tensor = tensor_of(source, number);
    uint8_t *data = malloc(tensor.bytes + 1);
    const struct sluice_read read = {
        .size = sizeof(read), .number = number, .to = data, .bytes = tensor.bytes};
    ck_assert_msg(sluice_read(source, &read, 1, NULL, &error) == 0, "%s", error.message);
    return data;
}

void let_files_be_old(void)
{
    fake_clock_turn(SL_NS_PER_S);
}
