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
 * Texts are UTF-8 with a length, or NUL-terminated where the comment says so. `stream` is a CUDA
 * stream handle for device pointers; CPU calls ignore it, and it may be null.
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

/* The ABI this library was built with. A caller refuses any but its own LACONIC_ABI_VERSION. */
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
/* What `laconic list --json` prints: every codec with its parameters and contract. NUL-terminated,
 * static. */
LACONIC_API const char* laconic_codecs_json(void);

/* Element types. */
enum {
  LACONIC_F32 = 0,
  LACONIC_F16 = 1,
  LACONIC_BF16 = 2,
  LACONIC_U8 = 3,
  LACONIC_U16 = 4,
  LACONIC_I32 = 5 /* only lanes; sums wrap */
};

/* ---- One codec: bytes in, bytes out ---- */

/* A parsed spec; immutable. */
typedef struct laconic_codec laconic_codec;
/* Error feedback and codec state of one tensor on one rank. */
typedef struct laconic_residual laconic_residual;

/* Parses `spec` (length bytes). threads: 0 means one, at most LACONIC_MAX_THREADS. */
#define LACONIC_MAX_THREADS 1024
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

/* Nothing may be missing. */
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
  /* may be missing: */
  uint64_t parameter; /* identity for random streams; 0 is fine for a lone tensor */
} laconic_place;

/* Encodes a tensor into a stand-alone frame of *written bytes. residual may be null (no feedback,
 * fresh codec state). Fails with non_finite (and changes nothing) when the input is not finite and
 * the codec keeps a residual or cannot carry it. */
LACONIC_API int32_t laconic_encode(const laconic_codec* codec, const laconic_tensor* source,
                                   const laconic_place* place, laconic_residual* residual,
                                   void* out, uint64_t capacity, uint64_t* written, void* stream);
/* out = base + weight * decoded; base = out when add != 0, else 0. The frame's codec must be this
 * one. `out` is unchanged after a failure. */
LACONIC_API int32_t laconic_decode(const laconic_codec* codec, const void* frame, uint64_t bytes,
                                   float weight, int32_t add, const laconic_tensor* out,
                                   void* stream);
/* The same for `count` frames of equal shape at once, added in the order given (fused). */
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

/* Parses and verifies a frame's header and checksum. Total: any bytes give an answer. `info` is
 * unchanged after a failure. */
LACONIC_API int32_t laconic_frame_parse(const void* frame, uint64_t bytes,
                                        laconic_frame_info* info);

LACONIC_API int32_t laconic_residual_create(uint64_t count, laconic_residual** out);
LACONIC_API void laconic_residual_destroy(laconic_residual* residual);
/* The count floats of error feedback, or of a running mean (+ema); a view, valid until destroy. */
LACONIC_API float* laconic_residual_data(laconic_residual* residual);
LACONIC_API uint64_t laconic_residual_count(const laconic_residual* residual);
/* Codec state (warm starts, adaptive stages) and, behind it, momentum (+momentum): a view of *count
 * floats, valid until the next encode or set_state. Empty (*count == 0) before the first encode. */
LACONIC_API float* laconic_residual_state(laconic_residual* residual, uint64_t* count);
/* Replaces the codec state, e.g. from a checkpoint. state_corrupt when a value is not finite; the
 * next encode refuses a count that is not its codec's with state_spec. */
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

/* Parameters that get another spec than the call's; the first rule that matches is the
 * parameter's. A rule that matches nothing is an error unless it is optional. */
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

/* Where a callback of a codec works. */
typedef struct laconic_codec_call {
  uint32_t struct_size;
  uint32_t rank; /* whose payload it is */
  uint32_t world;
  uint32_t reserved;
  uint64_t rows, cols; /* of the parameter */
  uint64_t parameter;  /* laconic_parameter_id of its name */
  uint64_t seed, step;
  const float* state; /* of encode and commit: the parameter's */
  uint64_t state_floats;
} laconic_codec_call;

enum { LACONIC_FEEDBACK_NEVER = 0, LACONIC_FEEDBACK_OFF = 1, LACONIC_FEEDBACK_ON = 2 };
#define LACONIC_WHY_BYTES 256

