// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The C ABI: checks what crosses it, translates, and keeps every failure's words for the calling
// thread.
#include <algorithm>
#include <cstring>
#include <new>
#include <string>

#include "laconic/laconic.h"
#include "laconic/tensor_codec.h"
#include "laconic/version.h"
#include "session/describe.h"
#include "session/session.h"

struct laconic_codec {
  std::unique_ptr<laconic::TensorCodec> codec;
  std::string json;
};
struct laconic_residual {
  std::unique_ptr<laconic::Residual> residual;
};
struct laconic_exchange {
  laconic::session::Session* session = nullptr;
  laconic::collective::Exchange* exchange = nullptr;
  std::array<laconic::transport::Step, laconic::transport::kMaxBatch> batch;
};
struct laconic_session {
  std::unique_ptr<laconic::session::Session> session;
  laconic_exchange exchange;
  laconic::collective::Layout layout;
  std::string text;
};

namespace {

using laconic::Bytes;
using laconic::DType;
using laconic::Errc;
using laconic::Error;
using laconic::MutBytes;

struct LastError {
  std::string message;
  std::string hint;
};
LastError& last_error() {
  thread_local LastError last;
  return last;
}

int32_t fail(const Error& error) {
  last_error() = {
      error.message.empty() ? std::string(laconic::errc_name(error.code)) : error.message,
      error.hint};
  return static_cast<int32_t>(error.code);
}
int32_t fail(Errc code, const char* message, const char* hint = "") {
  return fail(Error{code, message, hint});
}

/// Where there is no memory for a sentence: `message` fits into a string without an allocation.
int32_t fail_briefly(Errc code, const char* message) noexcept {
  last_error().message.assign(message);
  last_error().hint.clear();
  return static_cast<int32_t>(code);
}

/// Runs `body` (which returns a code); memory running out is the one exception that can come from
/// below.
template <class Body>
int32_t guarded(Body&& body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return fail_briefly(Errc::out_of_memory, "out of memory");
  } catch (...) {
    return fail_briefly(Errc::internal, "internal error");
  }
}

template <class T>
bool sized(const T* p) {
  return p != nullptr && p->struct_size >= sizeof(T);
}
int32_t bad_struct(const char* what) {
  return fail(Errc::invalid_argument, what, "set struct_size to sizeof the struct of this header");
}

bool to_tensor(const laconic_tensor* t, laconic::TensorRef* out) {
  if (!sized(t) || t->dtype > LACONIC_BF16) return false;
  *out = {static_cast<DType>(t->dtype), t->rows, t->cols, t->data};
  return true;
}

}  // namespace

