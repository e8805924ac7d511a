/*
 * Device memory of the fake driver: an allocation is a memfd, a reservation an inaccessible
 * mapping, and a map of one in the other a shared mapping whose protection is what cuMemSetAccess
 * said for each device. An allocation lives as long as a handle, a mapping or a descriptor of this
 * process keeps it; what other processes have is not counted here.
 */
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "fake_cuda_parts.h"

enum { CARRIERS_MAX = 64 };

struct allocation {
    int fd; /* -1: neither handles nor mappings are left */
    ino_t inode;
    size_t bytes;
    int device;
    struct sl_cuda_prop prop;
    unsigned handles, mappings;
    ino_t carriers[CARRIERS_MAX]; /* descriptors that were exported or imported */
    unsigned carrier_count;
    struct allocation *next;
};
struct reservation {
    uint64_t address;
    size_t bytes;
    struct reservation *next;
};
struct mapping {
    uint64_t address;
    size_t bytes;
    int access[FAKE_DEVICES_MAX]; /* of each device */
    struct allocation *allocation;
    struct mapping *next;
};
static struct allocation *allocations;
static struct handle *handles;
static struct reservation *reservations;
static struct mapping *mappings;
static uint64_t last_handle = 0x5f0000;

void *fake_mmap(void *at, size_t bytes, int protection, int flags, int fd)
{
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, 0L);
}

void fake_munmap(void *at, size_t bytes)
{
    syscall(SYS_munmap, at, bytes);
}

/* ---- what there is -------------------------------------------------------------------------- */

static bool carries(const struct allocation *allocation, ino_t inode)
{
    for (unsigned i = 0; i < allocation->carrier_count; i++)
        if (allocation->carriers[i] == inode)
            return true;
    return false;
}

/* Is a descriptor that carries it open in this process? */
static bool has_descriptor(const struct allocation *allocation)
{
    bool found = false;
    struct stat status;
    DIR *directory = opendir("/proc/self/fd");
    const struct dirent *entry;
    while (directory && !found && (entry = readdir(directory)))
        found = fstatat(dirfd(directory), entry->d_name, &status, 0) == 0 &&
                S_ISSOCK(status.st_mode) && carries(allocation, status.st_ino);
    if (directory)
        closedir(directory);
    return found;
}

static void add_carrier(struct allocation *allocation, int fd)
{
    struct stat status;
    if (fstat(fd, &status) < 0 || carries(allocation, status.st_ino))
        return;
    if (allocation->carrier_count == CARRIERS_MAX) /* the oldest are closed by now */
        memmove(allocation->carriers, allocation->carriers + 1,
                --allocation->carrier_count * sizeof(*allocation->carriers));
    allocation->carriers[allocation->carrier_count++] = status.st_ino;
}

/* Forget allocations that nothing holds. */
static void sweep(void)
{
    for (struct allocation **at = &allocations; *at;) {
        struct allocation *allocation = *at;
        if (!allocation->handles && !allocation->mappings && allocation->fd >= 0) {
            close(allocation->fd);
            allocation->fd = -1;
        }
        if (allocation->fd >= 0 || has_descriptor(allocation)) {
            at = &allocation->next;
            continue;
        }
        *at = allocation->next;
        free(allocation);
    }
}

uint64_t fake_used(int device)
{
    uint64_t bytes = 0;
    sweep();
    for (const struct allocation *at = allocations; at; at = at->next)
        bytes += device < 0 || at->device == device ? at->bytes : 0;
    return bytes;
}

void fake_memory_counts(struct fake_cuda_counts *counts)
{
    counts->bytes = fake_used(-1);
    for (const struct handle *at = handles; at; at = at->next)
        counts->handles += at->refs;
    for (const struct mapping *at = mappings; at; at = at->next)
        counts->mappings++;
    for (const struct reservation *at = reservations; at; at = at->next)
        counts->reservations++;
}

static struct handle *find_handle(uint64_t number)
{
    struct handle *at = handles;
    while (at && at->number != number)
        at = at->next;
    return at;
}

static bool is_whole(uint64_t bytes)
{
    return bytes && bytes % FAKE_GRANULARITY == 0;
}

/* ---- handles -------------------------------------------------------------------------------- */

static bool is_good(const struct sl_cuda_prop *prop)
{
    static const uint8_t none[6];
    return prop && prop->type == SL_CUDA_PINNED && prop->handle_types >= 0 &&
           prop->handle_types <= SL_CUDA_HANDLE_FD &&
           prop->location.type == SL_CUDA_LOCATION_DEVICE && fake_device(prop->location.id) >= 0 &&
           !prop->win32 && !prop->compression && prop->rdma <= fake.has_rdma &&
           memcmp(prop->other, none, sizeof(none)) == 0;
}