/* A codec of the caller's own, registered with a session. Its payloads are gathered
 * (LACONIC_STRATEGY_GATHER_ALL), and one more round tells whether every rank could decode them.
 * Called by the thread that drives an exchange; may not call the session. A callback that returns
 * another value than 0 has failed: all ranks report the text that it wrote into `why` (`room`
 * bytes, NUL-terminated), gradients stay in the residuals, and the next step may go on. */
typedef struct laconic_codec_table {
  uint32_t struct_size;
  uint32_t feedback; /* LACONIC_FEEDBACK_OFF: "+ef" turns it on, _ON: "+noef" off */
  const char* name;  /* all of a spec but "+ef" or "+noef": "mine", or "mine:k=4"; copied */
  void* context;
  /* The longest payload of a parameter, equal on all ranks, and floats of state, 0 at first, in
   * saved states. Asked once for a shape. */
  void (*plan)(void* context, uint64_t rows, uint64_t cols, uint32_t world, uint64_t* bytes,
               uint64_t* state_floats);
  /* values: rows * cols, finite, gradient and residual together. */
  int32_t (*encode)(void* context, const laconic_codec_call* call, const float* values, void* out,
                    uint64_t room, uint64_t* bytes, char* why, uint64_t why_room);
  /* Any bytes that a peer sent. out: zeros; the same floats on every rank, all finite. */
  int32_t (*decode)(void* context, const laconic_codec_call* call, const void* payload,
                    uint64_t bytes, float* out, char* why, uint64_t why_room);
  /* may be missing: */
  /* After delivery of what this rank sent, the only one that writes state; NULL: nothing to do. */
  void (*commit)(void* context, const laconic_codec_call* call, float* state, const void* sent,
                 uint64_t bytes);
} laconic_codec_table;
#define LACONIC_MAX_CODECS 32
/* How a codec's random streams, and callbacks, know a parameter. */
LACONIC_API uint64_t laconic_parameter_id(const char* name);

typedef struct laconic_session_options {
  uint32_t struct_size;
  uint32_t rank, world; /* of one rank gradients pass through, without a step */
  uint32_t strategy;
  const char* spec; /* NUL-terminated */
  /* may be missing: */
  uint64_t seed;
  uint64_t small_elements; /* parameters of at most this many elements go uncompressed */
  uint32_t engine_sums; /* bit d: the engine's all-reduce adds lanes of type d, LACONIC_F32, ... */
  uint32_t threads;     /* 0 means one, at most LACONIC_MAX_THREADS */
  uint32_t short_sends; /* 1: a rank may send fewer bytes than the receiver has room for */
  uint32_t window;      /* exchanges in flight at a time, at most LACONIC_MAX_WINDOW; 0 means one */
  uint64_t part; /* dense bytes at which the caller cuts buckets, 0: not at all; only agreed on */
  uint32_t aggregates; /* 1: steps LACONIC_AGGREGATE are executed, by laconic_aggregator_run say */
  uint32_t rule_count; /* at most LACONIC_MAX_RULES */
  const laconic_rule* rules; /* copied */
  const char* control; /* a law that moves settings while training runs, as "dc2"; NULL: none */
  const char* record;  /* file in which rank 0 records what is observed and decided; NULL: none */
  const laconic_codec_table* const* codecs; /* registered: specs may name them */
  uint32_t codec_count;                     /* at most LACONIC_MAX_CODECS */
  uint32_t owner_turns; /* 1: optimizers step between push and pull, laconic_driver_turns */
  const char* down; /* spec of what owners send, by two_shot; NULL or "": that of contributions */
} laconic_session_options;

#define LACONIC_MAX_WINDOW 8
/* Elements of a bucket up to which an exchange is short: docs/guide/c-abi.md. */
#define LACONIC_SHORT_ELEMENTS 65536

LACONIC_API int32_t laconic_session_create(const laconic_session_options* options,
                                           const laconic_parameter* parameters, uint32_t count,
                                           laconic_session** out);
LACONIC_API void laconic_session_destroy(laconic_session* session);

