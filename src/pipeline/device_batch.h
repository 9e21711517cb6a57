// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Units on a GPU through their codec's twin: gradients, residuals and sums are in the device's
// memory, payloads in the host's. Each call waits until its work is done.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "device/codec.h"
#include "device/program.h"
#include "laconic/codec.h"
#include "laconic/spec.h"

namespace laconic::pipeline {

/// A unit's gradient on the device, and the residual: null, or one for each element.
struct DeviceUnit {
  Unit unit;
  Place place;
  const void* values = nullptr;
  DType dtype = DType::f32;  ///< f32, f16 or bf16
  float* residual = nullptr;
  std::span<const float> state{};  ///< of the codec, on the host; empty: as at the start
  /// A gradient of zeros has a payload, too: lanes without a residual, which carry -0.
  bool sends_zeros = false;
};

struct DevicePayload {
  device::Verdict verdict = device::Verdict::zero;
  std::vector<uint8_t> bytes;  ///< empty unless the verdict gives one
};

/// A failure is one Error with the driver's call. Nothing of the batch runs after it, and its
/// results are undefined.
class DeviceBatch {
 public:
  /// The codec has kernels and one round, which needs nothing of other ranks: what it sent can be
  /// checked and decoded.
  static bool decodes(const Spec& spec);
  /// And the spec has at most a residual without decay.
  static bool encodes(const Spec& spec);
  static Error no_kernels(const Spec& spec);
  /// unsupported unless decodes(spec).
  static Result<DeviceBatch> create(const Spec& spec,
                                    std::shared_ptr<const device::Program> program);

  /// Later calls begin after all work that is in `stream` now.
  Result<void> follow(device::CudaStream stream);
  [[nodiscard]] const Spec& spec() const noexcept { return spec_; }
  /// Payloads and residuals of the CPU, bit for bit. All units have a residual, or none.
  /// unsupported unless encodes(spec).
  Result<std::vector<DevicePayload>> encode(std::span<const DeviceUnit> units);
  /// For each of them, any bytes: is it a payload of the unit?
  Result<std::vector<bool>> check(const Unit& unit, std::span<const Bytes> payloads);
  /// values = ((base + w0·d0) + w1·d1) + …, base = values if `add`, else 0. Terms are checked.
  Result<void> decode(const Unit& unit, std::span<const Term> terms, float* values, bool add);
  /// Takes the memory of that decode, which then does not run out of it.
  Result<void> reserve_decode(const Unit& unit, std::span<const Term> terms);
  /// As CodecTable::finish: the mean of what was decoded with weight 1 each.
  Result<void> finish(const Unit& unit, float* values);
  Result<void> clear(void* at, uint64_t bytes);
  /// Memory for `count` floats, lent until the next call of this.
  Result<float*> lend(uint64_t count);
  /// floats = halves, of f16 or bf16, and halves = floats, rounded.
  Result<void> widen(float* floats, const void* halves, DType dtype, uint64_t count);
  Result<void> narrow(void* halves, DType dtype, const float* floats, uint64_t count);
  /// Kernels of the last call, on the device.
  [[nodiscard]] double seconds() const noexcept { return seconds_; }

 private:
  class Cut;
  struct DecodeCut;
  DeviceBatch(const Spec& spec, const device::Codec& twin,
              std::shared_ptr<const device::Program> program, device::Stream stream,
              device::Event begin, device::Event end);

  /// Both memories, with the same layout up to `pinned` bytes.
  Result<void> reserve(uint64_t device, uint64_t pinned);
  template <class T>
  [[nodiscard]] T* host(uint64_t at) const {
    return reinterpret_cast<T*>(pinned_.at() + at);
  }
  template <class T>
  [[nodiscard]] T* there(uint64_t at) const {
    return reinterpret_cast<T*>(memory_.at() + at);
  }
  /// Copies [0, bytes) to the device, lets the twin issue its launches, and copies `back` to the
  /// host.
  template <class Launches>
  Result<void> run(uint64_t bytes, uint64_t back, uint64_t back_bytes, Launches&& launches);
  Result<void> decode_some(const Unit& unit, std::span<const Term> terms, float* values, bool add);
  /// One row, and its launches.
  template <class Row, class Launches>
  Result<void> run_row(const Row& row, Launches&& launches);
  /// The Error, once nothing runs any more.
  Error failed(Error error);

  Spec spec_;
  const device::Codec* twin_;
  std::shared_ptr<const device::Program> program_;
  device::Memory memory_, pinned_, lent_;
  device::Event begin_, end_;
  device::Stream stream_;  // ends first: it waits
  double seconds_ = 0;
};

}  // namespace laconic::pipeline
