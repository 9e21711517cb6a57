/* Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
 *
 * Laconic's C ABI: the stable boundary used by Python and by any language that can call C.
 *
 * Rules.
 *
 * Codes. A function that can fail returns 0 or an Errc of laconic/error.h (docs/format/ERRORS.md);
 * laconic_last_message() and laconic_last_hint() describe the last failure of the calling thread.
 * Functions that return something else give "" (texts), NULL (other pointers) or 0 (numbers) when
 * they fail. No exception leaves the library, nothing is printed, nothing aborts. When memory runs
 * out the code is out_of_memory and every object can still be used.
 *
 * Null pointers are invalid_argument, unless the comment says that an argument may be null. What
 * returns void (destroy, abort) takes null and does nothing. Arrays may be null when their count is
 * 0. A handle that a failed create or begin should have given is null.
 *
 * Enums, flags and numbers outside the values listed here are invalid_argument (unless a comment
 * names another code), and so are fields named reserved that are not 0.
 *
 * Structs that begin with struct_size: set it to sizeof in your header and all else to zero, then
 * fill in fields. Later versions only append fields, and zero means their default. The library
 * reads and writes min(struct_size, its own sizeof) bytes: it takes fields that your struct lacks
 * as zero, ignores fields that it does not know, and leaves those and struct_size as they are when
 * it writes. A struct_size that ends before the line "may be missing" is invalid_argument.
 * laconic_parameter has no struct_size and stays as it is; laconic_exchange_next is told the size
 * of a laconic_step.
 *
 * Threads. Distinct objects may be used from distinct threads; one object is used by one thread at
 * a time. Exceptions: a laconic_codec is immutable and may be shared; laconic_session_explain,
 * _stats and _residual_norm may be called while another thread drives an exchange of that session
 * (they wait while one of its calls is running).
 *
 * Texts are UTF-8 with a length, or NUL-terminated where the comment says so. `stream`, for
 * tensors in a GPU's memory, is a handle of CUDA (CUstream, cudaStream_t) on the same GPU; null is
 * its default stream. Calls for the host ignore it.
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

/* ---- Versions and errors ---- */

#define LACONIC_ABI_VERSION 3

/* The ABI version of this library. Callers must reject a version other than their
 * LACONIC_ABI_VERSION. */
LACONIC_API int32_t laconic_abi_version(void);
/* "0.1.0", NUL-terminated, static. */
LACONIC_API const char* laconic_version(void);
/* JSON object: version, abi, compiler, flags, instruction sets built and available, CUDA.
 * NUL-terminated, static. */
LACONIC_API const char* laconic_build_info(void);
/* Stable name of a code ("frame_checksum"), "unknown" for any other number. NUL-terminated,
 * static. */
LACONIC_API const char* laconic_error_name(int32_t code);
/* Message and hint of the calling thread's last failure, "" before the first. NUL-terminated, valid
 * until that thread's next failure. */
LACONIC_API const char* laconic_last_message(void);
LACONIC_API const char* laconic_last_hint(void);
/* JSON, as printed by `laconic list --json`: every codec with its parameters and contract.
 * NUL-terminated, static. */
LACONIC_API const char* laconic_codecs_json(void);
/* JSON, whether codecs' kernels run on a GPU here. Opens the driver (NULL: libcuda.so.1) and CUDA's
 * first GPU, and loads the kernels for a moment:
 *   gpu       its name and compute capability, "" if there is none
 *   driver    the CUDA that the driver supports, "13.0"
 *   image     what it loaded: "sm_90", or "PTX of compute_80", which it compiled; "": nothing
 *   why_not   why not, "" if it did
 *   embedded  what this library has; nothing, if it was built without nvcc
 * NUL-terminated, valid until the calling thread's next call of this, explain or stats. */
LACONIC_API const char* laconic_device_info(const char* driver);

/* Element types. */
enum {
  LACONIC_F32 = 0,
  LACONIC_F16 = 1,
  LACONIC_BF16 = 2,
  LACONIC_U8 = 3,
  LACONIC_U16 = 4,
  LACONIC_I32 = 5 /* sums only; they wrap */
};

/* ---- One codec: bytes in, bytes out ---- */

/* A parsed spec; immutable. */
typedef struct laconic_codec laconic_codec;
/* Error feedback and codec state of one tensor on one rank. */
typedef struct laconic_residual laconic_residual;

/* Parses `spec` (length bytes). threads: number of threads, at most LACONIC_MAX_THREADS; 0 means
 * 1. Errors: spec_syntax, unknown_codec, unknown_key, value_out_of_range. */
#define LACONIC_MAX_THREADS 1024
LACONIC_API int32_t laconic_codec_create(const char* spec, size_t length, uint32_t threads,
                                         laconic_codec** out);
LACONIC_API void laconic_codec_destroy(laconic_codec* codec);
/* Canonical spec, NUL-terminated, owned by the codec. */
LACONIC_API const char* laconic_codec_spec(const laconic_codec* codec);
/* JSON: canonical spec, name, contract, feedback on or off. NUL-terminated, owned by the codec. */
LACONIC_API const char* laconic_codec_json(const laconic_codec* codec);
/* Maximum bytes of a frame for a rows x cols tensor (cols = 1: a vector). */
LACONIC_API int32_t laconic_codec_max_frame_bytes(const laconic_codec* codec, uint64_t rows,
                                                  uint64_t cols, uint64_t* bytes);

/* Places of a tensor. */
enum {
  LACONIC_MEMORY_HOST = 0,
  LACONIC_MEMORY_CUDA = 1 /* of a GPU, from CUDA's driver or runtime */
};

