// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A session: a model's exchange on one rank.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "capi/handles.h"
#include "session/describe.h"

using laconic::Bytes;
using laconic::Errc;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::sized;

extern "C" {

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

}  // extern "C"
