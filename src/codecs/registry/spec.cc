// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// spec     = name [ ":" option { "," option } ] { "+" modifier }
// option   = key "=" value
// modifier = "ef" | "noef" | "ema" [ "=" value ] | "momentum" [ "=" value ] | "decay" "=" value
// Reserved for later: stages joined by "|".
#include "laconic/spec.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/hash.h"
#include "base/nearest.h"
#include "base/options.h"
#include "base/quoted.h"
#include "codecs/registry/registered.h"
#include "laconic/registry.h"

namespace laconic {
namespace {

constexpr std::size_t kMaxSpecLength = 1024;

OptionText in_spec(std::string_view spec) {
  return {"spec", spec, "write name:key=value,key=value+ef, for example topk:ratio=0.01"};
}

Error syntax(std::string_view spec, std::string_view what) {
  return syntax_error(in_spec(spec), what);
}

// ---- codec ----

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> names;
  for (const CodecTable* codec : all_codecs()) names.push_back(codec->info.name);
  return names;
}

/// Names that people bring along from papers and from other programs, and what to write instead.
constexpr std::array<std::pair<std::string_view, std::string_view>, 15> kForeignNames{{
    {"1bit", "the codec is called onebit"},
    {"8bit", "the codec is called u8"},
    {"auto", "this version does not choose a codec by itself: name one"},
    {"batched_powersgd", "the codec here is powersgd; batching is done by the bucket"},
    {"cgx", "the nearest codec here is qsgd:norm=max"},
    {"gaussiank", "the nearest codec here is sidco"},
    {"int4", "4-bit lanes are not in this version; 4 bits by qsgd:levels=7"},
    {"lz4", "lossless stages are not in this version"},
    {"naturalcompression", "the codec is called natural"},
    {"redsync", "the nearest codec here is sidco"},
    {"sign", "the codec is called signsgd, with error feedback efsignsgd"},
    {"thresholdv", "the codec is called threshold"},
    {"threelc", "the codec is called 3lc"},
    {"wangni", "the nearest codec here is randomk:rescale=on"},
    {"zstd", "lossless stages are not in this version"},
}};

std::string_view foreign_name(std::string_view name) {
  for (const auto& [foreign, advice] : kForeignNames) {
    if (foreign == name) return advice;
  }
  return {};
}

Error unknown_codec(std::string_view name) {
  const auto names = codec_names();
  std::string hint;
  if (const auto advice = foreign_name(name); !advice.empty()) {
    hint = concat({advice, "; "});
  } else if (const auto near = nearest(name, names); !near.empty()) {
    hint = guess(near);
  }
  return {Errc::unknown_codec, concat({"unknown codec ", quoted(name)}),
          concat({hint, "codecs: ", joined(names), " (laconic list)"})};
}

// ---- modifiers ----

/// How modifiers are called, by MemoryKind.
constexpr std::array<std::string_view, 4> kKinds{"noef", "ef", "ema", "momentum"};
constexpr std::string_view kDecay = "decay";

std::string_view kind_name(MemoryKind kind) { return kKinds[static_cast<size_t>(kind)]; }

// A factor is divided by when an exchange is undone: none near 0.
constexpr Field kFactor = real_field<&MemorySettings::factor>(
    "factor", 0.9, 0.1, 1, "share of the old value in a running mean or in momentum", true);
constexpr Field kDecayField = real_field<&MemorySettings::decay>(
    "decay", 1, 0.1, 1, "share of the residual that the next step adds");

bool has_factor(MemoryKind kind) { return kind == MemoryKind::ema || kind == MemoryKind::momentum; }

Error unknown_modifier(std::string_view spec, std::string_view modifier) {
  std::vector<std::string_view> names(kKinds.begin(), kKinds.end());
  names.push_back(kDecay);
  const auto near = nearest(modifier, names);
  std::string what = concat({"unknown modifier ", quoted(modifier)});
  if (!near.empty()) what += concat({", did you mean '", near, "'?"});
  Error error = syntax(spec, what);
  error.hint =
      "modifiers: +ef (error feedback on), +noef (off), +ema=0.9, +momentum=0.9, +decay=0.9";
  return error;
}

/// Modifiers as they stand in a spec.
struct Modifiers {
  std::optional<MemorySettings> kind;  // and its factor
  std::optional<float> decay;
};

Result<void> read_factor(const Field& field, std::string_view spec, std::string_view name,
                         std::string_view value, MemorySettings& settings) {
  if (value.empty()) return syntax(spec, concat({"+", name, " has no value"}));
  if (auto read = read_member(field, value, &settings); !read) {
    Error error = std::move(read).error();
    error.message = concat({"spec ", quoted(spec), ": +", name, "=", error.message});
    error.hint = concat({"+", name, " accepts ", range_text(field)});
    return error;
  }
  return {};
}

Result<void> read_modifier(std::string_view spec, std::string_view text, Modifiers& modifiers) {
  const std::size_t equals = std::min(text.find('='), text.size());
  const std::string_view name = text.substr(0, equals);
  const bool valued = equals < text.size();
  const std::string_view value = valued ? text.substr(equals + 1) : std::string_view();
  if (name == kDecay) {
    if (modifiers.decay) return syntax(spec, "+decay is given twice");
    MemorySettings settings;
    if (auto read = read_factor(kDecayField, spec, name, value, settings); !read) return read;
    modifiers.decay = settings.decay;
    return {};
  }
  const auto* const found = std::find(kKinds.begin(), kKinds.end(), name);
  if (found == kKinds.end()) return unknown_modifier(spec, name);
  if (modifiers.kind) return syntax(spec, "give only one of +ef, +noef, +ema and +momentum, once");
  MemorySettings settings;
  settings.kind = static_cast<MemoryKind>(found - kKinds.begin());
  if (has_factor(settings.kind)) {
    settings.factor = 0.9F;
    if (valued) {
      if (auto read = read_factor(kFactor, spec, name, value, settings); !read) return read;
    }
  } else if (valued) {
    return syntax(spec, concat({"+", name, " takes no value"}));
  }
  modifiers.kind = settings;
  return {};
}

MemorySettings default_memory(const Contract& contract) {
  const MemoryKind kind = contract.memory_default;
  return {kind, has_factor(kind) ? contract.memory_factor : 0.0F};
}

std::string why_no_feedback(const Contract& contract) {
  if (contract.lossless) return "it is lossless and has no error to feed back";
  if (contract.unbiased) {
    return "it is unbiased and may send more than its input, so a residual would grow";
  }
  return "its contract excludes it";
}

/// "+noef, +ef or +momentum"
std::string memories_text(const Contract& contract) {
  std::string text = "+noef";
  for (const auto kind : {MemoryKind::residual, MemoryKind::ema, MemoryKind::momentum}) {
    if (in_memory_set(contract.memories, kind)) text += concat({", +", kind_name(kind)});
  }
  return text;
}

Error memory_refused(const CodecTable& codec, std::string_view spec, const Contract& contract,
                     MemoryKind kind) {
  const std::string head = concat({"spec ", quoted(spec), ": ", codec.info.name});
  if (kind == MemoryKind::residual) {
    const bool settings = Spec::defaults(codec).feedback();  // others would take it
    return {Errc::unsupported,
            concat({head, settings ? " with these settings" : "",
                    " supports no error feedback: ", why_no_feedback(contract)}),
            settings ? "remove +ef or the settings" : "remove +ef"};
  }
  return {Errc::unsupported,
          concat({head,
                  kind == MemoryKind::ema
                      ? " supports no running mean: engines add its values, or it selects elements"
                      : " supports no momentum: only codecs that select elements mask it"}),
          concat({"it supports: ", memories_text(contract)})};
}

Result<MemorySettings> memory_of(const CodecTable& codec, std::string_view spec,
                                 const Contract& contract, const Modifiers& modifiers) {
  MemorySettings memory = modifiers.kind.value_or(default_memory(contract));
  const bool known = in_memory_set(contract.memories, memory.kind);
  if (!known) return memory_refused(codec, spec, contract, memory.kind);
  if (modifiers.decay) {
    if (memory.kind != MemoryKind::residual) {
      return Error{Errc::unsupported,
                   concat({"spec ", quoted(spec), ": +decay needs a residual, and +",
                           kind_name(memory.kind), " has none that decays"}),
                   "remove +decay, or use +ef if the codec supports it"};
    }
    memory.decay = *modifiers.decay;
  }
  return memory;
}

}  // namespace