typedef struct laconic_tensor {
  uint32_t struct_size;
  uint32_t dtype;      /* LACONIC_F32, _F16 or _BF16 */
  uint64_t rows, cols; /* matrix view: first dimension, product of the others */
  void* data;          /* contiguous, rows * cols elements */
  /* may be missing: */
  uint32_t memory; /* of data. Where a driver of CUDA is open in the process, a GPU's address with
                      LACONIC_MEMORY_HOST is invalid_argument */
  uint32_t reserved;
} laconic_tensor;

typedef struct laconic_place {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t reserved;
  uint64_t seed, step;
  /* may be missing: */
  uint64_t parameter; /* identity in random streams; 0 for a single tensor */
} laconic_place;

/* Encodes a tensor into a stand-alone frame of *written bytes; capacity: bytes of `out`.
 * residual may be null: no feedback, fresh codec state. Errors: non_finite (nothing was changed)
 * if the input is not finite and the codec keeps a residual or cannot encode it;
 * buffer_too_small.
 *
 * A tensor in a GPU's memory: frame and residual are those of the CPU, bit for bit. The residual,
 * if any, is in the same GPU's memory (laconic_residual_over), the frame on the host. The call
 * begins after what is in `stream` and returns when it is done. Errors: unsupported (nothing was
 * changed) without a driver, or without kernels of this library for the codec, for the GPU or for
 * a memory other than a residual without decay; engine_failed if CUDA fails: the contents of the
 * residual and, in decode, of `out` are undefined then. */
LACONIC_API int32_t laconic_encode(const laconic_codec* codec, const laconic_tensor* source,
                                   const laconic_place* place, laconic_residual* residual,
                                   void* out, uint64_t capacity, uint64_t* written, void* stream);
/* out = base + weight * decoded, where base = out if add != 0, else 0. Errors: frame_codec if
 * the frame has another codec; frame_* and payload_malformed for damaged bytes. `out` is
 * unchanged after a failure. It may be in a GPU's memory: as in laconic_encode. */
LACONIC_API int32_t laconic_decode(const laconic_codec* codec, const void* frame, uint64_t bytes,
                                   float weight, int32_t add, const laconic_tensor* out,
                                   void* stream);
/* As laconic_decode for `count` frames of the same shape, added in the given order in one pass. */
LACONIC_API int32_t laconic_decode_many(const laconic_codec* codec, const void* const* frames,
                                        const uint64_t* bytes, uint32_t count, float weight,
                                        int32_t add, const laconic_tensor* out, void* stream);

typedef struct laconic_frame_info {
  uint32_t struct_size;
  uint32_t codec_id, payload_version, dtype;
  uint64_t rows, cols;
  /* may be missing: */
  uint64_t step, seed;
  uint32_t rank, world, contributors;
  uint32_t spec_bytes;
  const char* spec; /* inside the frame, not NUL-terminated */
  uint64_t payload_offset, payload_bytes, frame_bytes;
} laconic_frame_info;

/* Parses a frame and verifies its header and checksum. Accepts any bytes. `info` is unchanged
 * after a failure. */
LACONIC_API int32_t laconic_frame_parse(const void* frame, uint64_t bytes,
                                        laconic_frame_info* info);

LACONIC_API int32_t laconic_residual_create(uint64_t count, laconic_residual** out);
/* Over the caller's array, which has to outlive it: float32, on the host or in a GPU's memory. It
 * is used as it is; a fresh residual is zeros. */
LACONIC_API int32_t laconic_residual_over(const laconic_tensor* values, laconic_residual** out);
LACONIC_API void laconic_residual_destroy(laconic_residual* residual);
/* The `count` floats of error feedback or, with +ema, of a running mean: a view, valid until
 * destroy; an address on the GPU if they are there. */
LACONIC_API float* laconic_residual_data(laconic_residual* residual);
LACONIC_API uint64_t laconic_residual_count(const laconic_residual* residual);
/* Codec state (warm starts, adaptive stages) followed by momentum (+momentum): a view of *count
 * floats, valid until the next encode or set_state. *count is 0 before the first encode. */
LACONIC_API float* laconic_residual_state(laconic_residual* residual, uint64_t* count);
/* Replaces the codec state, e.g. from a checkpoint. Errors: state_corrupt if a value is not
 * finite; the next encode fails with state_spec if count does not fit its codec. */
LACONIC_API int32_t laconic_residual_set_state(laconic_residual* residual, const float* state,
                                               uint64_t count);

/* ---- A session: a model's exchange on one rank ---- */

typedef struct laconic_session laconic_session;
typedef struct laconic_exchange laconic_exchange;

enum {
  LACONIC_STRATEGY_AUTO = 0,
  LACONIC_STRATEGY_NATIVE_SUM = 1,
  LACONIC_STRATEGY_GATHER_ALL = 2,
  LACONIC_STRATEGY_TWO_SHOT = 3,
  LACONIC_STRATEGY_SERVER_SUM = 4
};

typedef struct laconic_parameter {
  const char* name; /* NUL-terminated, unique in the model */
  uint64_t rows, cols;
} laconic_parameter;

/* Selects parameters and gives them another spec. The first matching rule applies. A rule that
 * matches nothing is an error unless it is optional. */
typedef struct laconic_rule {
  const char* match; /* glob on the full name: *, ?, [a-z], [!a-z] */
  const char* spec;  /* NULL: the call's */
  uint64_t min_elements;
  uint64_t max_elements; /* 0: any number */
  const char* control;   /* NULL: the call's */
  uint32_t optional;     /* 1: may match nothing */
  uint32_t reserved;
} laconic_rule;
#define LACONIC_MAX_RULES 31

