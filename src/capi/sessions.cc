// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A session: a model's exchange on one rank.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "capi/handles.h"
#include "capi/settings.h"
#include "session/describe.h"
#include "session/node_reports.h"

namespace {

using laconic::Bytes;
using laconic::Errc;
using laconic::capi::check_threads;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::guarded_value;
using laconic::capi::keep;
using laconic::capi::null_argument;
using laconic::capi::read_settings;
using laconic::capi::read_struct;

constexpr uint32_t kSums = 1U << LACONIC_F32 | 1U << LACONIC_F16 | 1U << LACONIC_BF16 |
                           1U << LACONIC_U8 | 1U << LACONIC_I32;

int32_t check_rules(const laconic_rule* rules, uint32_t count) {
  if (rules == nullptr && count != 0) return null_argument("the rules");
  if (count > LACONIC_MAX_RULES)
    return fail(Errc::invalid_argument, "more than 31 rules", "one rule may match many parameters");
  return 0;
}

int32_t read_options(const laconic_session_options* theirs, laconic_session_options* options) {
  if (const int32_t bad = read_struct(theirs, "options", options); bad != 0) return bad;
  if (options->spec == nullptr) return null_argument("options.spec");
  if (options->strategy > LACONIC_STRATEGY_SERVER_SUM)
    return fail(Errc::invalid_argument, "unknown strategy number", "use a LACONIC_STRATEGY_ value");
  if ((options->engine_sums & ~kSums) != 0)
    return fail(Errc::invalid_argument, "engine_sums has a bit that is not an element type");
  if (options->short_sends > 1) return fail(Errc::invalid_argument, "short_sends must be 0 or 1");
  if (options->aggregates > 1) return fail(Errc::invalid_argument, "aggregates must be 0 or 1");
  if (options->owner_turns > 1) return fail(Errc::invalid_argument, "owner_turns must be 0 or 1");
  if (options->memory > LACONIC_MEMORY_CUDA)
    return fail(Errc::invalid_argument, "unknown memory", "use a LACONIC_MEMORY_ value");
  if (options->reserved != 0)
    return fail(Errc::invalid_argument, "the options' reserved must be 0");
  if (const int32_t bad = check_rules(options->rules, options->rule_count); bad != 0) return bad;
  return check_threads(options->threads);
}

laconic::collective::Options to_options(const laconic_session_options& options) {
  laconic::collective::Options o;
  o.rank = options.rank;
  o.world = options.world;
  o.ranks_per_host = std::max<uint32_t>(options.ranks_per_host, 1);
  o.seed = options.seed;
  o.small_elements = options.small_elements;
  o.strategy = static_cast<laconic::collective::StrategyKind>(options.strategy);
  o.caps.sums = options.engine_sums;
  o.caps.short_sends = options.short_sends != 0;
  o.caps.aggregates = options.aggregates != 0;
  o.threads = std::max<uint32_t>(options.threads, 1);
  static_assert(laconic::collective::kMaxWindow == LACONIC_MAX_WINDOW);
  static_assert(laconic::collective::kShortElements == LACONIC_SHORT_ELEMENTS);
  o.window = std::max<uint32_t>(options.window, 1);
  o.part = options.part;
  o.owner_turns = options.owner_turns != 0;
  o.node_shards = std::max<uint32_t>(options.node_shards, 1);
  o.node_shard = options.node_shard;
  return o;
}

int32_t read_rules(std::span<const laconic_rule> listed, std::vector<laconic::Rule>* rules) {
  for (const laconic_rule& theirs : listed) {
    if (theirs.match == nullptr) return null_argument("the match of a rule");
    if (theirs.optional > 1)
      return fail(Errc::invalid_argument, "a rule's optional must be 0 or 1");
    if (theirs.reserved != 0) return fail(Errc::invalid_argument, "a rule's reserved must be 0");
    laconic::Rule rule;
    rule.match = theirs.match;
    rule.spec = theirs.spec == nullptr ? "" : theirs.spec;
    rule.control = theirs.control == nullptr ? "" : theirs.control;
    rule.min_elements = theirs.min_elements;
    if (theirs.max_elements != 0) rule.max_elements = theirs.max_elements;
    rule.optional = theirs.optional != 0;
    rules->push_back(std::move(rule));
  }
  return 0;
}

int32_t read_codecs(const laconic_session_options& options, laconic::collective::Options* read) {
  if (options.codecs == nullptr && options.codec_count != 0) return null_argument("the codecs");
  if (options.codec_count > LACONIC_MAX_CODECS)
    return fail(Errc::invalid_argument, "more than 32 codecs",
                "register only codecs that specs name");
  for (const laconic_codec_table* theirs : std::span(options.codecs, options.codec_count)) {
    laconic_codec_table table;
    if (const int32_t bad = read_struct(theirs, "a codec table", &table); bad != 0) return bad;
    auto codec = laconic::codecs::Registered::create(table);
    if (!codec) return fail(std::move(codec).error());
    read->codecs.push_back(*std::move(codec));
  }
  return 0;
}

int32_t read_allocator(const laconic_device_allocator* theirs,
                       laconic::device::DeviceAllocator* allocator) {
  if (theirs == nullptr) return 0;
  laconic_device_allocator a;
  if (const int32_t bad = read_struct(theirs, "an allocator", &a); bad != 0) return bad;
  if (a.allocate == nullptr || a.release == nullptr) return null_argument("allocate and release");
  if (a.reserved != 0) return fail(Errc::invalid_argument, "the allocator's reserved must be 0");
  *allocator = {a.context, a.allocate, a.release};
  return 0;
}

}  // namespace