/* Agreement: every rank gathers LACONIC_AGREEMENT_BYTES of every rank once, before the first
 * exchange. check fails on every rank with one message that names what differs (spec, sizes,
 * version) and which ranks. gathered: all ranks' bytes, in rank order. */
#define LACONIC_AGREEMENT_BYTES 768
LACONIC_API int32_t laconic_session_agreement(const laconic_session* session, void* out);
LACONIC_API int32_t laconic_session_check_agreement(laconic_session* session, const void* gathered);

/* Other settings, between two steps, in three calls on every rank: set prepares them; then the
 * agreement, as above, whatever set has returned. Where check_agreement gives 0 they are in force
 * from the next step on. Where ranks differ, or one could not prepare (no memory, an unknown spec),
 * every rank gets one message, and all go on as before; so they do where the settings have no place
 * for residuals: residuals_left, and these go out with the gradients of the next steps, as many as
 * they are larger than the gradients. Set again when flush_steps_left in stats is 0. Until
 * check_agreement memory for both is needed. exchange_order while an exchange is in flight;
 * unsupported with an aggregator. Entries of the state are others then. */
#define LACONIC_KEEP 0xFFFFFFFFU
typedef struct laconic_settings {
  uint32_t struct_size;
  uint32_t strategy;         /* LACONIC_KEEP: stays */
  const char* spec;          /* NULL: stays */
  const char* control;       /* NULL: stays; "fixed": none */
  const laconic_rule* rules; /* copied */
  uint32_t rule_count;       /* LACONIC_KEEP: they stay; 0: none */
  /* may be missing: */
  uint32_t reserved;
  const char* down; /* NULL: stays; "": none */
} laconic_settings;
LACONIC_API int32_t laconic_session_set(laconic_session* session, const laconic_settings* settings);
/* A step begins: what was decided for it comes into force, before its first bucket, whose begin
 * does the same otherwise. *version: of the settings, as in explain. A second call in a step
 * changes nothing; exchange_order for a step behind the one that has begun, and while exchanges of
 * another one are in flight. What else fails, the step's first bucket tells all ranks. */
LACONIC_API int32_t laconic_session_begin_step(laconic_session* session, uint64_t step,
                                               uint32_t* version);

/* JSON: what was picked and why, per parameter, and the memory that it takes as of now, in bytes:
 *   residual_bytes   error feedback, a float for each element; 0 without feedback
 *   state_bytes      what else a saved state holds: warm starts of codecs, a flush under way
 *   exchange_bytes   buffers of the bucket layouts, as they were allocated; 0 before the first
 *                    exchange, less after laconic_session_release_layout
 *   parameters[i].reason   why it is not compressed; of a compressed one, how it was cut, or ""
 * NUL-terminated, valid until the calling thread's next call of explain or stats. */
LACONIC_API const char* laconic_session_explain(const laconic_session* session);
/* JSON: counters since creation (steps, bytes raw and on the wire, seconds encoding and decoding,
 * fallbacks, ...), and residual_bytes as explain has it. NUL-terminated, valid as long as
 * explain's. */
LACONIC_API const char* laconic_session_stats(const laconic_session* session);
/* 1 when engine-added float sums make the place of an element in the buffer matter (resume keeps
 * the layout then). */
LACONIC_API int32_t laconic_session_layout_matters(const laconic_session* session);
/* 1 when every unit is uncompressed: the caller may all-reduce the bucket itself, without any
 * exchange. */
LACONIC_API int32_t laconic_session_all_raw(const laconic_session* session);
/* Multiplies residuals, running means and momentum by `factor`, positive and finite: the gradients'
 * unit has changed (AMP loss scale). Not while an exchange is in flight: exchange_order. */
LACONIC_API int32_t laconic_session_scale_residuals(laconic_session* session, float factor);
/* sqrt(sum of squares) of this rank's own residuals. */
LACONIC_API double laconic_session_residual_norm(const laconic_session* session);

/* Residuals shall go out with the gradients, an equal part in each of `steps` steps (1 to 65535,
 * else value_out_of_range). It suffices that one rank asks: the wish rides in the exchanges of the
 * next step, and the first draining step is the one after it. Where ranks ask for different
 * numbers, the largest holds; where an engine adds them in bits (native_sum, server_sum), their
 * bitwise OR, which is less than twice that. Nothing happens while a flush is draining, or without
 * feedback. stats has flush_steps_left. */
