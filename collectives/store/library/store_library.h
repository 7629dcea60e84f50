/* The store for other languages, as a shared library with a C interface (libweft_store.so): clients
 * of our server and of Redis, and a server. Python's package weft_store stands on it
 * (python/weft_store).
 *
 * A call returns 0, or an absl::StatusCode; then what it gives is the error's message. What is
 * given is the caller's, for weft_store_free(). Lists of texts are one text: each a u32 length
 * (little endian) and so many bytes. Times are seconds; a negative one is none. Thread-safe but for
 * the close calls; every call may take as long as its timeout, and needs no lock of the caller's.
 */
#ifndef WEFT_COLLECTIVES_STORE_LIBRARY_STORE_LIBRARY_H_
#define WEFT_COLLECTIVES_STORE_LIBRARY_STORE_LIBRARY_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_STORE_EXPORT __attribute__((visibility("default")))

typedef struct weft_store weft_store;
typedef struct weft_store_server weft_store_server;

/* Texts may be null: empty. */
typedef struct {
  const char* address; /* "host:port", "unix:NAME"; of Redis: "host:port" */
  const char* secret;  /* 64 hexadecimal digits; of Redis: the password */
  const char* job;     /* name space of the keys */
  const char* name;    /* for messages: "rank 3 pid 4711" */
  const char* host;    /* for messages */
  int32_t redis;       /* not 0: a Redis server */
  int32_t rank;        /* that this process is; -1: none */
  int32_t generation;
  double connect_timeout;
  double reconnect; /* how long a store that is gone may take to come back */
  double silence;   /* after which its host counts as gone; at least 3 */
} weft_store_options;

typedef struct {
  char* data;
  size_t size;
} weft_store_text;

WEFT_STORE_EXPORT int weft_store_open(const weft_store_options* options, weft_store** store,
                                      weft_store_text* error);
/* Of no call that is under way. */
WEFT_STORE_EXPORT void weft_store_close(weft_store* store);

/* `op`: a StoreOp (store_protocol.h) that Store has a call for (store.h). `number`, `rank`, `size`,
 * and which of the results there are, depend on it, as in a request. `values_out`: how many. */
WEFT_STORE_EXPORT int weft_store_call(weft_store* store, int32_t op, const char* keys,
                                      size_t keys_size, const char* values, size_t values_size,
                                      int64_t number, int32_t rank, int32_t size, double timeout,
                                      int64_t* number_out, uint32_t* values_out,
                                      weft_store_text* out);

/* `listen`: see StoreServerOptions (store_server.h). Gives its address. */
WEFT_STORE_EXPORT int weft_store_serve(const char* listen, const char* secret,
                                       int32_t open_to_unauthenticated, const char* description,
                                       weft_store_server** server, weft_store_text* address);
/* Waits up to `drain` seconds for its clients to leave. */
WEFT_STORE_EXPORT void weft_store_stop(weft_store_server* server, double drain);

WEFT_STORE_EXPORT void weft_store_free(char* data);

#ifdef __cplusplus
}
#endif

#endif /* WEFT_COLLECTIVES_STORE_LIBRARY_STORE_LIBRARY_H_ */