/* The context of a codec callback. */
typedef struct laconic_codec_call {
  uint32_t struct_size;
  uint32_t rank; /* rank that encoded the payload */
  uint32_t world;
  uint32_t reserved;
  uint64_t rows, cols; /* shape of the parameter */
  uint64_t parameter;  /* laconic_parameter_id of its name */
  uint64_t seed, step;
  const float* state; /* the parameter's state, for encode and commit */
  uint64_t state_floats;
} laconic_codec_call;

enum { LACONIC_FEEDBACK_NEVER = 0, LACONIC_FEEDBACK_OFF = 1, LACONIC_FEEDBACK_ON = 2 };
#define LACONIC_WHY_BYTES 256

/* A codec implemented by the caller and registered with a session. Its payloads are gathered
 * (LACONIC_STRATEGY_GATHER_ALL), and one more round reports whether every rank could decode
 * them. Callbacks run on the thread that drives an exchange and must not call the session. A
 * callback that returns a value other than 0 has failed: all ranks report the text that it wrote
 * into `why` (why_room bytes, NUL-terminated), gradients stay in the residuals, and the next
 * step may run. */
typedef struct laconic_codec_table {
  uint32_t struct_size;
  uint32_t feedback; /* LACONIC_FEEDBACK_OFF: "+ef" turns it on, _ON: "+noef" off */
  const char* name;  /* spec without "+ef" or "+noef": "mine", or "mine:k=4"; copied */
  void* context;
  /* Returns the maximum bytes of a parameter's payload, the same on all ranks, and the number of
   * floats of its state, which start at 0 and are saved. Called once per shape. */
  void (*plan)(void* context, uint64_t rows, uint64_t cols, uint32_t world, uint64_t* bytes,
               uint64_t* state_floats);
  /* values: rows * cols finite floats, gradient plus residual. out: `room` bytes. */
  int32_t (*encode)(void* context, const laconic_codec_call* call, const float* values, void* out,
                    uint64_t room, uint64_t* bytes, char* why, uint64_t why_room);
  /* payload: any bytes that a peer sent. out: zeros; must become the same finite floats on every
   * rank. */
  int32_t (*decode)(void* context, const laconic_codec_call* call, const void* payload,
                    uint64_t bytes, float* out, char* why, uint64_t why_room);
  /* may be missing: */
  /* Called after this rank's payload was delivered; the only callback that writes state. May be
   * NULL. */
  void (*commit)(void* context, const laconic_codec_call* call, float* state, const void* sent,
                 uint64_t bytes);
} laconic_codec_table;
#define LACONIC_MAX_CODECS 32
/* The identity of a parameter in random streams and callbacks. */
LACONIC_API uint64_t laconic_parameter_id(const char* name);

/* Memory of a GPU that a framework gives, in place of CUDA's driver. Both may be called from any
 * thread that calls a function of the session. */
typedef struct laconic_device_allocator {
  uint32_t struct_size;
  uint32_t reserved;
  void* context;
  void* (*allocate)(void* context, uint64_t bytes); /* 256-byte aligned; NULL: there is none */
  void (*release)(void* context, void* at); /* no work of laconic's that uses it is queued */
} laconic_device_allocator;

typedef struct laconic_session_options {
  uint32_t struct_size;
  uint32_t rank, world; /* with world 1 gradients stay as they are, and exchanges have no steps */
  uint32_t strategy;
  const char* spec; /* NUL-terminated */
  /* may be missing: */
  uint64_t seed;
  uint64_t small_elements; /* parameters of at most this many elements are uncompressed */
  uint32_t engine_sums;    /* bit d: the engine's all-reduce adds type d, LACONIC_F32, ... */
  uint32_t threads;        /* number of threads, at most LACONIC_MAX_THREADS; 0 means 1 */
  uint32_t short_sends;    /* 1: a rank may send fewer bytes than the receiver's buffer holds */
  uint32_t window;     /* exchanges in flight at a time, at most LACONIC_MAX_WINDOW; 0 means 1 */
  uint64_t part;       /* dense bytes at which the caller cuts buckets, 0: uncut; only compared */
  uint32_t aggregates; /* 1: the caller executes LACONIC_AGGREGATE, as laconic_aggregator_run */
  uint32_t rule_count; /* at most LACONIC_MAX_RULES */
  const laconic_rule* rules; /* copied */
  const char* control;       /* control policy that changes settings, such as "dc2"; NULL: none */
  const char* record;        /* file in which rank 0 records reports and decisions; NULL: none */
  const laconic_codec_table* const* codecs; /* registered: specs may name them */
  uint32_t codec_count;                     /* at most LACONIC_MAX_CODECS */
  uint32_t owner_turns;    /* 1: optimizers step between push and pull, laconic_driver_turns */
  const char* down;        /* spec of owners' means (two_shot); NULL or "": that of contributions */
  uint32_t ranks_per_host; /* of the host that has the most; world: all are on one host, and
                              nothing leaves it. "auto" counts the bytes that leave a host.
                              0 means 1 */
  /* Sessions may exchange shards of a model: rank and world are then those of the ranks with this
   * shard, buckets hold what laconic_session_shard says of each parameter, and another session has
   * the rest. Not with owner_turns, aggregates or codecs. */
  uint32_t node_shards; /* of the model; 0 means 1 */
  uint32_t node_shard;  /* this session's, below node_shards */
  /* Buffers of buckets, codecs and residuals: LACONIC_MEMORY_HOST, or LACONIC_MEMORY_CUDA for those
   * of GPU `gpu`, an index of CUDA's. Buckets must be complete there when they are given, and may
   * be used when their exchange has ended. Ranks may differ. Error: unsupported without a driver,
   * or kernels for all specs, and with strategies that add lanes, owner_turns, control or record.
   */
  uint32_t memory, gpu;
  uint32_t reserved;
  const laconic_device_allocator* allocator; /* copied; NULL: CUDA's driver. Its context outlives
                                                the session */
} laconic_session_options;