LACONIC_API int32_t laconic_session_flush(laconic_session* session, uint32_t steps);

/* Flags of a bucket. RAW: send uncompressed, residuals untouched. */
enum { LACONIC_BUCKET_RAW = 2 };

/* One bucket: which parameters lie where in one flat, contiguous, writable buffer. Nothing may be
 * missing. */
typedef struct laconic_bucket {
  uint32_t struct_size;
  uint32_t dtype; /* of the buffer */
  uint32_t index; /* for messages only; of a part of a bucket, its number in the upper 16 bits */
  uint32_t flags;
  uint64_t step; /* the same on all ranks */
  void* buffer;  /* gradients in, mean gradients out */
  uint64_t elements;
  uint32_t count;             /* parameters */
  const uint32_t* parameters; /* indices into the session's list */
  const uint64_t* offsets;    /* element offset of each in the buffer */
} laconic_bucket;

enum {
  LACONIC_ALL_REDUCE = 0,
  LACONIC_ALL_GATHER = 1,
  LACONIC_ALL_TO_ALL = 2,
  LACONIC_MESSAGES = 3,
  LACONIC_AGGREGATE = 4
};

/* To one other rank, and from it; a length of 0: nothing on that way. */
typedef struct laconic_message {
  uint32_t peer;
  uint32_t reserved;
  const void* send;
  uint64_t send_bytes;
  void* recv;
  uint64_t recv_room; /* exactly what arrives, or, with short_sends, at least */
} laconic_message;

/* Flags of granules. */
enum {
  LACONIC_GRANULE_EMPTY = 1,   /* nothing to add: counts in the divisor alone */
  LACONIC_GRANULE_TROUBLE = 2, /* the sum is of no use; OR-ed into it */
  LACONIC_GRANULE_VALUES = 4   /* 32-bit lanes in place of codes */
};

/* What this rank adds to one sum. */
typedef struct laconic_contribution {
  const void* payload; /* packed codes, or 32-bit lanes; null if empty */
  uint64_t payload_bytes;
  uint32_t settings; /* hash of what the lanes mean: the same on all ranks */
  uint16_t norm;     /* the largest comes back */
  uint8_t flags;
  uint8_t reserved;
} laconic_contribution;

/* A sum, the same on all ranks. The aggregator decides who is in it. */
typedef struct laconic_aggregate {
  void* lanes; /* room, given by the library */
  uint64_t room;
  uint64_t bitmap; /* contributors, by rank */
  uint32_t length; /* bytes of the sum; 0: nobody had anything to add */
  uint16_t norm;   /* the largest */
  uint8_t flags;
  uint8_t added;   /* contributions in the sum */
  uint8_t divisor; /* contributors, empty ones too */
  uint8_t reserved[7];
} laconic_aggregate;

/* One collective to execute. Pointers are valid until the next call on the exchange; counts and
 * offsets are bytes, one entry per rank, and null for an all_reduce.
 *
 * ALL_REDUCE: `count` lanes of `dtype` at send (== recv), to be summed in place over all ranks.
 * ALL_GATHER: the same send_bytes bytes at send go to every rank (each send_counts[r] is that size,
 * each send_offsets[r] is 0). ALL_TO_ALL: send_counts[r] bytes at send + send_offsets[r] go to rank
 * r. In both, what rank r sends arrives at recv + recv_offsets[r], recv_counts[r] bytes of it; the
 * entry of this rank is copied from itself. Ranges need not be adjacent. MESSAGES: message_count of
 * them at once, every peer at most once, this rank not at all; counts and offsets are null. No
 * strategy of this version asks for it. AGGREGATE, where options.aggregates is 1: granules of
 * contributions to an aggregator, the same number on all ranks, and as many sums back; everything
 * else is null. */
