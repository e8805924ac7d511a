/*
 * From the stored bytes of one tensor to the bytes that are written of it: which are taken, what an
 * element becomes, at which places the work may be parted. Rows are taken in the order in which
 * they lie, so whatever lies between two places of the source is one stretch of the file. A place
 * in the source is its offset in the object.
 *
 * Lengths are bytes. Any thread may read a mapping once it is made; computation alone.
 */
#ifndef SL_MAPPING_H
#define SL_MAPPING_H

#include "plan.h"

/** One dimension that counts runs: of its steps, `count` are taken from `begin` on. */
struct sl_run_level {
    uint64_t stride; /* stored bytes from one step to the next */
    uint64_t begin, count;
    uint64_t each; /* taken bytes of one step */
};
/** Equally long runs of stored bytes, counted by levels, the outermost first. */
struct sl_runs {
    const struct sl_run_level *levels;
    unsigned level_count;
    uint64_t first, bytes; /* a run's begin in its step of the last level; its length */
    uint64_t total;        /* of all runs together */
};
/** How many bytes of the runs lie before stored byte `at`. */
uint64_t sl_runs_before(const struct sl_runs *runs, uint64_t at);
/** The stored byte that is number `taken` (below total) of the runs; *left: bytes from there to the
 * end of its run. */
uint64_t sl_runs_at(const struct sl_runs *runs, uint64_t taken, uint64_t *left);
/** Runs that have gaps of at most so many stored bytes between them lie in equal groups: the bytes
 * of the runs of one. Byte number `taken` of the runs is in group taken / that. */
uint64_t sl_runs_group(const struct sl_runs *runs, uint64_t gap);
/** How many bytes of the runs lie within so many stored bytes, about; at least those of one. */
uint64_t sl_runs_within(const struct sl_runs *runs, uint64_t stored);
/**
 * Move what the runs take of stored bytes [begin, end) together.
 *
 * @begin, end  stored bytes, from the tensor's begin.
 * @from        those bytes.
 * @to          out: what is taken; not behind `from`, which it may overlap.
 * @return      how many bytes were taken.
 */
size_t sl_runs_gather(const struct sl_runs *runs, uint64_t begin, uint64_t end, const uint8_t *from,
                      uint8_t *to);

struct sl_mapping {
    const struct sl_target *target;
    uint64_t begin, end; /* the tensor in its object */
    uint32_t source, file;
    uint64_t file_offset;    /* of its first byte that is written */
    struct sl_runs selected; /* runs of stored bytes that the slice takes */
    struct sl_runs fetched;  /* total not 0: only these bytes are fetched of an extent (a sparse) */
    unsigned in_item, out_item; /* bytes of an element before and after the cast; 1 without one */
    unsigned swap_bytes;        /* 0: none */
    uint64_t unit;        /* bytes: what is parted is parted at multiples from the tensor's begin */
    uint64_t piece_bytes; /* encrypted: of a piece; else 0 */
    bool changes;         /* else its runs land as they are */
    bool composed;        /* no extent can give it: it is read through sl_tensor_read() */
    uint32_t check_first, check_count; /* in plan->checks, over the stored bytes as plaintext */
    bool ordered;                      /* they must see them in order: the tensor is one unit */
    enum sl_stage_side decrypt_on, cast_on; /* where it is done, if it is: stages.h */
};

/** Does its plaintext lie as its ciphertext does, with no hash that wants to see it? Then it can be
 * decrypted where it lands. */
bool sl_mapping_keeps_pieces(const struct sl_mapping *mapping);

/**
 * Find out how a target gets from its object to its file. Nothing is to be released: what is not in
 * *mapping is in the index, whose thread this is.
 *
 * @mapping      out.
 * @target       borrowed as long as the mapping.
 * @file         its number in the plan.
 * @file_offset  of the first byte that is written.
 * @return       0, or -1 with SL_E_NO_SPACE; SL_E_INTERNAL: the target's type or length is wrong.
 */
int sl_mapping_init(struct sl_mapping *mapping, const struct sl_target *target, uint32_t file,
                    uint64_t file_offset, struct sl_err *err);
/** The offset in the file of what is made of the bytes from this place on. */
uint64_t sl_mapping_place(const struct sl_mapping *mapping, uint64_t place);
/** The last place, not after this one, where the work may be parted; and the first not before it.
 * Both stay within the tensor. */
uint64_t sl_mapping_floor(const struct sl_mapping *mapping, uint64_t place);
uint64_t sl_mapping_ceil(const struct sl_mapping *mapping, uint64_t place);

/** Of an extent with a target; NULL for one whose bytes land as they are. */
static inline const struct sl_mapping *sl_extent_mapping(const struct sl_plan *plan,
                                                         const struct sl_extent *extent)
{
    return extent->target ? &plan->mappings[extent->target - 1] : NULL;
}
/** The mapping of an extent of which only some bytes are fetched, else NULL. */
static inline const struct sl_mapping *sl_extent_sparse(const struct sl_plan *plan,
                                                        const struct sl_extent *extent)
{
    const struct sl_mapping *mapping = sl_extent_mapping(plan, extent);
    return mapping && mapping->fetched.total ? mapping : NULL;
}
/** Bytes of [begin, end) of a sparse that are fetched. */
uint64_t sl_mapping_fetched(const struct sl_mapping *mapping, uint64_t begin, uint64_t end);
/** How many targets are not written as they are stored. */
struct sl_plan_changes {
    uint64_t decrypted, cast, sliced;
};
struct sl_plan_changes sl_plan_changes(const struct sl_plan *plan);
/** Plaintext bytes that are read of a composed target; 0 of others. */
uint64_t sl_mapping_composed(const struct sl_mapping *mapping);
/** Bytes that are fetched for an extent; that it leaves in its file. */
uint64_t sl_extent_bytes(const struct sl_plan *plan, const struct sl_extent *extent);
uint64_t sl_extent_file_bytes(const struct sl_plan *plan, const struct sl_extent *extent);

#endif
