#include "capi.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The configuration of an agent, field by field as the library's own.
struct agent_config {
    bool progress_thread;
    bool listen_thread;
    int listen_port;
    int thread_sync; // 1: calls from any thread, one at a time
    unsigned int workers;
    uint64_t progress_delay_us;
    uint64_t listen_delay_us;
    bool telemetry;
};

struct nx_library {
    int (*create_configured_agent)(const char *, const struct agent_config *, void **);
    int (*destroy_agent)(void *);
    int (*create_params)(void **);
    int (*destroy_params)(void *);
    int (*create_backend)(void *, const char *, void *, void **);
    int (*destroy_backend)(void *);
    int (*create_opt_args)(void **);
    int (*destroy_opt_args)(void *);
    int (*opt_args_add_backend)(void *, void *);
    int (*create_reg_dlist)(int, void **);
    int (*destroy_reg_dlist)(void *);
    int (*reg_dlist_add_desc)(void *, uintptr_t, size_t, uint64_t, const void *, size_t);
    int (*register_mem)(void *, void *, void *);
    int (*deregister_mem)(void *, void *, void *);
    int (*get_local_md)(void *, void **, size_t *);
    int (*get_notifs)(void *, void *, void *);
    int (*create_notif_map)(void **);
    int (*destroy_notif_map)(void *);
    int (*notif_map_size)(void *, size_t *);
    int (*notif_map_get_agent_at)(void *, size_t, const char **);
    int (*notif_map_get_notifs_size)(void *, const char *, size_t *);
    int (*notif_map_get_notif)(void *, const char *, size_t, const void **, size_t *);
    int (*notif_map_clear)(void *);
    int (*load_remote_md)(void *, const void *, size_t, char **);
    int (*opt_args_set_notif_msg)(void *, const void *, size_t);
    int (*opt_args_set_has_notif)(void *, bool);
    int (*create_xfer_dlist)(int, void **);
    int (*destroy_xfer_dlist)(void *);
    int (*xfer_dlist_add_desc)(void *, uintptr_t, size_t, uint64_t);
    int (*create_xfer_req)(void *, int, void *, void *, const char *, void **, void *);
    int (*post_xfer_req)(void *, void *, void *);
    int (*get_xfer_status)(void *, void *);
    int (*release_xfer_req)(void *, void *);
    int (*destroy_xfer_req)(void *);
};

enum { DRAM = 0, READ = 0, INVALID = -2 };

