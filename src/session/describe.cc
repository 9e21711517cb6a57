// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/describe.h"

#include <algorithm>

#include "base/field_text.h"
#include "base/json_text.h"
#include "kernels/device_images.h"
#include "laconic/laconic.h"
#include "laconic/version.h"

namespace laconic::session {
namespace {

std::string_view feedback_name(Feedback f) {
  switch (f) {
    case Feedback::never:
      return "never";
    case Feedback::own:
      return "own";
    case Feedback::aggregate:
      return "aggregate";
  }
  return "unknown";
}

std::string_view memory_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::none:
      return "none";
    case MemoryKind::residual:
      return "residual";
    case MemoryKind::ema:
      return "ema";
    case MemoryKind::momentum:
      return "momentum";
  }
  return "unknown";
}

/// The memory of a spec without a modifier, and all that a spec may have.
void put_memories(JsonText& json, const Contract& c) {
  json.field("memory_default", memory_name(c.memory_default)).key("memories").open('[');
  for (const MemoryKind kind :
       {MemoryKind::none, MemoryKind::residual, MemoryKind::ema, MemoryKind::momentum}) {
    if (in_memory_set(c.memories, kind)) json.value(memory_name(kind));
  }
  json.close(']');
}

void put_contract(JsonText& json, const Contract& c) {
  json.key("contract").open('{');
  json.field("merge", merge_name(c.merge)).field("feedback", feedback_name(c.feedback));
  json.field("feedback_default", c.memory_default != MemoryKind::none)
      .field("fused", c.fused)
      .field("stochastic", c.stochastic);
  json.field("unbiased", c.unbiased)
      .field("lossless", c.lossless)
      .field("exact_size", c.exact_size);
  put_memories(json, c);
  json.field("whole_parameter", c.whole_parameter)
      .field("contraction", static_cast<double>(c.contraction));
  json.field("headroom", c.headroom).field("granule", c.granule);
  json.close('}');
}

void put_value(JsonText& json, const Field& f, double value) {
  switch (f.type) {
    case FieldType::real:
      json.value(value);
      break;
    case FieldType::integer:
      json.value(static_cast<uint64_t>(value));
      break;
    case FieldType::word:
      json.value(f.words[static_cast<size_t>(value)]);
      break;
    case FieldType::flag:
      json.value(value != 0);
      break;
  }
}

/// A word has no range.
void put_bound(JsonText& json, const Field& f, std::string_view name, double value) {
  json.key(name);
  if (f.type == FieldType::word) {
    json.null();
  } else {
    put_value(json, f, value);
  }
}

void put_field(JsonText& json, const Field& f) {
  json.open('{').field("name", f.name).field("type", field_type_name(f.type));
  json.key("default");
  put_value(json, f, f.fallback);
  put_bound(json, f, "min", f.min);
  put_bound(json, f, "max", f.max);
  json.field("max_open", f.max_open);
  if (f.type == FieldType::word) {
    json.key("words").open('[');
    for (const auto word : f.words) json.value(word);
    json.close(']');
  }
  json.field("help", f.help).close('}');
}

}  // namespace

std::string_view method_name(Method method) noexcept {
  switch (method) {
    case Method::none:
      return "none";
    case Method::cast:
      return "cast";
    case Method::quantization:
      return "quantization";
    case Method::sparsification:
      return "sparsification";
    case Method::hybrid:
      return "hybrid";
    case Method::low_rank:
      return "low-rank";
  }
  return "unknown";
}

std::string_view merge_name(Merge merge) noexcept {
  switch (merge) {
    case Merge::none:
      return "none";
    case Merge::linear:
      return "linear";
    case Merge::set_union:
      return "set_union";
    case Merge::vote:
      return "vote";
  }
  return "unknown";
}