namespace laconic::capi {

int32_t read_settings(const laconic_settings* theirs, std::vector<Rule>* rules,
                      session::Change* change) {
  laconic_settings s;
  if (const int32_t bad = read_struct(theirs, "settings", &s); bad != 0) return bad;
  if (s.strategy != LACONIC_KEEP && s.strategy > LACONIC_STRATEGY_SERVER_SUM)
    return fail(Errc::invalid_argument, "unknown strategy number", "use a LACONIC_STRATEGY_ value");
  if (s.reserved != 0) return fail(Errc::invalid_argument, "the settings' reserved must be 0");
  if (s.rule_count != LACONIC_KEEP) {
    if (const int32_t bad = check_rules(s.rules, s.rule_count); bad != 0) return bad;
    if (const int32_t bad = read_rules({s.rules, s.rule_count}, rules); bad != 0) return bad;
    change->rules = *rules;
  }
  if (s.spec != nullptr) change->spec = s.spec;
  if (s.control != nullptr) change->control = s.control;
  if (s.down != nullptr) change->down = s.down;
  if (s.strategy != LACONIC_KEEP) {
    change->plan = collective::strategy_name(static_cast<collective::StrategyKind>(s.strategy));
  }
  return 0;
}

}  // namespace laconic::capi

extern "C" {

uint64_t laconic_parameter_id(const char* name) {
  return guarded_value<uint64_t>(0, [&](uint64_t& out) -> int32_t {
    if (name == nullptr) return null_argument("name");
    out = laconic::hash64(std::string_view(name));
    return 0;
  });
}

int32_t laconic_session_create(const laconic_session_options* options,
                               const laconic_parameter* parameters, uint32_t count,
                               laconic_session** out) {
  return guarded([&]() -> int32_t {
    if (out != nullptr) *out = nullptr;
    if (out == nullptr || (parameters == nullptr && count != 0))
      return null_argument("parameters and out");
    laconic_session_options o;
    if (const int32_t bad = read_options(options, &o); bad != 0) return bad;
    std::vector<laconic::collective::Parameter> list;
    list.reserve(count);
    for (const laconic_parameter& p : std::span(parameters, count)) {
      if (p.name == nullptr) return null_argument("the name of a parameter");
      list.push_back({p.name, p.rows, p.cols});
    }
    std::vector<laconic::Rule> rules;
    if (const int32_t bad = read_rules({o.rules, o.rule_count}, &rules); bad != 0) return bad;
    laconic::collective::Options options_read = to_options(o);
    if (const int32_t bad = read_codecs(o, &options_read); bad != 0) return bad;
    laconic::device::DeviceAllocator allocator;
    if (const int32_t bad = read_allocator(o.allocator, &allocator); bad != 0) return bad;
    std::shared_ptr<const laconic::device::Staging> gpu;
    if (o.memory == LACONIC_MEMORY_CUDA) {
      auto opened = laconic::pipeline::DeviceBatches::open(o.gpu, allocator);
      if (!opened) return fail(std::move(opened).error());
      gpu = *std::move(opened);
    }
    auto session = laconic::session::Session::create(
        o.spec, std::move(list), options_read, rules, o.control == nullptr ? "" : o.control,
        o.record == nullptr ? "" : o.record, o.down == nullptr ? "" : o.down, std::move(gpu));
    if (!session) return fail(std::move(session).error());
    auto handle = std::make_unique<laconic_session>();
    handle->session = *std::move(session);
    for (laconic_exchange& exchange : handle->exchanges) exchange.owner = handle.get();
    *out = handle.release();
    return 0;
  });
}

void laconic_session_destroy(laconic_session* session) { delete session; }

int32_t laconic_session_shard(const laconic_session* session, uint32_t parameter, uint64_t* first,
                              uint64_t* count) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || first == nullptr || count == nullptr)
      return null_argument("session, first and count");
    const auto& model = session->session->model();
    if (parameter >= model.parameters().size()) {
      return fail(Errc::invalid_argument, "the model has no such parameter",
                  "parameters count from 0, in the order of laconic_session_create");
    }
    const auto& held = model.assignment(parameter).held;
    *first = held.first;
    *count = held.count;
    return 0;
  });
}

