/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * Laconic's C ABI: the stable boundary used by Python and by any language that can call C.
 *
 * Rules. Every function that can fail returns a code: 0 or an Errc of laconic/error.h
 * (docs/format/ERRORS.md). laconic_last_message() and laconic_last_hint() describe the last failure
 * of the calling thread. No exception leaves the library, nothing is printed, nothing aborts.
 * Distinct objects may be used from distinct threads; one object is used by one thread at a time,
 * except a laconic_codec, which is immutable and may be shared. Structs passed by pointer begin
 * with their size (sizeof in the caller's header): fields are only ever appended. Texts are UTF-8
 * with a length, or NUL-terminated where the comment says so. `stream` is a CUDA stream handle for
 * device pointers; CPU calls ignore it.
 */
#ifndef LACONIC_LACONIC_H_
#define LACONIC_LACONIC_H_

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define LACONIC_API __attribute__((visibility("default")))
#else
#define LACONIC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Versions and errors
 * --------------------------------------------------------------------------------------- */

#define LACONIC_ABI_VERSION 1

/* The ABI this library was built with; a caller refuses another than its own LACONIC_ABI_VERSION.
 */
LACONIC_API int32_t laconic_abi_version(void);
/* "0.1.0", NUL-terminated, static. */
LACONIC_API const char* laconic_version(void);
/* JSON object: version, abi, compiler, flags, instruction sets built and available, CUDA.
 * NUL-terminated, static. */
LACONIC_API const char* laconic_build_info(void);
/* Stable name of a code ("frame_checksum"), NUL-terminated, static. */
LACONIC_API const char* laconic_error_name(int32_t code);
/* Message and hint of the calling thread's last failure, NUL-terminated, valid until its next
 * failure. */
LACONIC_API const char* laconic_last_message(void);
LACONIC_API const char* laconic_last_hint(void);
/* The JSON of `laconic list --json`: every codec with its parameters and contract. NUL-terminated,
 * static. */
LACONIC_API const char* laconic_codecs_json(void);

/* Element types. */
enum { LACONIC_F32 = 0, LACONIC_F16 = 1, LACONIC_BF16 = 2, LACONIC_U8 = 3 };

/* ---- One codec: bytes in, bytes out
 * ----------------------------------------------------------------------------- */

typedef struct laconic_codec laconic_codec; /* a parsed spec; immutable */
typedef struct laconic_residual
    laconic_residual; /* error feedback and codec state of one tensor on one rank */

/* Parses `spec` (length bytes). On failure *out is null. threads: 0 = one. */
LACONIC_API int32_t laconic_codec_create(const char* spec, size_t length, uint32_t threads,
                                         laconic_codec** out);
LACONIC_API void laconic_codec_destroy(laconic_codec* codec);
/* Canonical spec, NUL-terminated, owned by the codec. */
LACONIC_API const char* laconic_codec_spec(const laconic_codec* codec);
/* JSON: canonical spec, name, contract, feedback on or off. NUL-terminated, owned by the codec. */
LACONIC_API const char* laconic_codec_json(const laconic_codec* codec);
/* Bound of a whole frame for a rows x cols tensor (cols = 1: a vector). Never an underestimate. */
LACONIC_API int32_t laconic_codec_max_frame_bytes(const laconic_codec* codec, uint64_t rows,
                                                  uint64_t cols, uint64_t* bytes);

typedef struct laconic_tensor {
  uint32_t struct_size;
  uint32_t dtype;      /* LACONIC_F32, _F16 or _BF16 */
  uint64_t rows, cols; /* matrix view: first dimension, product of the others */
  void* data;          /* contiguous, rows * cols elements */
} laconic_tensor;

typedef struct laconic_place {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t reserved;
  uint64_t seed, step;
  uint64_t parameter; /* identity for random streams; 0 is fine for a lone tensor */
} laconic_place;

/* Encodes a tensor into a stand-alone frame. residual may be null (no feedback, fresh codec state).
 * Fails with non_finite (and changes nothing) when the input is not finite and the codec keeps a
 * residual or cannot carry it. */
LACONIC_API int32_t laconic_encode(const laconic_codec* codec, const laconic_tensor* source,
                                   const laconic_place* place, laconic_residual* residual,
                                   void* out, uint64_t capacity, uint64_t* written, void* stream);
/* out = base + weight * decoded; base = out when add != 0, else 0. The frame's codec must be the
 * codec's. */
LACONIC_API int32_t laconic_decode(const laconic_codec* codec, const void* frame, uint64_t bytes,
                                   float weight, int32_t add, const laconic_tensor* out,
                                   void* stream);
/* The same for several frames of equal shape at once, in the order given (fused). */
LACONIC_API int32_t laconic_decode_many(const laconic_codec* codec, const void* const* frames,
                                        const uint64_t* bytes, uint32_t count, float weight,
                                        int32_t add, const laconic_tensor* out, void* stream);

typedef struct laconic_frame_info {
  uint32_t struct_size;
  uint32_t codec_id, payload_version, dtype;
  uint64_t rows, cols, step, seed;
  uint32_t rank, world, contributors;
  uint32_t spec_bytes;
  const char* spec; /* inside the frame, not NUL-terminated */
  uint64_t payload_offset, payload_bytes, frame_bytes;
} laconic_frame_info;

/* Parses and verifies a frame's header and checksum. Total: any bytes give an answer. */
LACONIC_API int32_t laconic_frame_parse(const void* frame, uint64_t bytes,
                                        laconic_frame_info* info);

LACONIC_API int32_t laconic_residual_create(uint64_t count, laconic_residual** out);
LACONIC_API void laconic_residual_destroy(laconic_residual* residual);
/* The count floats of error feedback; a view, valid until destroy. */
LACONIC_API float* laconic_residual_data(laconic_residual* residual);
LACONIC_API uint64_t laconic_residual_count(const laconic_residual* residual);
/* Codec state (warm starts, adaptive stages): empty before the first encode. */
LACONIC_API float* laconic_residual_state(laconic_residual* residual, uint64_t* count);
/* Replaces the codec state, e.g. from a checkpoint. */
LACONIC_API int32_t laconic_residual_set_state(laconic_residual* residual, const float* state,
                                               uint64_t count);

/* ---- A session: a model's exchange on one rank
 * ------------------------------------------------------------------- */

typedef struct laconic_session laconic_session;
typedef struct laconic_exchange laconic_exchange;

enum {
  LACONIC_STRATEGY_AUTO = 0,
  LACONIC_STRATEGY_NATIVE_SUM = 1,
  LACONIC_STRATEGY_GATHER_ALL = 2,
  LACONIC_STRATEGY_TWO_SHOT = 3
};

typedef struct laconic_parameter {
  const char* name; /* NUL-terminated, unique in the model */
  uint64_t rows, cols;
} laconic_parameter;

typedef struct laconic_session_options {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t strategy;
  const char* spec; /* NUL-terminated */
  uint64_t seed;
  uint64_t small_elements; /* parameters of at most this many elements go uncompressed */
  uint32_t
      engine_sums;  /* bit d set: the engine's all-reduce adds lanes of type d (LACONIC_F32, ...) */
  uint32_t threads; /* 0 = one */
  uint32_t short_sends; /* 1: a rank may send fewer bytes than the receiver has room for */
  uint32_t reserved;
} laconic_session_options;

LACONIC_API int32_t laconic_session_create(const laconic_session_options* options,
                                           const laconic_parameter* parameters, uint32_t count,
                                           laconic_session** out);
LACONIC_API void laconic_session_destroy(laconic_session* session);

/* Agreement: every rank gathers LACONIC_AGREEMENT_BYTES of every rank once, before the first
 * exchange. check fails on every rank with one sentence that names what differs (spec, sizes,
 * version) and which ranks. */
#define LACONIC_AGREEMENT_BYTES 768
LACONIC_API void laconic_session_agreement(const laconic_session* session, void* out);
LACONIC_API int32_t laconic_session_check_agreement(const laconic_session* session,
                                                    const void* gathered);

/* JSON: what was picked and why, per parameter. NUL-terminated, valid until the next call on the
 * session. */
LACONIC_API const char* laconic_session_explain(laconic_session* session);
/* JSON: counters since creation (steps, bytes raw and on the wire, seconds encoding and decoding,
 * fallbacks, ...). */
LACONIC_API const char* laconic_session_stats(laconic_session* session);
/* 1 when engine-added float sums make the place of an element in the buffer matter (resume keeps
 * the layout then). */
LACONIC_API int32_t laconic_session_layout_matters(const laconic_session* session);
/* 1 when every unit is uncompressed: the caller may all-reduce the bucket itself, without any
 * exchange. */
LACONIC_API int32_t laconic_session_all_raw(const laconic_session* session);
/* Multiplies every residual by `factor`: the gradients' unit has changed (AMP loss scale). */
LACONIC_API int32_t laconic_session_scale_residuals(laconic_session* session, float factor);
/* sqrt(sum of squares) of all own residuals. */
LACONIC_API double laconic_session_residual_norm(const laconic_session* session);

/* One bucket: which parameters lie where in one flat, contiguous, writable buffer. */
enum {
  LACONIC_BUCKET_FLUSH = 1, /* send uncompressed with the residual added; residuals become zero */
  LACONIC_BUCKET_RAW = 2
}; /* send uncompressed, residuals untouched */

typedef struct laconic_bucket {
  uint32_t struct_size;
  uint32_t dtype; /* of the buffer */
  uint32_t index; /* for messages and stats only */
  uint32_t flags;
  uint64_t step; /* the same on all ranks */
  void* buffer;  /* gradients in, mean gradients out */
  uint64_t elements;
  uint32_t count;             /* parameters */
  const uint32_t* parameters; /* indices into the session's list */
  const uint64_t* offsets;    /* element offset of each in the buffer */
} laconic_bucket;

enum { LACONIC_ALL_REDUCE = 0, LACONIC_ALL_GATHER = 1, LACONIC_ALL_TO_ALL = 2 };

/* One collective to execute; see src/transport/step.h. Pointers are valid until the next call on
 * the exchange. */
typedef struct laconic_step {
  uint32_t kind;
  uint32_t dtype;
  uint32_t needs_host;
  uint32_t short_sends; /* recv_counts are room: what arrives may be shorter */
  uint64_t count;       /* all_reduce: lanes at send, summed in place */
  void* send;
  void* recv;
  const uint64_t* send_counts; /* bytes per rank, back to back at send (all_gather: every entry is
                                  the own size, and the own bytes lie once at send) */
  const uint64_t* recv_counts; /* bytes per rank, back to back at recv */
  uint64_t send_bytes, recv_bytes;
} laconic_step;

#define LACONIC_MAX_BATCH 4

/* Starts the exchange of a bucket: encodes. Local failures do not stop it: the exchange then tells
 * the other ranks. An exchange must be driven to its end (next gives *count == 0, or a failure)
 * before the next begins. */
LACONIC_API int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                                           laconic_exchange** out);
/* Marks a local failure (before the first next): all ranks will report `message`. */
LACONIC_API void laconic_exchange_fail(laconic_exchange* exchange, int32_t code,
                                       const char* message);
