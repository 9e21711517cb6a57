// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One codec: bytes in, bytes out.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "capi/boundary.h"
#include "laconic/tensor_codec.h"
#include "session/describe.h"

struct laconic_codec {
  std::unique_ptr<laconic::TensorCodec> codec;
  std::string json;
};
struct laconic_residual {
  std::unique_ptr<laconic::Residual> residual;
};

namespace {

using laconic::Bytes;
using laconic::DType;
using laconic::Errc;
using laconic::MutBytes;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::sized;

bool to_tensor(const laconic_tensor* t, laconic::TensorRef* out) {
  if (!sized(t) || t->dtype > LACONIC_BF16) return false;
  *out = {static_cast<DType>(t->dtype), t->rows, t->cols, t->data};
  return true;
}

}  // namespace

extern "C" {

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

}  // extern "C"
