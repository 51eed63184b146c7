// The part of NIXL's C interface that the readable side needs. The library is opened at run time, by path; nothing of it
// is linked, and these declarations are this project's own.
#ifndef PORTICO_NIXL_CAPI_H
#define PORTICO_NIXL_CAPI_H

#include <stddef.h>
#include <stdint.h>

typedef struct nx_library nx_library;

// Opens the library and finds its functions. On failure the result is NULL and why, of len bytes, says why. An opened
// library stays for the life of the process: its threads can't be unloaded.
nx_library *nx_open(const char *path, char *why, size_t len);

// All of these return NIXL's status: 0 or 1 are fine, below 0 is a failure.
int nx_agent_new(nx_library *l, const char *name, uint64_t delay_us, void **agent, void **backend, void **notifications);
int nx_agent_free(nx_library *l, void *agent, void *backend, void *notifications);
int nx_register(nx_library *l, void *agent, void *backend, uintptr_t addr, size_t len, void **list);
int nx_deregister(nx_library *l, void *agent, void *backend, void *list);
int nx_metadata(nx_library *l, void *agent, void **data, size_t *len);

// Takes what notifications have come, as one block: for each its length, 4 bytes in host order, and its text. The block
// is freed with nx_free, and is NULL when there are none.
int nx_notifications(nx_library *l, void *agent, void *notifications, char **out, size_t *len);
void nx_free(void *p);

// What a read needs: the other side's metadata, and as many bytes of its memory as go to ours, which is registered. A
// key, unless it is empty, is what the other side is told at the end.
typedef struct {
    const void *metadata;
    size_t metadata_len;
    uintptr_t from, to;
    size_t len;
    const char *key;
    size_t key_len;
} nx_read;

// Begins a read, asks how it goes on (1: it does, 0: it is done), and ends it, also before it is done.
int nx_read_begin(nx_library *l, void *agent, void *backend, const nx_read *r, void **request);
int nx_read_status(nx_library *l, void *agent, void *request);
void nx_read_end(nx_library *l, void *agent, void *request);

#endif
