/* For the tests of models that the library opens; whatever fails here fails the test. */
#ifndef SL_OPEN_CASE_H
#define SL_OPEN_CASE_H

#include "sluice.h"

/** Of the last call. */
extern struct sluice_error error;
struct sluice_source *open_it(const char *uri, const struct sluice_open_options *options);
struct sluice_tensor tensor_of(const struct sluice_source *source, uint64_t number);
struct sluice_source_info info_of(const struct sluice_source *source);
/** All of one tensor; free() it. */
uint8_t *whole(struct sluice_source *source, uint64_t number);
/** From now on the clock is ahead of the files' times: no opening waits for a file to settle. For
 * claims in which nobody changes a file that is open. */
void let_files_be_old(void);

#endif
