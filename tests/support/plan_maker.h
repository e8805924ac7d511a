/* Plans put together by hand or by chance, without spec and formats, for the tests of the data
 * path. */
#ifndef SL_PLAN_MAKER_H
#define SL_PLAN_MAKER_H

#include "plan.h"

/** A plan, and what its files must hold in the end. Nothing here fails: it aborts the test instead.
 */
struct sl_made {
    struct sl_plan plan;
    struct sl_sink_file *files; /* for the sink */
    uint8_t **images;           /* one a file; NULL where no data was given */
    struct sl_store **stores;   /* one a source */
    uint8_t **blobs;            /* of sl_made_random() */
    size_t extent_room, range_room, check_room, literal_room, open_extents;
};

struct sl_made *sl_made_new(void);
void sl_made_free(struct sl_made *made);
/** Open an object as the next source. config may be NULL. Returns its number. */
uint32_t sl_made_source(struct sl_made *made, const char *uri,
                        const struct sl_source_config *config);
uint32_t sl_made_file(struct sl_made *made, const char *name, uint64_t bytes);
/** An extent of the range that is being made; data (may be NULL) are the source's bytes from
 * `begin` on, for the image. */
void sl_made_extent(struct sl_made *made, uint32_t source, uint64_t begin, uint64_t end,
                    uint32_t file, uint64_t offset, const uint8_t *data);
/** The extents since the last call become a range. */
void sl_made_range(struct sl_made *made);
/** A whole source as one file, in ranges of range_bytes. */
void sl_made_whole(struct sl_made *made, uint32_t source, const char *name, uint64_t range_bytes,
                   const uint8_t *data);
/** A right check over bytes that lie in one piece at offset of a file. */
struct sl_check *sl_made_check(struct sl_made *made, enum sl_hash_kind kind, uint32_t source,
                               uint64_t begin, uint64_t end, uint32_t file, uint64_t offset,
                               const uint8_t *data);
void sl_made_literal(struct sl_made *made, uint32_t file, uint64_t offset, const uint8_t *data,
                     uint64_t bytes);

/** Sources (memory:), gaps, extents, cuts, literals and checks by chance; the same seed makes the
 * same plan. */
struct sl_made *sl_made_random(unsigned seed);
/** Bytes by chance. */
void sl_made_noise(uint8_t *data, size_t bytes, unsigned seed);
/** Compare every file of the sink with its image; -1 if one differs. */
int sl_made_compare(const struct sl_made *made, struct sl_sink *sink);

#endif