std::string describe_codecs(std::span<const CodecTable* const> codecs) {
  JsonText json;
  json.open('{').key("codecs").open('[');
  for (const CodecTable* codec : codecs) {
    const Spec spec = Spec::defaults(*codec);
    json.open('{').field("name", codec->info.name);
    json.field("id", uint32_t{codec->info.id}).field("version", uint32_t{codec->info.version});
    json.field("class", method_name(codec->info.method));
    json.field("summary", codec->info.summary)
        .field("source", codec->info.source)
        .field("zero_stays_zero", spec.contract().zero_stays_zero)
        .key("params")
        .open('[');
    for (const Field& f : codec->fields) put_field(json, f);
    json.close(']');
    put_contract(json, spec.contract());
    json.close('}');
  }
  json.close(']').close('}');
  return json.take();
}

std::string describe_spec(const Spec& spec) {
  JsonText json;
  json.open('{').field("spec", spec.canonical()).field("name", spec.codec().info.name);
  json.field("feedback", spec.feedback()).field("memory", memory_name(spec.memory().kind));
  json.field("zero_stays_zero", spec.contract().zero_stays_zero);
  put_contract(json, spec.contract());
  json.close('}');
  return json.take();
}

/// For a codec whose quantized values are summed.
void put_lanes(JsonText& json, const Spec& spec, uint32_t world) {
  const Plan plan = spec.codec().plan(spec.params(), {1, 1, 1, 0, 0}, world);
  json.field("lane_bits", 8 * dtype_size(plan.round[plan.rounds - 1].lane));
  json.key("table").open('[');
  for (const uint8_t value : spec.codec().table(spec.params())) json.value(uint64_t{value});
  json.close(']');
}

/// The settings that a control policy chose for a class.
void put_steering(JsonText& json, const Session& session, uint32_t of) {
  const auto& steering = session.active().steering;
  const auto found = steering ? steering->in_force(of) : Steering::InForce{};
  json.field("control", steering ? std::string_view(steering->control(of)) : "fixed");
  json.field("version", session.active().version());
  const auto set = session.active().succession.since;
  json.field("since_step", std::max(found.since_step, set.value_or(0)));
  const bool was_set = set && found.reason.empty();
  json.field("last_change", was_set ? std::string_view("set") : found.reason);
  json.field("network_ms", found.network_ms).field("target_ms", found.target_ms);
}

/// The spec of the means, if it differs.
void put_down(JsonText& json, const Spec* down) {
  json.key("down");
  if (down != nullptr) {
    json.value(down->canonical());
  } else {
    json.null();
  }
}

/// By rule, the call's last: the current settings of its parameters.
void put_settings(JsonText& json, const Session& session) {
  const collective::Model& model = session.model();
  json.key("settings").open('[');
  for (uint32_t k = 1; k <= model.classes(); ++k) {
    const uint32_t c = k % model.classes();
    uint64_t parameters = 0, elements = 0;
    for (uint32_t i = 0; i < model.parameters().size(); ++i) {
      if (model.class_of(i) != c) continue;
      ++parameters;
      elements += model.whole()[i].count();
    }
    json.open('{').field(
        "rule", c == 0 ? std::string_view("*") : session.active().asked.rules[c - 1].match);
    json.field("parameters", parameters).field("elements", elements);
    json.field("spec", model.spec(c).moved_text());
    put_down(json, collective::down_of(model, c));
    const auto& steering = session.active().steering;
    const bool dense = steering && steering->in_force(c).uncompressed;
    json.field("strategy",
               dense ? std::string_view("uncompressed") : strategy_name(model.choice(c).strategy));
    json.field("reason", model.choice(c).reason);
    json.field("zero_stays_zero", model.spec(c).contract().zero_stays_zero &&
                                      model.spec(c, 1).contract().zero_stays_zero);
    json.field("memory_bytes", session.active().state->held_by_class(c));
    put_steering(json, session, c);
    json.close('}');
  }
  json.close(']');
}

/// Members are null where the session has the whole model.
void put_nodes(JsonText& json, const collective::Options& options) {
  json.key("nodes").open('{');
  if (options.node_shards > 1) {
    json.field("count", options.world).field("ranks", options.node_shards);
    json.field("local_rank", options.node_shard);
  } else {
    for (const char* const key : {"count", "ranks", "local_rank"}) json.key(key).null();
  }
  json.close('}');
}

