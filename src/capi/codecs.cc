// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One codec: bytes in, bytes out.
#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "capi/boundary.h"
#include "device/driver.h"
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
using laconic::Error;
using laconic::MutBytes;
using laconic::capi::check_struct;
using laconic::capi::check_threads;
using laconic::capi::fail;
using laconic::capi::first_not_finite;
using laconic::capi::guarded;
using laconic::capi::guarded_value;
using laconic::capi::null_argument;
using laconic::capi::read_struct;
using laconic::capi::write_struct;

/// `stream`: of a tensor in a GPU's memory.
int32_t read_tensor(const laconic_tensor* theirs, const char* name, void* stream,
                    laconic::TensorRef* out) {
  laconic_tensor t;
  if (const int32_t bad = read_struct(theirs, name, &t); bad != 0) return bad;
  if (t.dtype > LACONIC_BF16) {
    return fail(Errc::invalid_argument, "the tensor's dtype is not a float type",
                "LACONIC_F32, LACONIC_F16 or LACONIC_BF16");
  }
  if (t.memory > LACONIC_MEMORY_CUDA)
    return fail(Errc::invalid_argument, "the tensor's memory is not LACONIC_MEMORY_HOST or _CUDA");
  if (t.reserved != 0) return fail(Errc::invalid_argument, "tensor.reserved must be 0");
  if (t.memory == LACONIC_MEMORY_HOST && t.data != nullptr &&
      laconic::device::is_on_device(t.data)) {
    return fail(Errc::invalid_argument,
                "the tensor is in a GPU's memory, its field memory says host",
                "LACONIC_MEMORY_CUDA, or copy the tensor to the host");
  }
  *out = {static_cast<DType>(t.dtype), t.rows, t.cols, t.data, laconic::TensorMemory::host};
  if (t.memory == LACONIC_MEMORY_CUDA) {
    out->memory = laconic::TensorMemory::cuda;
    out->stream = stream;
  }
  return 0;
}

int32_t read_place(const laconic_place* theirs, laconic_place* place) {
  if (const int32_t bad = read_struct(theirs, "place", place); bad != 0) return bad;
  if (place->reserved != 0) return fail(Errc::invalid_argument, "place.reserved must be 0");
  if (place->rank < place->world) return 0;
  return fail(Errc::invalid_argument, "rank must be below world",
              "use world=1 and rank=0 for a single process");
}

laconic_frame_info to_c(const laconic::FrameView& view, uint64_t bytes) {
  const laconic::FrameInfo& i = view.info;
  laconic_frame_info info{};
  info.codec_id = i.codec;
  info.payload_version = i.payload_version;
  info.dtype = static_cast<uint32_t>(i.dtype);
  info.rows = i.rows;
  info.cols = i.cols;
  info.step = i.step;
  info.seed = i.seed;
  info.rank = i.rank;
  info.world = i.world;
  info.contributors = i.contributors;
  info.spec = i.spec.data();
  info.spec_bytes = static_cast<uint32_t>(i.spec.size());
  info.payload_bytes = view.payload.size();
  info.payload_offset = bytes - view.payload.size();
  info.frame_bytes = bytes;
  return info;
}

}  // namespace