extern "C" {

int32_t laconic_abi_version(void) { return LACONIC_ABI_VERSION; }
const char* laconic_version(void) { return LACONIC_VERSION_STRING; }

const char* laconic_build_info(void) {
  static const std::string text = laconic::session::describe_build();
  return text.c_str();
}

const char* laconic_codecs_json(void) {
  static const std::string text = laconic::session::describe_codecs();
  return text.c_str();
}

const char* laconic_error_name(int32_t code) {
  return laconic::errc_name(static_cast<Errc>(code)).data();
}
const char* laconic_last_message(void) { return last_error().message.c_str(); }
const char* laconic_last_hint(void) { return last_error().hint.c_str(); }

// ---- One codec
// ----------------------------------------------------------------------------------------------------

int32_t laconic_codec_create(const char* spec, size_t length, uint32_t threads,
                             laconic_codec** out) {
  return guarded([&]() -> int32_t {
    if (spec == nullptr || out == nullptr)
      return fail(Errc::invalid_argument, "spec and out must not be null");
    *out = nullptr;
    auto codec = laconic::TensorCodec::create({spec, length}, std::max<uint32_t>(threads, 1));
    if (!codec) return fail(codec.error());
    auto handle = std::make_unique<laconic_codec>();
    handle->json = laconic::session::describe_spec((*codec)->spec());
    handle->codec = *std::move(codec);
    *out = handle.release();
    return 0;
  });
}

void laconic_codec_destroy(laconic_codec* codec) { delete codec; }
const char* laconic_codec_spec(const laconic_codec* codec) {
  return codec->codec->spec().canonical().c_str();
}
const char* laconic_codec_json(const laconic_codec* codec) { return codec->json.c_str(); }

int32_t laconic_codec_max_frame_bytes(const laconic_codec* codec, uint64_t rows, uint64_t cols,
                                      uint64_t* bytes) {
  return guarded([&]() -> int32_t {
    if (codec == nullptr || bytes == nullptr)
      return fail(Errc::invalid_argument, "codec and bytes must not be null");
    auto bound = codec->codec->max_frame_bytes(rows, cols);
    if (!bound) return fail(bound.error());
    *bytes = *bound;
    return 0;
  });
}

int32_t laconic_encode(const laconic_codec* codec, const laconic_tensor* source,
                       const laconic_place* place, laconic_residual* residual, void* out,
                       uint64_t capacity, uint64_t* written, void* /*stream*/) {
  return guarded([&]() -> int32_t {
    laconic::TensorRef tensor;
    if (codec == nullptr || out == nullptr || written == nullptr) {
      return fail(Errc::invalid_argument, "codec, out and written must not be null");
    }
    if (!to_tensor(source, &tensor))
      return bad_struct("source is null, of an older header or of no float type");
    if (!sized(place)) return bad_struct("place is null or of an older header");
    if (place->world == 0 || place->rank >= place->world) {
      return fail(Errc::invalid_argument, "rank must be below world",
                  "world=1, rank=0 for a lone process");
    }
    const laconic::Place where{place->seed, place->step, place->rank, place->world, 0, 1.0F};
    auto bytes = codec->codec->encode(tensor, where, place->parameter,
                                      residual == nullptr ? nullptr : residual->residual.get(),
                                      MutBytes(static_cast<uint8_t*>(out), capacity));
    if (!bytes) return fail(bytes.error());
    *written = *bytes;
    return 0;
  });
}

int32_t laconic_decode(const laconic_codec* codec, const void* frame, uint64_t bytes, float weight,
                       int32_t add, const laconic_tensor* out, void* stream) {
  return laconic_decode_many(codec, &frame, &bytes, 1, weight, add, out, stream);
}

int32_t laconic_decode_many(const laconic_codec* codec, const void* const* frames,
                            const uint64_t* bytes, uint32_t count, float weight, int32_t add,
                            const laconic_tensor* out, void* /*stream*/) {
  return guarded([&]() -> int32_t {
    laconic::TensorRef tensor;
    if (codec == nullptr || (count != 0 && (frames == nullptr || bytes == nullptr))) {
      return fail(Errc::invalid_argument, "codec and frames must not be null");
    }
    if (!to_tensor(out, &tensor))
      return bad_struct("out is null, of an older header or of no float type");
    std::array<Bytes, 16> few;
    std::vector<Bytes> many(count > few.size() ? count : 0);
    const std::span<Bytes> views =
        count > few.size() ? std::span<Bytes>(many) : std::span<Bytes>(few).first(count);
    for (uint32_t i = 0; i < count; ++i)
      views[i] = Bytes(static_cast<const uint8_t*>(frames[i]), bytes[i]);
    auto done = codec->codec->decode(views, weight, add != 0, tensor);
    return done ? 0 : fail(done.error());
  });
}

int32_t laconic_frame_parse(const void* frame, uint64_t bytes, laconic_frame_info* info) {
  return guarded([&]() -> int32_t {
    if (!sized(info)) return bad_struct("info is null or of an older header");
    if (frame == nullptr && bytes != 0)
      return fail(Errc::invalid_argument, "frame must not be null");
    auto view = laconic::parse_frame(Bytes(static_cast<const uint8_t*>(frame), bytes));
    if (!view) return fail(view.error());
    const laconic::FrameInfo& i = view->info;
    info->codec_id = i.codec;
    info->payload_version = i.payload_version;
    info->dtype = static_cast<uint32_t>(i.dtype);
    info->rows = i.rows;
    info->cols = i.cols;
    info->step = i.step;
    info->seed = i.seed;
    info->rank = i.rank;
    info->world = i.world;
    info->contributors = i.contributors;
    info->spec = i.spec.data();
    info->spec_bytes = static_cast<uint32_t>(i.spec.size());
    info->payload_bytes = view->payload.size();
    info->payload_offset = bytes - view->payload.size();
    info->frame_bytes = bytes;
    return 0;
  });
}

int32_t laconic_residual_create(uint64_t count, laconic_residual** out) {
  return guarded([&]() -> int32_t {
    if (out == nullptr) return fail(Errc::invalid_argument, "out must not be null");
    *out = nullptr;
    auto residual = laconic::Residual::create(count);
    if (!residual) return fail(residual.error());
    *out = new laconic_residual{*std::move(residual)};
    return 0;
  });
}
void laconic_residual_destroy(laconic_residual* residual) { delete residual; }
float* laconic_residual_data(laconic_residual* residual) {
  return residual->residual->values().data();
}
uint64_t laconic_residual_count(const laconic_residual* residual) {
  return residual->residual->values().size();
}
float* laconic_residual_state(laconic_residual* residual, uint64_t* count) {
  *count = residual->residual->state().size();
  return residual->residual->state().data();
}
int32_t laconic_residual_set_state(laconic_residual* residual, const float* state, uint64_t count) {
  return guarded([&]() -> int32_t {
    if (residual == nullptr || (state == nullptr && count != 0))
      return fail(Errc::invalid_argument, "null argument");
    if (count > laconic::kFrameMaxCount) {  // no array is that long: do not even form its end
      return fail(Errc::out_of_memory, "no memory for a codec state of that size");
    }
    residual->residual->set_state({state, count});
    return 0;
  });
}

// ---- A session
// ------------------------------------------------------------------------------------------------------

int32_t laconic_session_create(const laconic_session_options* options,
                               const laconic_parameter* parameters, uint32_t count,
                               laconic_session** out) {
  return guarded([&]() -> int32_t {
    if (out == nullptr || (parameters == nullptr && count != 0))
      return fail(Errc::invalid_argument, "null argument");
    *out = nullptr;
    if (!sized(options) || options->spec == nullptr)
      return bad_struct("options is null or of an older header");
    if (options->strategy > LACONIC_STRATEGY_TWO_SHOT)
      return fail(Errc::invalid_argument, "unknown strategy number");
    laconic::collective::Options o;
    o.rank = options->rank;
    o.world = options->world;
    o.seed = options->seed;
    o.small_elements = options->small_elements;
    o.strategy = static_cast<laconic::collective::StrategyKind>(options->strategy);
    o.caps.sums = options->engine_sums;
    o.caps.short_sends = options->short_sends != 0;
    o.threads = std::max<uint32_t>(options->threads, 1);
    std::vector<laconic::collective::Parameter> list;
    list.reserve(count);
    for (uint32_t i = 0; i < count; ++i)
      list.push_back({parameters[i].name, parameters[i].rows, parameters[i].cols});
    auto session = laconic::session::Session::create(options->spec, std::move(list), o);
    if (!session) return fail(session.error());
    auto handle = std::make_unique<laconic_session>();
    handle->session = *std::move(session);
    *out = handle.release();
    return 0;
  });
}

void laconic_session_destroy(laconic_session* session) { delete session; }

void laconic_session_agreement(const laconic_session* session, void* out) {
  const auto card = session->session->agreement_card();
  static_assert(sizeof card == LACONIC_AGREEMENT_BYTES);
  std::memcpy(out, card.data(), card.size());
}

int32_t laconic_session_check_agreement(const laconic_session* session, const void* gathered) {
  return guarded([&]() -> int32_t {
    const uint64_t bytes =
        uint64_t{session->session->model().options().world} * LACONIC_AGREEMENT_BYTES;
    auto same =
        session->session->check_agreement(Bytes(static_cast<const uint8_t*>(gathered), bytes));
    return same ? 0 : fail(same.error());
  });
}

const char* laconic_session_explain(laconic_session* session) {
  session->text = laconic::session::explain(*session->session);
  return session->text.c_str();
}
const char* laconic_session_stats(laconic_session* session) {
  session->text = laconic::session::describe_stats(*session->session);
  return session->text.c_str();
}
int32_t laconic_session_layout_matters(const laconic_session* session) {
  return session->session->model().layout_matters() ? 1 : 0;
}
int32_t laconic_session_all_raw(const laconic_session* session) {
  const auto& model = session->session->model();
  for (uint32_t i = 0; i < model.parameters().size(); ++i) {
    if (!model.assignment(i).raw) return 0;
  }
  return 1;
}
int32_t laconic_session_scale_residuals(laconic_session* session, float factor) {
  if (!(factor > 0.0F) || factor > 3.0e38F)
    return fail(Errc::invalid_argument, "the factor must be positive and finite");
  session->session->scale_residuals(factor);
  return 0;
}
double laconic_session_residual_norm(const laconic_session* session) {
  return session->session->stats().residual_norm;
}

int32_t laconic_exchange_begin(laconic_session* session, const laconic_bucket* bucket,
                               laconic_exchange** out) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || out == nullptr) return fail(Errc::invalid_argument, "null argument");
    *out = nullptr;
    if (!sized(bucket) || bucket->dtype > LACONIC_BF16)
      return bad_struct("bucket is null, too old or of no float type");
    auto& layout = session->layout;
    layout.parameters.assign(bucket->parameters, bucket->parameters + bucket->count);
    layout.offsets.assign(bucket->offsets, bucket->offsets + bucket->count);
    layout.elements = bucket->elements;
    const laconic::collective::Bucket b{bucket->buffer, static_cast<DType>(bucket->dtype),
                                        bucket->step, bucket->index,
                                        (bucket->flags & LACONIC_BUCKET_RAW) != 0};
    auto exchange = session->session->begin(b, layout);
    if (!exchange) return fail(exchange.error());
    session->exchange.session = session->session.get();
    session->exchange.exchange = *exchange;
    *out = &session->exchange;
    return 0;
  });
}