typedef struct laconic_step {
  uint32_t kind;
  uint32_t dtype;
  uint32_t reserved;
  uint32_t short_sends; /* 1: recv_counts are room, what arrives may be shorter */
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

/* A room of this many steps is enough for every batch. */
#define LACONIC_MAX_BATCH 8

/* Starts the exchange of a bucket. What is wrong on this rank alone (no memory, a layout that does
 * not fit the model) does not stop it: the exchange tells the other ranks. The first exchange of a
 * layout begins with a small step in which every rank says that it is ready. Up to options.window
 * long exchanges of one step, of different parameters, may be in flight and, where options.window
 * is 2 or more, LACONIC_MAX_WINDOW with short ones; one has ended when next gives
 * *count == 0 or a failure, or after abort. All ranks execute the steps of all exchanges in one
 * order, which may not depend on time: first steps in the order of the begins; docs/guide/c-abi.md.
 * One more in flight, one of another step, or a parameter that is in flight is exchange_order, and
 * so are calls on an exchange that has ended. *out belongs to the session, which may give it again
 * when the exchange has ended. */
LACONIC_API int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                                           laconic_exchange** out);
/* Marks a local failure, before the first next: all ranks will report `message`. A code that is not
 * a failure of docs/format/ERRORS.md is told as internal; message (NUL-terminated) may be null. */
LACONIC_API int32_t laconic_exchange_fail(laconic_exchange* exchange, int32_t code,
                                          const char* message);
/* The next batch of *count steps, written `step_size` (sizeof(laconic_step) in your header) bytes
 * apart, to be executed before the next call. *count == 0: finished, the mean lies in the buffer.
 * buffer_too_small: the batch needs *count steps of room; nothing has happened, call again with
 * that. Any other failure (a peer's error, hostile bytes) has ended the exchange and has put back
 * what was not delivered. */
LACONIC_API int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps,
                                          uint32_t step_size, uint32_t room, uint32_t* count);
/* When the batch that next gave last was issued, and when it was complete: before the following
 * next, in seconds of any clock that only goes forward; NaN: not known. What the ranks tell each
 * other of the network, and stats' network_seconds, come from it; exchanges need none of it. */
LACONIC_API int32_t laconic_exchange_timed(laconic_exchange* exchange, double issued,
                                           double completed);
/* The same of a sum of this step's gradients that the caller made without the session. */
LACONIC_API int32_t laconic_session_summed(laconic_session* session, double issued,
                                           double completed);
/* The engine failed: puts this rank's payloads of every exchange in flight back into its residuals,
 * and ends them all. Nothing undelivered is lost. From then on every begin fails with
 * engine_failed, after it has added the bucket's gradients to the residuals: messages of these
 * exchanges may still be under way. Does nothing to an exchange that has ended. */
LACONIC_API void laconic_exchange_abort(laconic_exchange* exchange);
/* Frees the buffers of a layout that will not come back (dtype, elements, count, parameters and
 * offsets of `bucket` say which). Every rank does it between the same two exchanges; one that comes
 * back starts like a new one. */
LACONIC_API int32_t laconic_session_release_layout(laconic_session* session,
                                                   const laconic_bucket* bucket);

/* ---- A driver: buckets in, means out, over an engine of the caller's ---- */

/* What cuts buckets at options.part, lets short ones travel together, keeps exchanges in flight and
 * agrees with the other ranks, so that callers need not drive exchanges step by step. One thread at
 * a time, and nothing of it from inside of a callback: exchange_order. In a child that was forked
 * from its process nothing is exchanged: unsupported. */
typedef struct laconic_driver laconic_driver;

/* An engine as a table of callbacks. `start` and `wait` are those of laconic_plugin, which may
 * stand here with the plug-in's engine as `context`. They give a code, 0 or one of
 * docs/format/ERRORS.md, and write a message, NUL-terminated, of at most `room` bytes. After a
 * failure nothing more is started, and what was is settled. */