void put_record(JsonText& json, const Session& session) {
  json.key("record");
  const Recorder* recorder = session.recorder();
  if (recorder == nullptr) {
    json.null();
    return;
  }
  json.open('{').field("file", std::string_view(recorder->file()));
  json.field("steps", recorder->steps());
  json.field("trouble", std::string_view(recorder->trouble())).close('}');
}

/// Bytes that are expected to leave a host in a step, and those of a float32 ring. Null: none does.
void put_port(JsonText& json, const Session& session) {
  const collective::Model& model = session.model();
  const collective::Options& options = model.options();
  json.key("port");
  if (options.ranks_per_host >= options.world) {
    json.null();
    return;
  }
  const uint32_t behind = collective::ranks_behind_port(options);
  const auto& steering = session.active().steering;
  uint64_t bytes = 0, ring = 0;
  for (uint32_t c = 0; c < model.classes(); ++c) {
    const uint64_t dense = collective::dense_bytes_of_class(model, c);
    const bool uncompressed = steering && steering->in_force(c).uncompressed;
    bytes += uncompressed ? dense : collective::bytes_of_class(model, c, behind);
    ring += dense;
  }
  json.open('{').field("ranks", behind).field("bytes", bytes).field("ring_bytes", ring).close('}');
}

/// Elements that have one owner because a parameter is too small for a range each, of all.
double whole_share(const collective::Model& model) {
  uint64_t whole = 0, total = 0;
  for (uint32_t i = 0; i < model.parameters().size(); ++i) {
    const uint64_t count = model.parameters()[i].count();
    const bool owned = model.strategy_of(i) == collective::StrategyKind::two_shot;
    whole += owned && model.assignment(i).pieces.size() == 1 ? count : 0;
    total += count;
  }
  return total == 0 ? 0 : static_cast<double>(whole) / static_cast<double>(total);
}

std::string explain(const Session& session) {
  const Memory memory = memory_of(session);
  const auto settings = session.hold();  // which change while training runs
  const collective::Model& model = session.model();
  const collective::Options& options = model.options();
  JsonText json;
  json.open('{').field("spec", model.spec().canonical());
  put_down(json, collective::down_of(model, 0));
  json.field("feedback", model.spec().feedback())
      .field("memory", memory_name(model.spec().memory().kind));
  json.field("strategy", strategy_name(model.choice().strategy))
      .field("reason", model.choice().reason);
  if (const Spec& codes = model.spec_of_codes(); codes.codec().table != nullptr)
    put_lanes(json, codes, options.world);
  json.field("rank", options.rank).field("world", options.world).field("seed", options.seed);
  json.field("small_elements", options.small_elements).field("threads", options.threads);
  json.field("window", options.window).field("part", options.part);
  json.field("isa", isa_name(best_isa()));
  json.field("codecs", session.active().asked.gpu != nullptr ? "device" : "host");
  json.field("residual_bytes", memory.residual_bytes)
      .field("state_bytes", memory.state_bytes)
      .field("exchange_bytes", memory.exchange_bytes);
  put_nodes(json, options);
  put_settings(json, session);
  put_record(json, session);
  uint64_t raw = 0, total = 0;
  json.key("parameters").open('[');
  for (uint32_t i = 0; i < model.parameters().size(); ++i) {
    const auto& p = model.whole()[i];
    const auto& a = model.assignment(i);
    const Spec& spec = model.spec(model.class_of(i));
    const bool by_server = model.strategy_of(i) == collective::StrategyKind::server_sum;
    const auto [expected, bytes] = collective::payload_of(model, i);
    json.open('{').field("name", p.name).field("elements", p.count());
    json.field("codec", a.raw ? std::string_view("none") : std::string_view(spec.canonical()));
    const Spec* const down = a.raw ? nullptr : collective::down_of(model, model.class_of(i));
    if (a.raw && by_server) json.field("lane", dtype_name(DType::i32));
    put_down(json, down);
    json.field("reason", a.reason);
    json.field("pieces", static_cast<uint64_t>(a.pieces.size()))
        .field("payload_bytes_expected", expected)
        .field("payload_bytes_at_most", bytes);
    if (down != nullptr) {
      const auto means = collective::payload_of(model, i, 1);
      json.field("mean_bytes_expected", means.expected).field("mean_bytes_at_most", means.at_most);
    }
    json.close('}');
    raw += a.raw ? p.count() : 0;
    total += p.count();
  }
  json.close(']').field("elements", total).field("uncompressed_elements", raw);
  json.field("whole_share", whole_share(model));
  put_port(json, session);
  json.close('}');
  return json.take();
}