void laconic_exchange_fail(laconic_exchange* exchange, int32_t code, const char* message) {
  (void)guarded([&]() -> int32_t {
    exchange->exchange->fail(Error{static_cast<Errc>(code), message == nullptr ? "" : message, {}});
    return 0;
  });
}

int32_t laconic_exchange_next(laconic_exchange* exchange, laconic_step* steps, uint32_t* count) {
  return guarded([&]() -> int32_t {
    static_assert(laconic::transport::kMaxBatch == LACONIC_MAX_BATCH);
    auto n = exchange->session->next(*exchange->exchange, exchange->batch);
    if (!n) return fail(n.error());
    *count = *n;
    for (uint32_t i = 0; i < *n; ++i) {
      const auto& s = exchange->batch[i];
      laconic_step& c = steps[i];
      c = {};
      c.kind = static_cast<uint32_t>(s.kind);
      c.dtype = static_cast<uint32_t>(s.dtype);
      c.short_sends = s.short_sends ? 1 : 0;
      c.needs_host = s.needs_host ? 1 : 0;
      c.count = s.count;
      c.send = s.send;
      c.recv = s.recv;
      c.send_counts = s.send_counts.data();
      c.recv_counts = s.recv_counts.data();
      if (s.kind == laconic::transport::StepKind::all_gather) {
        c.send_bytes = s.send_counts.empty() ? 0 : s.send_counts[0];
      } else {
        for (const uint64_t b : s.send_counts) c.send_bytes += b;
      }
      for (const uint64_t b : s.recv_counts) c.recv_bytes += b;
    }
    return 0;
  });
}