typedef struct laconic_engine_table {
  uint32_t struct_size;
  uint32_t rank, world;
  uint32_t reserved;
  void* context;
  double timeout; /* seconds that a batch may take, handed to wait; 0: 30 minutes */
  /* Begins a batch of `count` steps, `step_size` bytes apart. At most LACONIC_MAX_WINDOW + 1 have
   * been started and not waited for; all ranks start the same ones in the same order. What the
   * steps point to, not the steps, lives until wait has returned 0. */
  int32_t (*start)(void* context, const laconic_step* steps, uint32_t step_size, uint32_t count,
                   uint64_t* ticket, char* message, uint64_t room);
  /* Returns when the batch is complete or has failed. Once for each ticket. */
  int32_t (*wait)(void* context, uint64_t ticket, double timeout, char* message, uint64_t room);
  /* may be missing, or null: */
  /* A batch that nobody will wait for, behind a failure: returns when its memory is not used any
   * more. Without it a driver and its session may be destroyed only behind the engine then. */
  void (*settle)(void* context, uint64_t ticket);
  /* Where wait, when it returns 0, leaves the time when the batch was complete, in seconds of
   * CLOCK_MONOTONIC; 0: not known. One that leaves nothing there has failed. */
  double* completed;
} laconic_engine_table;

/* Why this rank cannot bring something: all ranks report it. */
typedef struct laconic_failure {
  int32_t code;
  const char* message; /* NUL-terminated; null: none */
  const char* hint;
} laconic_failure;

/* Agreement over an engine, before the first exchange: gathers the cards of all ranks, this one's
 * being the session's, or `failure` if that is not null. Where one has a failure, every rank gets
 * the same: with "rank 1 could not WHAT: ...", or the failure itself if all ranks have the same.
 * `gathered`: world * LACONIC_AGREEMENT_BYTES, for laconic_session_check_agreement. */
LACONIC_API int32_t laconic_agree(const laconic_engine_table* engine,
                                  const laconic_session* session, const laconic_failure* failure,
                                  const char* what, void* gathered);

/* An exchange has ended, or was undone. */
typedef struct laconic_ending {
  uint32_t struct_size;
  int32_t code;        /* 0: the means are where the gradients were */
  const char* message; /* NUL-terminated, as `hint`; until the callback returns, like all of it */
  const char* hint;
  uint32_t count; /* of buckets that it carried, in whole or in part */
  uint32_t reserved;
  const uint64_t* tokens; /* theirs */
  const uint32_t* parts;  /* exchanges that each of them takes in all */
} laconic_ending;

enum { LACONIC_PHASE_ENCODE = 0, LACONIC_PHASE_WIRE = 1, LACONIC_PHASE_DECODE = 2 };

typedef struct laconic_driver_options {
  uint32_t struct_size;
  uint32_t reserved;
  const laconic_engine_table* engine; /* copied; rank and world are the session's */
  void* context;                      /* of the callbacks here */
  /* Called once for each exchange, in the thread that calls the driver. */
  void (*ended)(void* context, const laconic_ending* ending);
  /* may be missing, or null: */
  /* A phase of an exchange is over; seconds of CLOCK_MONOTONIC. */
  void (*traced)(void* context, uint32_t phase, uint64_t step, uint32_t index, double begin,
                 double end);
} laconic_driver_options;

/* Of a session that no exchange was begun with, and that outlives it. */
LACONIC_API int32_t laconic_driver_create(laconic_session* session,
                                          const laconic_driver_options* options,
                                          laconic_driver** out);
LACONIC_API void laconic_driver_destroy(laconic_driver* driver);

/* Flags of laconic_driver_submit. APART: the bucket waits for no other, and none for it. WHOLE: it
 * is not cut. */
enum { LACONIC_SUBMIT_APART = 1, LACONIC_SUBMIT_WHOLE = 2 };

/* Takes a bucket, every rank the same ones in the same order, each parameter once in a step. Its
 * memory stays where it is until `ended` has told its token `parts` times. With `failure` this rank
 * cannot bring it, its buffer may be null, and all ranks report why. Gives the engine's failure, or
 * that of an exchange that could not begin, of which `ended` tells, too. */
LACONIC_API int32_t laconic_driver_submit(laconic_driver* driver, const laconic_bucket* bucket,
                                          uint32_t flags, uint64_t token,
                                          const laconic_failure* failure);
/* Ends all that was submitted, in order. Drain does not end the step, more buckets of it may
 * follow; finish does. Both give the first failure since the last finish. */