#define LACONIC_MAX_WINDOW 8
/* Maximum elements of a bucket whose exchange is short: docs/guide/c-abi.md. */
#define LACONIC_SHORT_ELEMENTS 65536

LACONIC_API int32_t laconic_session_create(const laconic_session_options* options,
                                           const laconic_parameter* parameters, uint32_t count,
                                           laconic_session** out);
LACONIC_API void laconic_session_destroy(laconic_session* session);
/* The elements of a parameter that this session exchanges: `count` from `first` on; all of them
 * without node_shards. Ranges of all shards together are the parameter; one may be empty. They
 * depend on parameters, spec, rules and node_shards only. Error: invalid_argument. */
LACONIC_API int32_t laconic_session_shard(const laconic_session* session, uint32_t parameter,
                                          uint64_t* first, uint64_t* count);
/* Control policies decide the same for all shards of a node if its ranks gather, at the end of a
 * step, the LACONIC_REPORT_BYTES(world) bytes that `reports` writes, and pass those of all of them,
 * in rank order, to decide_by. `world`: that of the session. Error: invalid_argument where `bytes`
 * is no multiple of that. */
#define LACONIC_REPORT_BYTES(world) (8 + 12 * (uint64_t)(world))
LACONIC_API int32_t laconic_session_reports(laconic_session* session, void* reports);
LACONIC_API int32_t laconic_session_decide_by(laconic_session* session, const void* reports,
                                              uint64_t bytes);

/* Agreement: before the first exchange every rank gathers LACONIC_AGREEMENT_BYTES from every
 * rank. gathered: all ranks' bytes, in rank order. check fails on every rank with the same
 * message, which names the difference (spec, sizes, version) and the ranks. Error:
 * ranks_disagree. */
#define LACONIC_AGREEMENT_BYTES 768
LACONIC_API int32_t laconic_session_agreement(const laconic_session* session, void* out);
LACONIC_API int32_t laconic_session_check_agreement(laconic_session* session, const void* gathered);

/* Changes settings between two steps, in three calls on every rank: set prepares them, then
 * agreement and check_agreement follow as above, whatever set returned. If check_agreement
 * returns 0, the settings apply from the next step on. If ranks differ, or one could not prepare
 * (out of memory, an unknown spec), every rank gets the same message and continues as before.
 * residuals_left: the new settings cannot keep residuals; these are sent with the gradients of
 * the next steps first, and the caller sets again when flush_steps_left in stats is 0. Until
 * check_agreement memory for both settings is needed. Other errors: exchange_order while an
 * exchange is in flight; unsupported with an aggregator. Entries of the saved state change with
 * the settings. */
#define LACONIC_KEEP 0xFFFFFFFFU
typedef struct laconic_settings {
  uint32_t struct_size;
  uint32_t strategy;         /* LACONIC_KEEP: unchanged */
  const char* spec;          /* NULL: unchanged */
  const char* control;       /* NULL: unchanged; "fixed": none */
  const laconic_rule* rules; /* copied */
  uint32_t rule_count;       /* LACONIC_KEEP: unchanged; 0: none */
  /* may be missing: */
  uint32_t reserved;
  const char* down; /* NULL: unchanged; "": none */
} laconic_settings;
LACONIC_API int32_t laconic_session_set(laconic_session* session, const laconic_settings* settings);
/* Begins a step: decisions of control policies take effect. Optional: the begin of the step's
 * first bucket does the same. *version: number of the settings, as in explain. A second call in
 * the same step changes nothing. Errors: exchange_order for a step before the current one, and
 * while exchanges of another step are in flight. Other failures are reported to all ranks by the
 * step's first bucket. */
LACONIC_API int32_t laconic_session_begin_step(laconic_session* session, uint64_t step,
                                               uint32_t* version);

/* JSON: the plan and its reasons per parameter, and its current memory in bytes:
 *   residual_bytes   error feedback, a float for each element; 0 without feedback
 *   state_bytes      the rest of a saved state: warm starts of codecs, a running flush
 *   exchange_bytes   buffers of the bucket layouts, as allocated; 0 before the first exchange,
 *   less
 *                    after laconic_session_release_layout
 *   parameters[i].reason   why it is not compressed; if compressed, how it is cut, or ""
 * NUL-terminated, valid until the calling thread's next call of explain or stats. */
LACONIC_API const char* laconic_session_explain(const laconic_session* session);
/* JSON: counters since creation (steps, uncompressed and sent bytes, seconds of encoding and
 * decoding, fallbacks, ...) and residual_bytes as in explain. NUL-terminated, valid as long as
 * explain's. */
LACONIC_API const char* laconic_session_stats(const laconic_session* session);
/* 1 if the engine sums floats, so that results depend on the position of an element in the
 * buffer: a resumed run must keep the layout. */
LACONIC_API int32_t laconic_session_layout_matters(const laconic_session* session);
/* 1 if nothing is compressed: the caller may all-reduce buckets itself, without exchanges. */
LACONIC_API int32_t laconic_session_all_raw(const laconic_session* session);
/* Multiplies residuals, running means and momentum by `factor` (positive, finite) when the unit
 * of the gradients changes (AMP loss scale). Error: exchange_order while an exchange is in
 * flight. */