/* The next batch of steps; *count == 0: finished, the mean lies in the buffer. A failure (a peer's
 * error, hostile bytes) has already put back what was not delivered. */
LACONIC_API int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps,
                                          uint32_t* count);
/* The engine failed: puts the own payloads back into the residuals. Nothing undelivered is lost. */
LACONIC_API void laconic_exchange_abort(laconic_exchange* exchange);

/* ---- Saved state: named float arrays, one set per rank
 * ------------------------------------------------------------- */

typedef struct laconic_state_header {
  uint32_t struct_size;
  uint32_t version;
  uint32_t rank, world;
  uint64_t model_hash, agreement;
  char spec[256]; /* canonical, NUL-terminated */
} laconic_state_header;

LACONIC_API void laconic_session_state_header(const laconic_session* session,
                                              laconic_state_header* out);
LACONIC_API uint32_t laconic_session_state_count(const laconic_session* session);
/* Entry i: name such as "residual/fc1.weight" (NUL-terminated, lives as long as the session) and a
 * view of its floats. */
LACONIC_API int32_t laconic_session_state_entry(laconic_session* session, uint32_t i,
                                                const char** name, float** data, uint64_t* count);
/* Refuses another rank's state, another world size, model, spec or version with a sentence that
 * says so. The caller then copies every entry of equal name and count. */
LACONIC_API int32_t laconic_session_state_accepts(const laconic_session* session,
                                                  const laconic_state_header* header);

#ifdef __cplusplus
}
#endif

#endif /* LACONIC_LACONIC_H_ */