nx_library *nx_open(const char *path, char *why, size_t len) {
    // UCX would take over signals that the Go runtime handles: a recoverable fault would then end the process. What the
    // operator has set stays.
    setenv("UCX_HANDLE_ERRORS", "none", 0);
    setenv("UCX_ERROR_SIGNALS", "", 0);
    void *h = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (h == NULL) {
        snprintf(why, len, "%s", dlerror());
        return NULL;
    }
    nx_library *l = calloc(1, sizeof *l);
    if (l == NULL) {
        snprintf(why, len, "no memory");
        return NULL;
    }
#define FIND(name)                                              \
    do {                                                        \
        void *s = dlsym(h, "nixl_capi_" #name);                 \
        if (s == NULL) {                                        \
            snprintf(why, len, "no function nixl_capi_" #name); \
            free(l);                                            \
            return NULL;                                        \
        }                                                       \
        memcpy(&l->name, &s, sizeof s);                         \
    } while (0)
    FIND(create_configured_agent);
    FIND(destroy_agent);
    FIND(create_params);
    FIND(destroy_params);
    FIND(create_backend);
    FIND(destroy_backend);
    FIND(create_opt_args);
    FIND(destroy_opt_args);
    FIND(opt_args_add_backend);
    FIND(create_reg_dlist);
    FIND(destroy_reg_dlist);
    FIND(reg_dlist_add_desc);
    FIND(register_mem);
    FIND(deregister_mem);
    FIND(get_local_md);
    FIND(get_notifs);
    FIND(create_notif_map);
    FIND(destroy_notif_map);
    FIND(notif_map_size);
    FIND(notif_map_get_agent_at);
    FIND(notif_map_get_notifs_size);
    FIND(notif_map_get_notif);
    FIND(notif_map_clear);
    FIND(load_remote_md);
    FIND(opt_args_set_notif_msg);
    FIND(opt_args_set_has_notif);
    FIND(create_xfer_dlist);
    FIND(destroy_xfer_dlist);
    FIND(xfer_dlist_add_desc);
    FIND(create_xfer_req);
    FIND(post_xfer_req);
    FIND(get_xfer_status);
    FIND(release_xfer_req);
    FIND(destroy_xfer_req);
#undef FIND
    return l;
}

void nx_free(void *p) { free(p); }

int nx_agent_new(nx_library *l, const char *name, uint64_t delay_us, void **agent, void **backend, void **notifications) {
    struct agent_config c;
    memset(&c, 0, sizeof c);
    c.progress_thread = true; // else a reader's first message waits for the next call from here
    c.progress_delay_us = delay_us;
    c.listen_delay_us = 100000;
    c.thread_sync = 1;
    void *params = NULL;
    *agent = *backend = *notifications = NULL;
    int s = l->create_configured_agent(name, &c, agent);
    if (s < 0) return s;
    if ((s = l->create_params(&params)) >= 0) {
        s = l->create_backend(*agent, "UCX", params, backend);
        l->destroy_params(params);
    }
    if (s >= 0) s = l->create_notif_map(notifications);
    if (s < 0) {
        nx_agent_free(l, *agent, *backend, NULL);
        *agent = *backend = NULL;
    }
    return s;
}

int nx_agent_free(nx_library *l, void *agent, void *backend, void *notifications) {
    if (notifications != NULL) l->destroy_notif_map(notifications);
    if (backend != NULL) l->destroy_backend(backend);
    return l->destroy_agent(agent);
}

// Makes the arguments that name the backend.
static int with_backend(nx_library *l, void *backend, void **args) {
    int s = l->create_opt_args(args);
    if (s < 0) return s;
    if ((s = l->opt_args_add_backend(*args, backend)) < 0) l->destroy_opt_args(*args);
    return s;
}

int nx_register(nx_library *l, void *agent, void *backend, uintptr_t addr, size_t len, void **list) {
    void *args = NULL;
    int s = l->create_reg_dlist(DRAM, list);
    if (s < 0) return s;
    if ((s = l->reg_dlist_add_desc(*list, addr, len, 0, "", 0)) >= 0 && (s = with_backend(l, backend, &args)) >= 0) {
        s = l->register_mem(agent, *list, args);
        l->destroy_opt_args(args);
    }
    if (s < 0) {
        l->destroy_reg_dlist(*list);
        *list = NULL;
    }
    return s;
}

int nx_deregister(nx_library *l, void *agent, void *backend, void *list) {
    void *args = NULL;
    int s = with_backend(l, backend, &args);
    if (s >= 0) {
        s = l->deregister_mem(agent, list, args);
        l->destroy_opt_args(args);
    }
    l->destroy_reg_dlist(list);
    return s;
}

int nx_metadata(nx_library *l, void *agent, void **data, size_t *len) { return l->get_local_md(agent, data, len); }

// A block that grows.
struct block {
    char *data;
    size_t len, cap;
};

static int put(struct block *b, const void *data, uint32_t len) {
    if (b->cap - b->len < sizeof len + len) {
        size_t cap = 2 * b->cap + sizeof len + len;
        char *grown = realloc(b->data, cap);
        if (grown == NULL) return INVALID;
        b->data = grown;
        b->cap = cap;
    }
    memcpy(b->data + b->len, &len, sizeof len);
    memcpy(b->data + b->len + sizeof len, data, len);
    b->len += sizeof len + len;
    return 0;
}

// Copies the notifications of one agent.
static int put_agent(nx_library *l, void *map, size_t i, struct block *b) {
    const char *name = NULL;
    size_t n = 0;
    int s = l->notif_map_get_agent_at(map, i, &name);
    if (s < 0 || (s = l->notif_map_get_notifs_size(map, name, &n)) < 0) return s;
    for (size_t j = 0; j < n && s >= 0; j++) {
        const void *text = NULL;
        size_t len = 0;
        if ((s = l->notif_map_get_notif(map, name, j, &text, &len)) < 0) return s;
        // What is longer is none of ours: keys are short.
        if (len <= 4096) s = put(b, text, (uint32_t)len);
    }
    return s;
}

int nx_notifications(nx_library *l, void *agent, void *notifications, char **out, size_t *len) {
    struct block b = {NULL, 0, 0};
    size_t n = 0;
    int s = l->get_notifs(agent, notifications, NULL);
    if (s >= 0) s = l->notif_map_size(notifications, &n);
    for (size_t i = 0; i < n && s >= 0; i++) s = put_agent(l, notifications, i, &b);
    // The map keeps what it was given until it is cleared.
    l->notif_map_clear(notifications);
    *out = b.data;
    *len = b.len;
    return s;
}

// Makes a list of one piece of memory.
static int piece(nx_library *l, uintptr_t addr, size_t len, void **list) {
    int s = l->create_xfer_dlist(DRAM, list);
    if (s < 0) return s;
    if ((s = l->xfer_dlist_add_desc(*list, addr, len, 0)) < 0) {
        l->destroy_xfer_dlist(*list);
        *list = NULL;
    }
    return s;
}

// Makes the arguments of a read: its backend, and what the other side is told.
static int read_args(nx_library *l, void *backend, const nx_read *r, void **args) {
    int s = with_backend(l, backend, args);
    if (s < 0 || r->key_len == 0) return s;
    if ((s = l->opt_args_set_notif_msg(*args, r->key, r->key_len)) >= 0) s = l->opt_args_set_has_notif(*args, true);
    if (s < 0) l->destroy_opt_args(*args);
    return s;
}

int nx_read_begin(nx_library *l, void *agent, void *backend, const nx_read *r, void **request) {
    char *name = NULL;
    void *to = NULL, *from = NULL, *args = NULL;
    *request = NULL;
    int s = l->load_remote_md(agent, r->metadata, r->metadata_len, &name);
    if (s < 0) return s;
    if ((s = piece(l, r->to, r->len, &to)) < 0) goto done;
    if ((s = piece(l, r->from, r->len, &from)) < 0) goto done;
    if ((s = read_args(l, backend, r, &args)) < 0) {
        args = NULL;
        goto done;
    }
    if ((s = l->create_xfer_req(agent, READ, to, from, name, request, args)) < 0) {
        *request = NULL;
        goto done;
    }
    if ((s = l->post_xfer_req(agent, *request, args)) < 0) {
        nx_read_end(l, agent, *request);
        *request = NULL;
    }
done:
    if (args != NULL) l->destroy_opt_args(args);
    if (from != NULL) l->destroy_xfer_dlist(from);
    if (to != NULL) l->destroy_xfer_dlist(to);
    free(name);
    return s;
}

int nx_read_status(nx_library *l, void *agent, void *request) { return l->get_xfer_status(agent, request); }

void nx_read_end(nx_library *l, void *agent, void *request) {
    l->release_xfer_req(agent, request);
    l->destroy_xfer_req(request);
}