Result<Spec> Spec::parse(std::string_view text,
                         std::span<const codecs::Registered* const> registered) {
  if (text.size() > kMaxSpecLength) return syntax(text, "longer than 1024 characters");
  if (text.find('|') != std::string_view::npos) {
    return Error{Errc::unsupported,
                 concat({"spec ", quoted(text), ": stages joined by '|' are not supported"}),
                 "use one codec"};
  }
  auto modifiers = split(text, '+');
  const std::string_view body = modifiers.front();
  modifiers.erase(modifiers.begin());

  const std::size_t colon = body.find(':');
  const std::string_view name = body.substr(0, colon);
  if (name.empty()) return syntax(text, "the codec's name is missing");
  const auto found =
      std::ranges::find(registered, body, [](const auto* r) { return r->codec().info.name; });
  const codecs::Registered* own = found == registered.end() ? nullptr : *found;
  const CodecTable* codec = own != nullptr ? &own->codec() : find_codec(name);
  if (codec == nullptr) return unknown_codec(name);

  Spec spec(*codec, own);
  if (colon != std::string_view::npos && own == nullptr) {
    if (auto read = read_options(in_spec(text), codec->info.name, codec->fields,
                                 body.substr(colon + 1), spec.params_.bytes.data());
        !read) {
      return std::move(read).error();
    }
  }
  Modifiers given;
  for (const std::string_view modifier : modifiers) {
    if (auto read = read_modifier(text, modifier, given); !read) return std::move(read).error();
  }
  auto memory = memory_of(*codec, text, spec.contract(), given);
  if (!memory) return std::move(memory).error();
  spec.memory_ = *memory;
  spec.finish();
  return spec;
}