int cuMemGetAllocationGranularity(size_t *bytes, const struct sl_cuda_prop *prop, int option)
{
    FAKE_ENTER("cuMemGetAllocationGranularity", 0);
    if (!bytes || !is_good(prop) || option < 0 || option > 1)
        return SL_CUDA_INVALID_VALUE;
    *bytes = FAKE_GRANULARITY;
    return 0;
}

static struct handle *add_handle(struct allocation *allocation, bool imported)
{
    struct handle *handle = calloc(1, sizeof(*handle));
    *handle = (struct handle){++last_handle, allocation, 1, imported, handles};
    handles = handle;
    allocation->handles++;
    return handle;
}

static struct allocation *add_allocation(int fd, size_t bytes, int device)
{
    struct allocation *allocation = calloc(1, sizeof(*allocation));
    struct stat status;
    fstat(fd, &status);
    *allocation = (struct allocation){
        .fd = fd, .inode = status.st_ino, .bytes = bytes, .device = device, .next = allocations};
    allocations = allocation;
    return allocation;
}

static int create(uint64_t *number, size_t bytes, const struct sl_cuda_prop *prop)
{
    char name[40];
    int device = fake_device(prop->location.id);
    if (fake_used(device) + bytes > fake.bytes_each)
        return SL_CUDA_OUT_OF_MEMORY;
    snprintf(name, sizeof(name), "fake-cuda-%d", device);
    int fd = memfd_create(name, MFD_CLOEXEC);
    if (fd < 0)
        return SL_CUDA_OPERATING_SYSTEM;
    if (ftruncate(fd, (off_t)bytes) < 0) {
        close(fd);
        return SL_CUDA_OUT_OF_MEMORY;
    }
    struct allocation *allocation = add_allocation(fd, bytes, device);
    allocation->prop = *prop;
    *number = add_handle(allocation, false)->number;
    return 0;
}