LACONIC_API int32_t laconic_session_scale_residuals(laconic_session* session, float factor);
/* Euclidean norm of this rank's residuals. */
LACONIC_API double laconic_session_residual_norm(const laconic_session* session);

/* Requests a flush: residuals are sent with the gradients, an equal part in each of `steps`
 * steps (1 to 65535, else value_out_of_range). One rank's call is enough: the request travels in
 * the exchanges of the next step, and the step after it is the first that sends residuals. If
 * ranks request different numbers, the largest applies; where an engine adds requests as bits
 * (native_sum, server_sum), their bitwise OR, which is less than twice that. No effect during a
 * flush or without feedback. stats has flush_steps_left. */
LACONIC_API int32_t laconic_session_flush(laconic_session* session, uint32_t steps);

/* Flags of a bucket. RAW: send uncompressed, residuals untouched. */
enum { LACONIC_BUCKET_RAW = 2 };

/* One bucket: the layout of parameters in one flat, contiguous, writable buffer. Nothing may be
 * missing. */
typedef struct laconic_bucket {
  uint32_t struct_size;
  uint32_t dtype; /* of the buffer */
  uint32_t index; /* for messages only; the upper 16 bits are the number of a part of a bucket */
  uint32_t flags;
  uint64_t step; /* the same on all ranks */
  void* buffer;  /* gradients in, mean gradients out */
  uint64_t elements;
  uint32_t count;             /* parameters */
  const uint32_t* parameters; /* indices into the session's list */
  const uint64_t* offsets;    /* offset of each parameter in the buffer, in elements */
} laconic_bucket;

enum {
  LACONIC_ALL_REDUCE = 0,
  LACONIC_ALL_GATHER = 1,
  LACONIC_ALL_TO_ALL = 2,
  LACONIC_MESSAGES = 3,
  LACONIC_AGGREGATE = 4
};

/* A message to another rank, and one from it. A length of 0: no message in that direction. */
typedef struct laconic_message {
  uint32_t peer;
  uint32_t reserved;
  const void* send;
  uint64_t send_bytes;
  void* recv;
  uint64_t recv_room; /* bytes received; with short_sends the maximum */
} laconic_message;

/* Flags of a granule (the block of values that a server sums at once). */
enum {
  LACONIC_GRANULE_EMPTY = 1,   /* nothing to add: counts in the divisor only */
  LACONIC_GRANULE_TROUBLE = 2, /* the sum is invalid; OR-ed over contributions */
  LACONIC_GRANULE_VALUES = 4   /* 32-bit values instead of packed quantized values */
};

/* This rank's contribution to one sum. */
typedef struct laconic_contribution {
  const void* payload; /* packed quantized values, or 32-bit values; null if empty */
  uint64_t payload_bytes;
  uint32_t settings; /* hash of the meaning of the values: the same on all ranks */
  uint16_t norm;     /* the maximum over all ranks is returned */
  uint8_t flags;
  uint8_t reserved;
} laconic_contribution;

/* A sum, the same on all ranks. The aggregator decides which ranks contribute. */
typedef struct laconic_aggregate {
  void* lanes; /* buffer, provided by the library */
  uint64_t room;
  uint64_t bitmap; /* contributors, a bit per rank */
  uint32_t length; /* bytes of the sum; 0: no contribution had values */
  uint16_t norm;   /* maximum over contributions */
  uint8_t flags;
  uint8_t added;   /* contributions in the sum */
  uint8_t divisor; /* contributors, including empty ones */
  uint8_t reserved[7];
} laconic_aggregate;

/* One collective to execute. Pointers are valid until the next call on the exchange. Counts and
 * offsets are bytes, one entry per rank, and null for ALL_REDUCE.
 *
 * ALL_REDUCE: sum `count` elements of `dtype` at send (== recv) in place over all ranks.
 * ALL_GATHER: send the same send_bytes bytes at send to every rank (each send_counts[r] is that
 * size, each send_offsets[r] is 0). ALL_TO_ALL: send send_counts[r] bytes at send +
 * send_offsets[r] to rank r. In both, receive recv_counts[r] bytes from rank r at recv +
 * recv_offsets[r]; copy this rank's own entry. Ranges need not be adjacent. MESSAGES: exchange
 * message_count messages at once, each peer at most once, this rank excluded; counts and offsets
 * are null. No strategy of this version uses it. AGGREGATE, if options.aggregates is 1: send
 * `granules` contributions to an aggregator, the same number on all ranks, and receive a sum for
 * each; all other fields are null. */
typedef struct laconic_step {
  uint32_t kind;
  uint32_t dtype;
  uint32_t reserved;
  uint32_t short_sends; /* 1: recv_counts are maxima, received data may be shorter */
  uint64_t count;
  void* send;
  void* recv;
  const uint64_t* send_counts;
  const uint64_t* recv_counts;
  uint64_t send_bytes, recv_bytes; /* sums of the counts; all_gather: send_bytes is one copy */
  const uint64_t* send_offsets;
  const uint64_t* recv_offsets;
  /* may be missing: */
  uint32_t tag; /* the same number on all ranks for this step; differs from that of any other step
                   of the last 2^20 exchanges; for engines with message tags */
  uint32_t message_count;
  const laconic_message* messages;
  uint64_t granules;
  const laconic_contribution* contributions;
  laconic_aggregate* aggregates;
} laconic_step;

/* A buffer of this many steps is enough for every batch. */
#define LACONIC_MAX_BATCH 8