void laconic_exchange_abort(laconic_exchange* exchange) {
  (void)guarded([&]() -> int32_t {
    exchange->session->abort(*exchange->exchange);
    return 0;
  });
}

// ---- Saved state
// ------------------------------------------------------------------------------------------------------

void laconic_session_state_header(const laconic_session* session, laconic_state_header* out) {
  const auto header = session->session->state_header();
  *out = {};
  out->struct_size = sizeof *out;
  out->version = header.version;
  out->rank = header.rank;
  out->world = header.world;
  out->model_hash = header.model_hash;
  out->agreement = header.agreement;
  std::copy_n(header.spec.data(), std::min(header.spec.size(), sizeof out->spec - 1), out->spec);
}

uint32_t laconic_session_state_count(const laconic_session* session) {
  return static_cast<uint32_t>(session->session->store().entries().size());
}

int32_t laconic_session_state_entry(laconic_session* session, uint32_t i, const char** name,
                                    float** data, uint64_t* count) {
  const auto& entries = session->session->store().entries();
  if (i >= entries.size()) return fail(Errc::invalid_argument, "no such entry");
  *name = entries[i].name.c_str();
  *data = entries[i].values.data();
  *count = entries[i].values.size();
  return 0;
}

int32_t laconic_session_state_accepts(const laconic_session* session,
                                      const laconic_state_header* header) {
  return guarded([&]() -> int32_t {
    if (!sized(header)) return bad_struct("header is null or of an older version");
    const char* end = static_cast<const char*>(std::memchr(header->spec, 0, sizeof header->spec));
    if (end == nullptr)
      return fail(Errc::state_corrupt, "the spec in the saved state is not terminated");
    const laconic::feedback::StateHeader saved{header->version,   header->rank,
                                               header->world,     header->model_hash,
                                               header->agreement, std::string(header->spec, end)};
    auto ok = laconic::feedback::accepts(session->session->state_header(), saved);
    return ok ? 0 : fail(ok.error());
  });
}

}  // extern "C"