int cuMemCreate(uint64_t *number, size_t bytes, const struct sl_cuda_prop *prop, uint64_t flags)
{
    FAKE_ENTER("cuMemCreate", 0);
    if (!number || !is_good(prop) || flags || !is_whole(bytes))
        return SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    int result = create(number, bytes, prop);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

static int release(uint64_t number)
{
    for (struct handle **at = &handles; *at; at = &(*at)->next) {
        struct handle *handle = *at;
        if (handle->number != number)
            continue;
        if (--handle->refs)
            return 0;
        handle->allocation->handles--;
        *at = handle->next;
        free(handle);
        sweep();
        return 0;
    }
    return SL_CUDA_INVALID_VALUE;
}

int cuMemRelease(uint64_t number)
{
    FAKE_ENTER("cuMemRelease", 0);
    pthread_mutex_lock(&fake.lock);
    int result = release(number);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuMemExportToShareableHandle(void *out, uint64_t number, int type, uint64_t flags)
{
    FAKE_ENTER("cuMemExportToShareableHandle", 0);
    int result = SL_CUDA_INVALID_VALUE, fd = -1;
    pthread_mutex_lock(&fake.lock);
    const struct handle *handle = find_handle(number);
    if (out && handle && type == SL_CUDA_HANDLE_FD && !flags &&
        handle->allocation->prop.handle_types == SL_CUDA_HANDLE_FD) {
        struct allocation *allocation = handle->allocation;
        fd = fake_carry(allocation->fd, allocation->device, allocation->bytes);
        if (fd >= 0)
            add_carrier(allocation, fd);
        result = fd < 0 ? SL_CUDA_OPERATING_SYSTEM : 0;
    }
    pthread_mutex_unlock(&fake.lock);
    if (result == 0)
        memcpy(out, &fd, sizeof(fd));
    return result;
}

static int ordinal_of(int device)
{
    for (int i = 0; i < fake.visible_count; i++)
        if (fake.visible[i] == device)
            return i;
    return -1;
}

/* Takes the memory's own descriptor. */
static struct allocation *known_or_new(int own, int device, size_t bytes)
{
    struct stat status;
    fstat(own, &status);
    for (struct allocation *at = allocations; at; at = at->next) {
        if (at->inode != status.st_ino)
            continue;
        if (at->fd < 0)
            at->fd = own;
        else
            close(own);
        return at;
    }
    struct allocation *made = add_allocation(own, bytes, device);
    made->prop = sl_cuda_shareable(ordinal_of(device));
    return made;
}

static int import(uint64_t *number, int fd)
{
    int device = -1;
    size_t bytes = 0;
    int own = fake_carried(fd, &device, &bytes);
    if (own < 0)
        return SL_CUDA_INVALID_VALUE;
    if (ordinal_of(device) < 0) {
        close(own);
        return SL_CUDA_INVALID_VALUE;
    }
    struct allocation *found = known_or_new(own, device, bytes);
    add_carrier(found, fd);
    *number = add_handle(found, true)->number;
    return 0;
}

int cuMemImportFromShareableHandle(uint64_t *number, void *fd, int type)
{
    FAKE_ENTER("cuMemImportFromShareableHandle", 0);
    if (!number || type != SL_CUDA_HANDLE_FD)
        return SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    int result = import(number, (int)(intptr_t)fd);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

int cuMemGetAllocationPropertiesFromHandle(struct sl_cuda_prop *prop, uint64_t number)
{
    FAKE_ENTER("cuMemGetAllocationPropertiesFromHandle", 0);
    pthread_mutex_lock(&fake.lock);
    const struct handle *handle = find_handle(number);
    if (handle)
        *prop = handle->allocation->prop;
    if (handle && handle->imported && fake.import_ordinal >= 0)
        prop->location.id = fake.import_ordinal;
    pthread_mutex_unlock(&fake.lock);
    return handle ? 0 : SL_CUDA_INVALID_VALUE;
}

int cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    FAKE_ENTER("cuMemGetInfo", FAKE_CONTEXT);
    pthread_mutex_lock(&fake.lock);
    uint64_t used = fake_used(fake_current()->device);
    *total_bytes = fake.bytes_each;
    *free_bytes = used < fake.bytes_each ? fake.bytes_each - used : 0;
    pthread_mutex_unlock(&fake.lock);
    return 0;
}

/* ---- addresses ------------------------------------------------------------------------------ */

int cuMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t wanted,
                        uint64_t flags)
{
    FAKE_ENTER("cuMemAddressReserve", 0);
    (void)wanted;
    if (!address || !is_whole(bytes) || alignment % FAKE_GRANULARITY || flags)
        return SL_CUDA_INVALID_VALUE;
    size_t step = alignment ? alignment : FAKE_GRANULARITY;
    uint8_t *map =
        fake_mmap(NULL, bytes + step, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
    if (map == MAP_FAILED)
        return SL_CUDA_OUT_OF_MEMORY;
    uint64_t begin = ((uint64_t)(uintptr_t)map + step - 1) / step * step;
    size_t before = begin - (uint64_t)(uintptr_t)map;
    if (before)
        fake_munmap(map, before);
    if (step > before)
        fake_munmap(map + before + bytes, step - before);
    struct reservation *reservation = calloc(1, sizeof(*reservation));
    pthread_mutex_lock(&fake.lock);
    *reservation = (struct reservation){begin, bytes, reservations};
    reservations = reservation;
    pthread_mutex_unlock(&fake.lock);
    *address = begin;
    return 0;
}

static bool overlap(uint64_t a, size_t a_bytes, uint64_t b, size_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static bool is_free(uint64_t address, size_t bytes)
{
    for (const struct mapping *at = mappings; at; at = at->next)
        if (overlap(address, bytes, at->address, at->bytes))
            return false;
    return true;
}

static int free_reservation(uint64_t address, size_t bytes)
{
    for (struct reservation **at = &reservations; *at; at = &(*at)->next) {
        struct reservation *found = *at;
        if (found->address != address)
            continue;
        if (found->bytes != bytes || !is_free(address, bytes))
            return SL_CUDA_INVALID_VALUE;
        fake_munmap((void *)(uintptr_t)address, bytes);
        *at = found->next;
        free(found);
        return 0;
    }
    return SL_CUDA_INVALID_VALUE;
}

int cuMemAddressFree(uint64_t address, size_t bytes)
{
    FAKE_ENTER("cuMemAddressFree", 0);
    pthread_mutex_lock(&fake.lock);
    int result = free_reservation(address, bytes);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

static bool is_reserved(uint64_t address, size_t bytes)
{
    for (const struct reservation *at = reservations; at; at = at->next)
        if (address >= at->address && address + bytes <= at->address + at->bytes)
            return true;
    return false;
}

static bool fits(size_t bytes, size_t memory)
{
    return bytes == memory || (fake.map_rule == FAKE_MAP_SMALLER && bytes < memory) ||
           (fake.map_rule == FAKE_MAP_LARGER && bytes > memory);
}

static int map(uint64_t address, size_t bytes, uint64_t number)
{
    struct handle *handle = find_handle(number);
    if (!handle || !fits(bytes, handle->allocation->bytes) || !is_reserved(address, bytes) ||
        !is_free(address, bytes))
        return SL_CUDA_INVALID_VALUE;
    if (fake_mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                  handle->allocation->fd) == MAP_FAILED)
        return SL_CUDA_OUT_OF_MEMORY;
    struct mapping *mapping = calloc(1, sizeof(*mapping));
    *mapping = (struct mapping){
        .address = address, .bytes = bytes, .allocation = handle->allocation, .next = mappings};
    mappings = mapping;
    handle->allocation->mappings++;
    return 0;
}

int cuMemMap(uint64_t address, size_t bytes, size_t offset, uint64_t number, uint64_t flags)
{
    FAKE_ENTER("cuMemMap", 0);
    if (!is_whole(bytes) || address % FAKE_GRANULARITY || offset || flags)
        return SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    int result = map(address, bytes, number);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* Bytes of the range that mappings cover which lie wholly in it. */
static size_t covered(uint64_t address, size_t bytes)
{
    size_t sum = 0;
    for (const struct mapping *at = mappings; at; at = at->next)
        if (at->address >= address && at->address + at->bytes <= address + bytes)
            sum += at->bytes;
    return sum;
}

static int unmap(uint64_t address, size_t bytes)
{
    if (covered(address, bytes) != bytes)
        return SL_CUDA_INVALID_VALUE;
    for (struct mapping **at = &mappings; *at;) {
        struct mapping *found = *at;
        if (found->address < address || found->address >= address + bytes) {
            at = &found->next;
            continue;
        }
        found->allocation->mappings--;
        *at = found->next;
        free(found);
    }
    fake_mmap((void *)(uintptr_t)address, bytes, PROT_NONE,
              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1);
    sweep();
    return 0;
}

int cuMemUnmap(uint64_t address, size_t bytes)
{
    FAKE_ENTER("cuMemUnmap", 0);
    pthread_mutex_lock(&fake.lock);
    fake_untouched();
    int result = is_whole(bytes) ? unmap(address, bytes) : SL_CUDA_INVALID_VALUE;
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* The process can do what any device may: its own code looks at the memory, too. */
static int protection_of(const struct mapping *mapping)
{
    int all = 0;
    for (int i = 0; i < FAKE_DEVICES_MAX; i++)
        all |= mapping->access[i];
    return all == SL_CUDA_READ_WRITE ? PROT_READ | PROT_WRITE
           : all == SL_CUDA_READ     ? PROT_READ
                                     : PROT_NONE;
}

static int set_access(uint64_t address, size_t bytes, const struct sl_cuda_access *access)
{
    int device = fake_device(access->location.id);
    if (device < 0 || access->location.type != SL_CUDA_LOCATION_DEVICE ||
        covered(address, bytes) != bytes)
        return SL_CUDA_INVALID_VALUE;
    fake_untouched();
    for (struct mapping *at = mappings; at; at = at->next) {
        if (at->address < address || at->address >= address + bytes)
            continue;
        at->access[device] = access->flags;
        if (mprotect((void *)(uintptr_t)at->address, at->bytes, protection_of(at)) < 0)
            return SL_CUDA_OPERATING_SYSTEM;
    }
    return 0;
}

int cuMemSetAccess(uint64_t address, size_t bytes, const struct sl_cuda_access *access,
                   size_t count)
{
    FAKE_ENTER("cuMemSetAccess", 0);
    if (!access || count != 1 || !is_whole(bytes))
        return SL_CUDA_INVALID_VALUE;
    pthread_mutex_lock(&fake.lock);
    int result = set_access(address, bytes, access);
    pthread_mutex_unlock(&fake.lock);
    return result;
}

/* Mappings may lie side by side: step from one to the next. */
bool fake_is_mapped(uint64_t address, size_t bytes, int device, int access)
{
    uint64_t at = address, end = address + bytes;
    while (at < end) {
        const struct mapping *found = mappings;
        while (found && (at < found->address || at >= found->address + found->bytes))
            found = found->next;
        if (!found || (found->access[device] & access) != access)
            return false;
        at = found->address + found->bytes;
    }
    return true;
}