std::string describe_stats(const Session& session) {
  const Stats s = session.stats();
  JsonText json;
  json.open('{')
      .field("steps", s.steps)
      .field("exchanges", s.exchanges)
      .field("elements", s.elements);
  json.field("dense_bytes", s.dense_bytes).field("wire_bytes", s.counters.wire_bytes);
  const double wire = static_cast<double>(s.counters.wire_bytes);
  const double nothing_sent = s.alone ? 1.0 : 0.0;
  json.field("ratio", wire > 0 ? static_cast<double>(s.dense_bytes) / wire : nothing_sent);
  json.field("port_bytes", s.counters.port_bytes).key("port_ratio");
  if (s.counters.port_bytes == 0) {  // all are on one host, or nothing was sent
    json.null();
  } else {
    json.value(static_cast<double>(s.dense_bytes) / static_cast<double>(s.counters.port_bytes));
  }
  json.field("rounds", s.counters.rounds).field("overflow_repeats", s.counters.overflow_repeats);
  json.field("zero_units", s.counters.zero_units)
      .field("non_finite_units", s.counters.non_finite_units)
      .field("residual_resets", s.counters.residual_resets);
  json.field("fallbacks", s.fallbacks).field("flushes", s.flushes).field("failures", s.failures);
  json.field("excluded_granules", s.counters.excluded_granules)
      .field("partial_granules", s.counters.partial_granules)
      .field("out_of_range", s.counters.out_of_range);
  json.field("parts", s.driver.parts).field("coalesced", s.driver.coalesced);
  json.field("window_wait_seconds", s.driver.window_wait_seconds);
  if (s.driver.node_seconds > 0) {
    json.field("node_bytes", s.driver.node_bytes).field("node_seconds", s.driver.node_seconds);
  }
  json.field("setting_changes", s.setting_changes).field("held_steps", s.held_steps);
  json.field("reports_missing", s.reports_missing)
      .field("network_seconds", s.network_seconds)
      .field("straggler_seconds", s.straggler_seconds);
  json.field("flush_steps_left", s.flush_steps_left).field("exchange_layouts", s.layouts);
  json.field("encode_seconds", s.encode_seconds).field("decode_seconds", s.decode_seconds);
  const auto settings = session.hold();
  const pipeline::DeviceBatches* const device = session.active().device.get();
  json.field("device_bytes", device ? device->staging().gpu()->allocated() : 0)
      .field("payload_bytes_staged", device ? device->staged_bytes() : 0);
  json.field("residual_bytes", s.residual_bytes).field("residual_norm", s.residual_norm).close('}');
  return json.take();
}

std::string describe_build() {
  JsonText json;
  json.open('{')
      .field("version", LACONIC_VERSION_STRING)
      .field("abi", static_cast<uint64_t>(LACONIC_ABI_VERSION));
  json.field("compiler", __VERSION__).key("isas").open('[');
  for (const Isa isa : available_isas()) json.value(isa_name(isa));
  json.close(']').field("isa", isa_name(best_isa())).close('}');
  return json.take();
}

std::string describe_device(const std::string& driver) {
  const kernels::DeviceFound found =
      driver.empty() ? kernels::find_device() : kernels::find_device(driver);
  JsonText json;
  json.open('{').field("gpu", found.gpu).field("driver", found.driver).field("image", found.image);
  json.field("why_not", found.why_not).key("embedded").open('[');
  for (const device::Image& image : kernels::device_images()) json.value(image.name());
  json.close(']').close('}');
  return json.take();
}

}  // namespace laconic::session