extern "C" {

int32_t laconic_codec_create(const char* spec, size_t length, uint32_t threads,
                             laconic_codec** out) {
  return guarded([&]() -> int32_t {
    if (out != nullptr) *out = nullptr;
    if (spec == nullptr || out == nullptr) return null_argument("spec and out");
    if (const int32_t bad = check_threads(threads); bad != 0) return bad;
    auto codec = laconic::TensorCodec::create({spec, length}, std::max<uint32_t>(threads, 1));
    if (!codec) return fail(std::move(codec).error());
    auto handle = std::make_unique<laconic_codec>();
    handle->json = laconic::session::describe_spec((*codec)->spec());
    handle->codec = *std::move(codec);
    *out = handle.release();
    return 0;
  });
}

void laconic_codec_destroy(laconic_codec* codec) { delete codec; }

const char* laconic_codec_spec(const laconic_codec* codec) {
  return guarded_value<const char*>("", [&](const char*& out) -> int32_t {
    if (codec == nullptr) return null_argument("codec");
    out = codec->codec->spec().canonical().c_str();
    return 0;
  });
}

const char* laconic_codec_json(const laconic_codec* codec) {
  return guarded_value<const char*>("", [&](const char*& out) -> int32_t {
    if (codec == nullptr) return null_argument("codec");
    out = codec->json.c_str();
    return 0;
  });
}

int32_t laconic_codec_max_frame_bytes(const laconic_codec* codec, uint64_t rows, uint64_t cols,
                                      uint64_t* bytes) {
  return guarded([&]() -> int32_t {
    if (codec == nullptr || bytes == nullptr) return null_argument("codec and bytes");
    auto bound = codec->codec->max_frame_bytes(rows, cols);
    if (!bound) return fail(std::move(bound).error());
    *bytes = *bound;
    return 0;
  });
}

int32_t laconic_encode(const laconic_codec* codec, const laconic_tensor* source,
                       const laconic_place* place, laconic_residual* residual, void* out,
                       uint64_t capacity, uint64_t* written, void* stream) {
  return guarded([&]() -> int32_t {
    if (codec == nullptr || out == nullptr || written == nullptr)
      return null_argument("codec, out and written");
    laconic::TensorRef tensor;
    laconic_place p;
    if (const int32_t bad = read_tensor(source, "source", stream, &tensor); bad != 0) return bad;
    if (const int32_t bad = read_place(place, &p); bad != 0) return bad;
    auto bytes =
        codec->codec->encode(tensor, {p.seed, p.step, p.rank, p.world, 0, 1.0F}, p.parameter,
                             residual == nullptr ? nullptr : residual->residual.get(),
                             MutBytes(static_cast<uint8_t*>(out), capacity));
    if (!bytes) return fail(std::move(bytes).error());
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
                            const laconic_tensor* out, void* stream) {
  return guarded([&]() -> int32_t {
    if (codec == nullptr || (count != 0 && (frames == nullptr || bytes == nullptr)))
      return null_argument("codec, frames and bytes");
    laconic::TensorRef tensor;
    if (const int32_t bad = read_tensor(out, "out", stream, &tensor); bad != 0) return bad;
    std::array<Bytes, 16> few;
    std::vector<Bytes> many(count > few.size() ? count : 0);
    const std::span<Bytes> views =
        count > few.size() ? std::span<Bytes>(many) : std::span<Bytes>(few).first(count);
    for (uint32_t i = 0; i < count; ++i) {
      if (frames[i] == nullptr) return null_argument("a frame");
      views[i] = Bytes(static_cast<const uint8_t*>(frames[i]), bytes[i]);
    }
    auto done = codec->codec->decode(views, weight, add != 0, tensor);
    return done ? 0 : fail(std::move(done).error());
  });
}

int32_t laconic_frame_parse(const void* frame, uint64_t bytes, laconic_frame_info* info) {
  return guarded([&]() -> int32_t {
    if (frame == nullptr) return null_argument("frame");
    if (const int32_t bad = check_struct(info, "info"); bad != 0) return bad;
    auto view = laconic::parse_frame(Bytes(static_cast<const uint8_t*>(frame), bytes));
    if (!view) return fail(std::move(view).error());
    write_struct(to_c(*view, bytes), info);
    return 0;
  });
}

int32_t laconic_residual_create(uint64_t count, laconic_residual** out) {
  return guarded([&]() -> int32_t {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    auto residual = laconic::Residual::create(count);
    if (!residual) return fail(std::move(residual).error());
    *out = new laconic_residual{*std::move(residual)};
    return 0;
  });
}

int32_t laconic_residual_over(const laconic_tensor* values, laconic_residual** out) {
  return guarded([&]() -> int32_t {
    if (out == nullptr) return null_argument("out");
    *out = nullptr;
    laconic::TensorRef tensor;
    if (const int32_t bad = read_tensor(values, "values", nullptr, &tensor); bad != 0) return bad;
    auto residual = laconic::Residual::over(tensor);
    if (!residual) return fail(std::move(residual).error());
    *out = new laconic_residual{*std::move(residual)};
    return 0;
  });
}

void laconic_residual_destroy(laconic_residual* residual) { delete residual; }

float* laconic_residual_data(laconic_residual* residual) {
  return guarded_value<float*>(nullptr, [&](float*& out) -> int32_t {
    if (residual == nullptr) return null_argument("residual");
    out = residual->residual->values().data();
    return 0;
  });
}

uint64_t laconic_residual_count(const laconic_residual* residual) {
  return guarded_value<uint64_t>(0, [&](uint64_t& out) -> int32_t {
    if (residual == nullptr) return null_argument("residual");
    out = residual->residual->values().size();
    return 0;
  });
}

float* laconic_residual_state(laconic_residual* residual, uint64_t* count) {
  return guarded_value<float*>(nullptr, [&](float*& out) -> int32_t {
    if (count != nullptr) *count = 0;
    if (residual == nullptr || count == nullptr) return null_argument("residual and count");
    *count = residual->residual->state().size();
    out = residual->residual->state().data();
    return 0;
  });
}

int32_t laconic_residual_set_state(laconic_residual* residual, const float* state, uint64_t count) {
  return guarded([&]() -> int32_t {
    if (residual == nullptr || (state == nullptr && count != 0))
      return null_argument("residual and state");
    if (count > laconic::kFrameMaxCount)  // no array is that long: do not even form its end
      return fail(Errc::out_of_memory, "not enough memory for a codec state of that size");
    const std::span<const float> values(state, count);
    if (const size_t at = first_not_finite(values); at != count) {
      return fail(Error{Errc::state_corrupt,
                        "value " + std::to_string(at) + " of the codec state is not finite",
                        "use an older checkpoint"});
    }
    residual->residual->set_state(values);
    return 0;
  });
}

}  // extern "C"