LACONIC_API int32_t laconic_driver_drain(laconic_driver* driver);
LACONIC_API int32_t laconic_driver_finish(laconic_driver* driver);
/* Undoes all that was submitted and has not ended: it goes into the residuals, as does everything
 * that is submitted from now on. */
LACONIC_API int32_t laconic_driver_break_off(laconic_driver* driver,
                                             const laconic_failure* failure);
/* As laconic_session_release_layout, of a bucket and its parts. */
LACONIC_API int32_t laconic_driver_release(laconic_driver* driver, const laconic_bucket* bucket);

/* Other settings, all ranks together between two steps: laconic_session_set and its agreement.
 * `failure`, if not null: this rank has no settings, and why. *waits: 1 where residuals have to go
 * out first. Then every rank calls set_what_waits before the first bucket of each step, until *set
 * is 1 or it fails, with which nothing waits any more. */
LACONIC_API int32_t laconic_driver_set(laconic_driver* driver, const laconic_settings* settings,
                                       const laconic_failure* failure, uint32_t* waits);
LACONIC_API int32_t laconic_driver_set_what_waits(laconic_driver* driver, uint32_t* set);

/* A session with owner_turns trains as a parameter server that is spread over the ranks (3LC, MLSys
 * 2019, section 3): buckets of gradients that are submitted are pushed to the owners of their
 * ranges; each owner moves float32 masters of them by the mean, in its turn; and what masters are
 * ahead of the parameters is pulled, compressed once for all ranks, and added to them. Small
 * parameters have no master: their mean is in the bucket after the pull. A step is: submit each
 * bucket, turns, pull. Where a world is one rank there are no ranges. */
typedef struct laconic_replica {
  void* values; /* a parameter, on the host */
  uint32_t dtype;
  uint32_t reserved;
} laconic_replica;

typedef struct laconic_owned_range {
  uint32_t parameter;
  uint32_t reserved;
  uint64_t offset, count; /* elements of the parameter */
  const float* mean;      /* of the gradient over all ranks; null where there is no turn */
  float* master;          /* as long as the session lives */
} laconic_owned_range;

/* `replicas`: one for each parameter. `begins`: 1 where masters take their values, 0 where a state
 * was loaded. Before the first turns; they are moved by pull until others are set. */
LACONIC_API int32_t laconic_driver_set_replicas(laconic_driver* driver,
                                                const laconic_replica* replicas, uint32_t count,
                                                uint32_t begins);
/* The ranges of this rank, of which *count is the number, as many as there is capacity for. */
LACONIC_API int32_t laconic_driver_owned(laconic_driver* driver, laconic_owned_range* ranges,
                                         uint32_t capacity, uint32_t* count);

typedef struct laconic_turns {
  uint32_t struct_size;
  uint32_t skips; /* 1: some rank's gradient is not finite; there are no ranges, no owner steps */
  const laconic_owned_range* ranges; /* until pull */
  uint64_t count;
  double sum_of_squares; /* of the means that this rank owns, small parameters included */
} laconic_turns;

/* Ends the pushes of a step. The pull comes next in any case; after a failure no master moves. */
LACONIC_API int32_t laconic_driver_turns(laconic_driver* driver, laconic_turns* out);
/* Ends the step. `failure`, if not null: this rank's turn failed, and all ranks report why.
 * *skipped: 1 where nothing moved. What owners have sent counts, whatever others met: after a
 * failure the next pull brings the rest. */
LACONIC_API int32_t laconic_driver_pull(laconic_driver* driver, const laconic_failure* failure,
                                        uint32_t* skipped);

/* For each parameter of `count` buckets, one bucket behind the other, the number of the exchange
 * that carries it, were they submitted in a step with `flags`. A saved state has to bring these
 * exchanges back where laconic_session_layout_matters. */
LACONIC_API int32_t laconic_driver_exchanges(const laconic_driver* driver,
                                             const laconic_bucket* buckets, uint32_t count,
                                             uint32_t flags, uint32_t* exchange_of);

/* ---- Aggregation servers (`laconic serve`) ---- */

/* Executes a session's AGGREGATE steps over UDP. One thread at a time, but for interrupt and stats,
 * which any thread may call. */