/* Starts the exchange of a bucket. A failure of this rank alone (out of memory, a layout that
 * does not fit the model) does not stop it: the exchange reports it to the other ranks. The
 * first exchange of a layout begins with a status round.
 *
 * Up to options.window long exchanges of one step, of different parameters, may be in flight
 * and, if options.window is 2 or more, LACONIC_MAX_WINDOW including short ones. An exchange has
 * ended when next returns *count == 0 or a failure, or after abort. All ranks must execute the
 * steps of all exchanges in one order that does not depend on time: first steps in the order of
 * the begins (docs/guide/c-abi.md). *out belongs to the session, which may return it again after
 * the exchange ended.
 *
 * Errors: exchange_order for an exchange beyond the window, of another step, or of a parameter
 * in flight, and for calls on an exchange that has ended. */
LACONIC_API int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                                           laconic_exchange** out);
/* Reports a local failure, before the first next: all ranks will report `message`
 * (NUL-terminated, may be null). A code that is not in docs/format/ERRORS.md is reported as
 * internal. */
LACONIC_API int32_t laconic_exchange_fail(laconic_exchange* exchange, int32_t code,
                                          const char* message);
/* Writes the next batch of *count steps, `step_size` (sizeof(laconic_step) in your header) bytes
 * apart, to be executed before the next call. `room`: capacity of `steps`. *count == 0:
 * finished, the mean is in the buffer. Errors: buffer_too_small: the batch has *count steps;
 * nothing was changed, call again with that capacity. Any other failure (a peer's error, hostile
 * bytes) ends the exchange and returns undelivered values to the residuals. */
LACONIC_API int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps,
                                          uint32_t step_size, uint32_t room, uint32_t* count);
/* Reports when the last batch of next was issued and completed, before the following next, in
 * seconds of a monotonic clock; NaN: unknown. Optional: reports between ranks and
 * network_seconds in stats use it. */
LACONIC_API int32_t laconic_exchange_timed(laconic_exchange* exchange, double issued,
                                           double completed);
/* As laconic_exchange_timed, for a sum of this step's gradients made without the session. */
LACONIC_API int32_t laconic_session_summed(laconic_session* session, double issued,
                                           double completed);
/* Reports that the engine failed: returns this rank's payloads of all exchanges in flight to its
 * residuals and ends these exchanges. From then on every begin adds the bucket's gradients to
 * the residuals and fails with engine_failed, because messages of the old exchanges may still
 * arrive. No effect on an exchange that has ended. */
LACONIC_API void laconic_exchange_abort(laconic_exchange* exchange);
/* Frees the buffers of a layout that is no longer used; dtype, elements, count, parameters and
 * offsets of `bucket` identify it. Every rank calls it between the same two exchanges. A layout
 * that is used again starts like a new one. */
LACONIC_API int32_t laconic_session_release_layout(laconic_session* session,
                                                   const laconic_bucket* bucket);

/* ---- A driver: averages buckets over an engine of the caller's ---- */

/* Averages buckets without driving exchanges step by step: cuts buckets at options.part, joins
 * short ones, keeps exchanges in flight and agrees with the other ranks. Call it from one thread
 * at a time and not from a callback (exchange_order). In a forked child it exchanges nothing
 * (unsupported). */
typedef struct laconic_driver laconic_driver;

/* An engine as a table of callbacks. `start` and `wait` have the signatures of laconic_plugin,
 * which may be used here with the plug-in's engine as `context`. They return 0 or a code of
 * docs/format/ERRORS.md, and write a message of at most `room` bytes, NUL-terminated. After a
 * failure no batch is started, and started batches are settled. */
typedef struct laconic_engine_table {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t reserved;
  void* context;
  double timeout; /* timeout of a batch in seconds, passed to wait; 0: 30 minutes */
  /* Starts a batch of `count` steps, `step_size` bytes apart. At most LACONIC_MAX_WINDOW + 1
   * batches are started and not waited for; all ranks start the same batches in the same order.
   * Memory that the steps point to is valid until wait has returned 0; the steps themselves are
   * not. */
  int32_t (*start)(void* context, const laconic_step* steps, uint32_t step_size, uint32_t count,
                   uint64_t* ticket, char* message, uint64_t room);
  /* Returns when the batch has completed or failed. Called once per ticket. */
  int32_t (*wait)(void* context, uint64_t ticket, double timeout, char* message, uint64_t room);
  /* may be missing, or null: */
  /* Called after a failure for a batch that will not be waited for: returns when its memory is
   * no longer used. Without it, destroy a driver and its session only after the engine. */
  void (*settle)(void* context, uint64_t ticket);
  /* wait, when it returns 0, writes here when the batch completed, in seconds of
   * CLOCK_MONOTONIC; 0: unknown. If nothing is written, the batch has failed. */
  double* completed;
} laconic_engine_table;

/* A failure of this rank, reported by all ranks. */
typedef struct laconic_failure {
  int32_t code;
  uint32_t rank;       /* for laconic_agree: 1 + the rank of the job that failed; 0: this one */
  const char* message; /* NUL-terminated; null: none */
  const char* hint;
} laconic_failure;

/* Agreement over an engine, before the first exchange: gathers the cards of all ranks; this
 * rank's is the session's, or `failure` if that is not null. If a rank has a failure, every rank
 * gets the same error: "rank 1 could not WHAT: ...", or the failure itself if all ranks have the
 * same. `gathered`: world * LACONIC_AGREEMENT_BYTES bytes, for laconic_session_check_agreement. */
LACONIC_API int32_t laconic_agree(const laconic_engine_table* engine,
                                  const laconic_session* session, const laconic_failure* failure,
                                  const char* what, void* gathered);