int32_t laconic_session_reports(laconic_session* session, void* reports) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || reports == nullptr) return null_argument("session and reports");
    auto& own = *session->session;
    const auto held = own.hold();
    store_node_reports(own.active(), {static_cast<uint8_t*>(reports),
                                      LACONIC_REPORT_BYTES(own.model().options().world)});
    return 0;
  });
}

int32_t laconic_session_decide_by(laconic_session* session, const void* reports, uint64_t bytes) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || reports == nullptr) return null_argument("session and reports");
    auto& own = *session->session;
    const uint64_t one = LACONIC_REPORT_BYTES(own.model().options().world);
    if (bytes % one != 0) {
      return fail(Errc::invalid_argument, "these are not the reports of whole ranks",
                  "gather what laconic_session_reports writes from every rank of the node");
    }
    const auto held = own.hold();
    decide_by(own.active(), {static_cast<const uint8_t*>(reports), bytes}, one);
    return 0;
  });
}

int32_t laconic_session_agreement(const laconic_session* session, void* out) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || out == nullptr) return null_argument("session and out");
    auto& own = *session->session;
    const auto card = own.proposal().open() ? own.proposal().card() : agreement_card(own.active());
    static_assert(sizeof card == LACONIC_AGREEMENT_BYTES);
    std::memcpy(out, card.data(), card.size());
    return 0;
  });
}

int32_t laconic_session_check_agreement(laconic_session* session, const void* gathered) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || gathered == nullptr) return null_argument("session and gathered");
    auto& own = *session->session;
    const uint64_t world = own.model().options().world;
    const Bytes cards(static_cast<const uint8_t*>(gathered), world * LACONIC_AGREEMENT_BYTES);
    auto same =
        own.proposal().open() ? own.proposal().end(cards) : check_agreement(own.active(), cards);
    return same ? 0 : fail(std::move(same).error());
  });
}

int32_t laconic_session_set(laconic_session* session, const laconic_settings* settings) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    auto& own = *session->session;
    own.proposal().refuse(laconic::session::failure_card(
        {Errc::out_of_memory, "out of memory", {}}));  // should there be none for more
    std::vector<laconic::Rule> rules;
    laconic::session::Change change;
    if (const int32_t bad = read_settings(settings, &rules, &change); bad != 0) {
      own.proposal().refuse(laconic::session::failure_card(
          {static_cast<Errc>(bad), laconic_last_message(), laconic_last_hint()}));
      return bad;
    }
    auto ready = own.proposal().prepare(change);
    return ready ? 0 : fail(std::move(ready).error());
  });
}

int32_t laconic_session_begin_step(laconic_session* session, uint64_t step, uint32_t* version) {
  return guarded([&]() -> int32_t {
    if (session == nullptr || version == nullptr) return null_argument("session and version");
    const auto begun = session->session->begin_step(step);
    if (!begun) return fail(begun.error());
    *version = *begun;
    return 0;
  });
}

const char* laconic_session_explain(const laconic_session* session) {
  return guarded_value<const char*>("", [&](const char*& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    out = keep(laconic::session::explain(*session->session));
    return 0;
  });
}

const char* laconic_session_stats(const laconic_session* session) {
  return guarded_value<const char*>("", [&](const char*& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    out = keep(laconic::session::describe_stats(*session->session));
    return 0;
  });
}

int32_t laconic_session_layout_matters(const laconic_session* session) {
  return guarded_value<int32_t>(0, [&](int32_t& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    out = session->session->model().layout_matters() ? 1 : 0;
    return 0;
  });
}

int32_t laconic_session_all_raw(const laconic_session* session) {
  return guarded_value<int32_t>(0, [&](int32_t& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    const auto& model = session->session->model();
    out = 1;
    for (uint32_t i = 0; i < model.parameters().size(); ++i) {
      if (!model.assignment(i).raw) out = 0;
    }
    return 0;
  });
}

int32_t laconic_session_scale_residuals(laconic_session* session, float factor) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    if (!(factor > 0.0F) || !std::isfinite(factor))
      return fail(Errc::invalid_argument, "the factor must be positive and finite");
    if (session->session->in_flight() != 0) {
      return fail(Errc::exchange_order, "an exchange is in flight",
                  "scale residuals between two steps");
    }
    auto scaled = session->session->scale_residuals(factor);
    return scaled ? 0 : fail(std::move(scaled).error());
  });
}

int32_t laconic_session_flush(laconic_session* session, uint32_t steps) {
  return guarded([&]() -> int32_t {
    if (session == nullptr) return null_argument("session");
    auto asked = session->session->flush(steps);
    return asked ? 0 : fail(std::move(asked).error());
  });
}

double laconic_session_residual_norm(const laconic_session* session) {
  return guarded_value<double>(0.0, [&](double& out) -> int32_t {
    if (session == nullptr) return null_argument("session");
    out = session->session->stats().residual_norm;
    return 0;
  });
}

}  // extern "C"