typedef struct laconic_aggregator laconic_aggregator;

/* The same on all ranks. */
typedef struct laconic_aggregator_options {
  uint32_t struct_size;
  uint32_t world;       /* at most 64 */
  const char* servers;  /* "HOST:PORT,HOST:PORT", NUL-terminated */
  const char* token;    /* path of the servers' secret, 32 bytes; null: none */
  double quorum;        /* of all ranks, how many are enough behind the deadline; 0 means 1.0 */
  uint32_t deadline_us; /* of an exchange, below an hour; 0 means 20,000 */
  uint32_t timeout_ms;  /* silence after which a rank or server is lost; 0 means 60,000 */
  uint32_t full_tags;   /* 1: tags cover payloads, too, not only headers */
  uint32_t multicast;   /* 1: sums come once for all ranks, where server and network can do it */
} laconic_aggregator_options;

/* Checks the options and reads the token. Sends nothing. */
LACONIC_API int32_t laconic_aggregator_open(const laconic_aggregator_options* options,
                                            laconic_aggregator** out);
/* Registers with all servers for what the session sends; returns when all ranks are there, or
 * timed_out. A collective call. `number`: of the job, random, the same on all ranks (rank 0's).
 * The session's strategy is server_sum, else unsupported. From here on, a thread of its own keeps
 * the links alive between runs, while other ranks may lack a result that is here, and for
 * timeout_ms of the options behind the last run at most. */
LACONIC_API int32_t laconic_aggregator_join(laconic_aggregator* aggregator,
                                            const laconic_session* session, uint64_t number,
                                            uint32_t timeout_ms);
/* Executes one AGGREGATE step, all ranks the same ones in the same order. Behind a failure, whose
 * cause all ranks hear, it is of no use any more. */
LACONIC_API int32_t laconic_aggregator_run(laconic_aggregator* aggregator, const laconic_step* step,
                                           uint32_t step_size);
/* A join or run under way, or the next, fails within a tenth of a second. Null does nothing. */
LACONIC_API void laconic_aggregator_interrupt(laconic_aggregator* aggregator);
/* JSON, as of the last run's end: joined (1: and it has not failed since), resent_datagrams,
 * duplicate_datagrams, aggregator_restarts, rtt_us (smoothed round trip, of the slowest server),
 * multicast_datagrams, multicast_servers (whose group this rank hears).
 * NUL-terminated, valid until the calling thread's next call. */
LACONIC_API const char* laconic_aggregator_stats(laconic_aggregator* aggregator);
/* Lingers up to linger_ms until all ranks have all results, and frees it. Null does nothing. */
LACONIC_API void laconic_aggregator_close(laconic_aggregator* aggregator, uint32_t linger_ms);

/* ---- Saved state: named float arrays, one set per rank ---- */

typedef struct laconic_state_header {
  uint32_t struct_size;
  uint32_t version;
  uint32_t rank, world;
  /* may be missing: */
  uint64_t model_hash, agreement;
  char spec[256]; /* canonical, NUL-terminated */
} laconic_state_header;

LACONIC_API int32_t laconic_session_state_header(const laconic_session* session,
                                                 laconic_state_header* out);
LACONIC_API uint32_t laconic_session_state_count(const laconic_session* session);
/* Entry i: name such as "residual/fc1.weight" (NUL-terminated) and a view of its floats; both live
 * as long as the session. */
LACONIC_API int32_t laconic_session_state_entry(laconic_session* session, uint32_t i,
                                                const char** name, float** data, uint64_t* count);
/* Is this a header of the state that the session continues? state_corrupt when no session can have
 * written it; the state of another version, world, rank, model or spec has a code of its own. */
LACONIC_API int32_t laconic_session_state_accepts(const laconic_session* session,
                                                  const laconic_state_header* header);
/* May these values be copied into entry i? state_corrupt, with the entry's name, when count differs
 * or a value is not finite. Check every entry before the first is copied. */
LACONIC_API int32_t laconic_session_state_check(const laconic_session* session, uint32_t i,
                                                const float* values, uint64_t count);

#ifdef __cplusplus
}
#endif

#endif /* LACONIC_LACONIC_H_ */