/* An exchange that has ended or was rolled back. */
typedef struct laconic_ending {
  uint32_t struct_size;
  int32_t code;        /* 0: means have replaced the gradients */
  const char* message; /* NUL-terminated; all fields are valid until the callback returns */
  const char* hint;
  uint32_t count; /* buckets that it carried, in whole or in part */
  uint32_t reserved;
  const uint64_t* tokens; /* tokens of these buckets */
  const uint32_t* parts;  /* number of exchanges of each of these buckets */
} laconic_ending;

enum { LACONIC_PHASE_ENCODE = 0, LACONIC_PHASE_WIRE = 1, LACONIC_PHASE_DECODE = 2 };

typedef struct laconic_driver_options {
  uint32_t struct_size;
  uint32_t reserved;
  const laconic_engine_table* engine; /* copied; same rank and world as the session */
  void* context;                      /* passed to the callbacks below */
  /* Called once per exchange, on the thread that calls the driver. */
  void (*ended)(void* context, const laconic_ending* ending);
  /* may be missing, or null: */
  /* Called at the end of a phase of an exchange; times are seconds of CLOCK_MONOTONIC. */
  void (*traced)(void* context, uint32_t phase, uint64_t step, uint32_t index, double begin,
                 double end);
  /* Of a session that exchanges a shard, the ranks of this rank's node, in the order of shards, and
   * which ranks of the job these are: settings change for all shards or for none. */
  const laconic_engine_table* inside; /* copied */
  const uint32_t* ranks;              /* copied; null: unknown */
} laconic_driver_options;

/* The session must not have begun an exchange and must outlive the driver. */
LACONIC_API int32_t laconic_driver_create(laconic_session* session,
                                          const laconic_driver_options* options,
                                          laconic_driver** out);
LACONIC_API void laconic_driver_destroy(laconic_driver* driver);

/* Flags of laconic_driver_submit. APART: the bucket is not joined with others. WHOLE: it is not
 * cut. */
enum { LACONIC_SUBMIT_APART = 1, LACONIC_SUBMIT_WHOLE = 2 };

/* Submits a bucket. Every rank submits the same buckets in the same order, each parameter once
 * per step. The buffer must stay valid until `ended` has reported its token `parts` times. With
 * `failure` this rank has no gradient, its buffer may be null, and all ranks report the failure.
 * Returns the failure of the engine or of an exchange that could not begin; `ended` reports the
 * latter as well. */
LACONIC_API int32_t laconic_driver_submit(laconic_driver* driver, const laconic_bucket* bucket,
                                          uint32_t flags, uint64_t token,
                                          const laconic_failure* failure);
/* Complete all submitted buckets, in order. After drain more buckets of the step may follow;
 * finish ends the step. Both return the first failure since the last finish. */
LACONIC_API int32_t laconic_driver_drain(laconic_driver* driver);
LACONIC_API int32_t laconic_driver_finish(laconic_driver* driver);
/* Rolls back all submitted buckets that have not ended: their gradients go into the residuals,
 * as do those of all buckets submitted from now on. */
LACONIC_API int32_t laconic_driver_break_off(laconic_driver* driver,
                                             const laconic_failure* failure);
/* As laconic_session_release_layout, for a bucket and its parts. */
LACONIC_API int32_t laconic_driver_release(laconic_driver* driver, const laconic_bucket* bucket);

/* Changes settings, on all ranks between the same two steps: laconic_session_set and its
 * agreement. `failure`, if not null: this rank has no settings, for this reason. *waits: 1 if
 * residuals have to be sent first. Then every rank calls set_what_waits before the first bucket
 * of each step, until *set is 1 or it fails; after a failure nothing is pending. */
LACONIC_API int32_t laconic_driver_set(laconic_driver* driver, const laconic_settings* settings,
                                       const laconic_failure* failure, uint32_t* waits);
LACONIC_API int32_t laconic_driver_set_what_waits(laconic_driver* driver, uint32_t* set);

/* A session with owner_turns trains like a parameter server that is sharded over the ranks (3LC,
 * MLSys 2019, section 3): submitted buckets of gradients are pushed to the owners of their
 * ranges; each owner steps float32 masters with the mean; and the difference between masters and
 * parameters is pulled, encoded once for all ranks, and added to the parameters. Small
 * parameters have no masters: their mean is in the bucket after the pull. A step is: submit each
 * bucket, turns, pull. With one rank there are no ranges. */
typedef struct laconic_replica {
  void* values; /* a parameter, in host memory */
  uint32_t dtype;
  uint32_t reserved;
} laconic_replica;

typedef struct laconic_owned_range {
  uint32_t parameter;
  uint32_t reserved;
  uint64_t offset, count; /* range of the parameter, in elements */
  const float* mean;      /* mean gradient over all ranks; null outside a turn */
  float* master;          /* valid as long as the session */
} laconic_owned_range;

/* Sets the parameters that pull updates, before the first turns; they apply until others are
 * set. `replicas`: one per parameter. `begins`: 1 if masters take their values, 0 if a state was
 * loaded. */
LACONIC_API int32_t laconic_driver_set_replicas(laconic_driver* driver,
                                                const laconic_replica* replicas, uint32_t count,
                                                uint32_t begins);
/* Writes at most `capacity` ranges of this rank; *count is their total number. */
LACONIC_API int32_t laconic_driver_owned(laconic_driver* driver, laconic_owned_range* ranges,
                                         uint32_t capacity, uint32_t* count);