Spec::Spec(const CodecTable& codec, const codecs::Registered* registered)
    : codec_(&codec), registered_(registered) {
  codec.defaults(params_.bytes.data());
  memory_ = default_memory(contract());
  finish();
}

Spec Spec::defaults(const CodecTable& codec) { return Spec(codec); }

void Spec::prepare(uint32_t world) {
  if (codec_->prepare != nullptr) codec_->prepare(params_.bytes.data(), world);
}

void Spec::move(const Field& field, double value, uint32_t world) {
  field.set(params_.bytes.data(), value);
  prepare(world);
}

std::string Spec::moved_text() const {
  Spec now = *this;
  now.finish();
  return now.canonical_;
}

void Spec::finish() {
  prepare(1);
  ParamBlock defaults{};
  codec_->defaults(defaults.bytes.data());
  canonical_ = codec_->info.name;
  char separator = ':';
  for (const Field& field : codec_->fields) {
    if (field.get(params()) == field.get(defaults.bytes.data())) continue;
    canonical_ += separator;
    canonical_ += concat({field.name, "=", member_text(field, params())});
    separator = ',';
  }
  const MemorySettings usual = default_memory(contract());
  if (memory_.kind != usual.kind || memory_.factor != usual.factor) {
    canonical_ += concat({"+", kind_name(memory_.kind)});
    if (has_factor(memory_.kind)) {
      canonical_ += concat({"=", member_text(kFactor, &memory_)});
    }
  }
  if (memory_.decay != 1.0F) {
    canonical_ += concat({"+", kDecay, "=", member_text(kDecayField, &memory_)});
  }
  hash_ = hash64(canonical_);
}

}  // namespace laconic