typedef struct laconic_turns {
  uint32_t struct_size;
  uint32_t skips; /* 1: a rank's gradient is not finite; no ranges, no owner steps */
  const laconic_owned_range* ranges; /* valid until pull */
  uint64_t count;
  double sum_of_squares; /* sum of squares of this rank's means, including small parameters */
} laconic_turns;

/* Completes the pushes of a step. Call pull next in any case; after a failure no master changes. */
LACONIC_API int32_t laconic_driver_turns(laconic_driver* driver, laconic_turns* out);
/* Ends the step. `failure`, if not null: this rank's turn failed; all ranks report it. *skipped:
 * 1 if nothing changed. Updates that owners sent are kept even if other ranks fail: the next
 * pull sends the rest. */
LACONIC_API int32_t laconic_driver_pull(laconic_driver* driver, const laconic_failure* failure,
                                        uint32_t* skipped);

/* For each parameter of `count` buckets, in order, the number of the exchange that would carry
 * it if they were submitted in one step with `flags`. A saved state must restore these exchanges
 * if laconic_session_layout_matters. */
LACONIC_API int32_t laconic_driver_exchanges(const laconic_driver* driver,
                                             const laconic_bucket* buckets, uint32_t count,
                                             uint32_t flags, uint32_t* exchange_of);

/* ---- Aggregation servers (`laconic serve`) ---- */

/* Executes a session's AGGREGATE steps over UDP. One thread at a time; interrupt and stats may
 * be called from any thread. */
typedef struct laconic_aggregator laconic_aggregator;

/* Must be the same on all ranks. */
typedef struct laconic_aggregator_options {
  uint32_t struct_size;
  uint32_t world;       /* at most 64 */
  const char* servers;  /* "HOST:PORT,HOST:PORT", NUL-terminated */
  const char* token;    /* path of the servers' secret, 32 bytes; null: none */
  double quorum;        /* share of the ranks that is enough after the deadline; 0 means 1.0 */
  uint32_t deadline_us; /* deadline of an exchange, below an hour; 0 means 20,000 */
  uint32_t timeout_ms;  /* timeout of a rank or server; 0 means 60,000 */
  uint32_t full_tags;   /* 1: tags cover payloads and headers, 0: headers only */
  uint32_t multicast;   /* 1: receive sums by multicast if server and network support it */
} laconic_aggregator_options;

/* Checks the options and reads the token. Sends nothing. */
LACONIC_API int32_t laconic_aggregator_open(const laconic_aggregator_options* options,
                                            laconic_aggregator** out);
/* Registers the session with all servers; returns when all ranks have registered. Collective.
 * `number`: number of the job, random, the same on all ranks. The session's strategy must be
 * server_sum, else unsupported. Error: timed_out. Afterwards a thread keeps the connections
 * alive between runs while other ranks may lack a result that this rank has, at most timeout_ms
 * of the options after the last run. */
LACONIC_API int32_t laconic_aggregator_join(laconic_aggregator* aggregator,
                                            const laconic_session* session, uint64_t number,
                                            uint32_t timeout_ms);
/* Executes one AGGREGATE step; all ranks execute the same steps in the same order. After a
 * failure, which all ranks report, the aggregator cannot be used. */
LACONIC_API int32_t laconic_aggregator_run(laconic_aggregator* aggregator, const laconic_step* step,
                                           uint32_t step_size);
/* Makes the current or next join or run fail within 0.1 seconds. Null does nothing. */
LACONIC_API void laconic_aggregator_interrupt(laconic_aggregator* aggregator);
/* JSON, as of the end of the last run: joined (1: joined and not failed), resent_datagrams,
 * duplicate_datagrams, aggregator_restarts, rtt_us (smoothed round trip in microseconds, of the
 * slowest server), multicast_datagrams, multicast_servers (servers whose multicast reaches this
 * rank). NUL-terminated, valid until the calling thread's next call. */
LACONIC_API const char* laconic_aggregator_stats(laconic_aggregator* aggregator);
/* Waits up to linger_ms until all ranks have all results, then frees the aggregator. Null does
 * nothing. */
LACONIC_API void laconic_aggregator_close(laconic_aggregator* aggregator, uint32_t linger_ms);

/* ---- Saved state: named float arrays, one set per rank ---- */

typedef struct laconic_state_header {
  uint32_t struct_size;
  uint32_t version;
  uint32_t rank, world;
  /* may be missing: */
  uint64_t model_hash, agreement;
  char spec[256];                   /* canonical, NUL-terminated */
  uint32_t node_shards, node_shard; /* of laconic_session_options; node_shards 0 means 1 */
} laconic_state_header;

LACONIC_API int32_t laconic_session_state_header(const laconic_session* session,
                                                 laconic_state_header* out);
LACONIC_API uint32_t laconic_session_state_count(const laconic_session* session);
/* Entry i: name such as "residual/fc1.weight" (NUL-terminated) and a view of its floats; both live
 * as long as the session. */
LACONIC_API int32_t laconic_session_state_entry(laconic_session* session, uint32_t i,
                                                const char** name, float** data, uint64_t* count);
/* Checks the header of a saved state. Errors: state_corrupt if no session can have written it;
 * state_version, state_world, state_rank, state_model or state_spec if it belongs to another
 * run. */
LACONIC_API int32_t laconic_session_state_accepts(const laconic_session* session,
                                                  const laconic_state_header* header);
/* Checks values before they are copied into entry i. Error: state_corrupt, with the entry's
 * name, if count differs or a value is not finite. Check every entry before copying the first. */
LACONIC_API int32_t laconic_session_state_check(const laconic_session* session, uint32_t i,
                                                const float* values, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif /* LACONIC_LACONIC_H_ */
