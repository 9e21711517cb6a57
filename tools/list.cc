// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic list: what can be named in a spec.
#include <fmt/format.h>

#include <array>
#include <memory>

#include "codecs/registry/field_text.h"
#include "command.h"
#include "laconic/registry.h"
#include "laconic/spec.h"
#include "output.h"

namespace laconic::tools {
namespace {

struct Options {
  std::string codec;
  bool json = false;
  bool markdown = false;
};

constexpr std::array<std::string_view, 4> kMerge{"none", "linear", "set_union", "vote"};
constexpr std::array<std::string_view, 3> kFeedback{"never", "own", "aggregate"};

std::string_view merge_name(Merge merge) { return kMerge[static_cast<std::size_t>(merge)]; }
std::string_view feedback_name(Feedback feedback) {
  return kFeedback[static_cast<std::size_t>(feedback)];
}

// ---- JSON ----

Json json_value(const Field& field, double value) {
  if (field.type == FieldType::word) return codecs::value_text(field, value);
  if (field.type == FieldType::flag) return value != 0;
  if (field.type == FieldType::integer) return static_cast<int64_t>(value);
  return value;
}

Json json_field(const Field& field) {
  Json json{{"name", field.name},
            {"type", codecs::field_type_name(field.type)},
            {"default", json_value(field, field.fallback)},
            {"min", field.type == FieldType::word ? Json() : json_value(field, field.min)},
            {"max", field.type == FieldType::word ? Json() : json_value(field, field.max)},
            {"max_open", field.max_open},
            {"help", field.help}};
  if (field.type == FieldType::word)
    json["words"] = std::vector<std::string_view>(field.words.begin(), field.words.end());
  return json;
}

Json json_contract(const Contract& contract) {
  return {{"merge", merge_name(contract.merge)},
          {"feedback", feedback_name(contract.feedback)},
          {"feedback_default", contract.feedback_default},
          {"fused", contract.fused},
          {"stochastic", contract.stochastic},
          {"unbiased", contract.unbiased},
          {"lossless", contract.lossless},
          {"exact_size", contract.exact_size},
          {"whole_parameter", contract.whole_parameter},
          {"contraction", contract.contraction},
          {"headroom", contract.headroom},
          {"granule", contract.granule}};
}

Json json_codec(const CodecTable& codec) {
  Json params = Json::array();
  for (const Field& field : codec.fields) params.push_back(json_field(field));
  return {{"name", codec.info.name},
          {"id", codec.info.id},
          {"version", codec.info.version},
          {"summary", codec.info.summary},
          {"source", codec.info.source},
          {"params", params},
          {"contract", json_contract(Spec::defaults(codec).contract())}};
}

// ---- tables ----

std::string feedback_text(const Contract& contract) {
  if (contract.feedback == Feedback::never) return "never";
  return contract.feedback_default ? "on" : "off";
}

/// Bytes on the wire of a 1024 x 1024 parameter at the defaults, all rounds.
std::string ratio_text(const CodecTable& codec) {
  constexpr uint64_t kSide = 1024;
  const Spec spec = Spec::defaults(codec);
  const Plan plan = codec.plan(spec.params(), {kSide * kSide, kSide, kSide, 0, 0}, 2);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.rounds; ++i) bytes += plan.round[i].bytes;
  const double ratio = 4.0 * kSide * kSide / static_cast<double>(bytes);
  return fmt::format("{}{:.{}f}", spec.contract().exact_size ? "" : "at least ", ratio,
                     ratio < 10 ? 1 : 0);
}

std::string keys_text(const CodecTable& codec) {
  std::string text;
  for (const Field& field : codec.fields) {
    text += fmt::format("{}{}={}", text.empty() ? "" : ", ", field.name,
                        codecs::value_text(field, field.fallback));
  }
  return text;
}

Table codec_table() {
  Table table({{"codec"},
               {"summary"},
               {"ratio", Table::Align::right},
               {"feedback"},
               {"adds on the wire"},
               {"keys and defaults"}});
  for (const CodecTable* codec : all_codecs()) {
    const Contract contract = Spec::defaults(*codec).contract();
    table.add({std::string(codec->info.name), std::string(codec->info.summary), ratio_text(*codec),
               feedback_text(contract), contract.merge == Merge::linear ? "yes" : "no",
               keys_text(*codec)});
  }
  return table;
}

Table key_table(std::span<const CodecTable* const> of) {
  Table table({{"codec"}, {"key"}, {"default"}, {"accepts"}, {"meaning"}});
  for (const CodecTable* codec : of) {
    for (const Field& field : codec->fields) {
      table.add({std::string(codec->info.name), std::string(field.name),
                 codecs::value_text(field, field.fallback), codecs::range_text(field),
                 std::string(field.help)});
    }
  }
  return table;
}

int print_one(const CodecTable& codec, bool json) {
  if (json) {
    print_json({{"codecs", Json::array({json_codec(codec)})}});
    return kFine;
  }
  const Contract contract = Spec::defaults(codec).contract();
  fmt::print("{}: {}\n", codec.info.name, codec.info.summary);
  fmt::print("source: {}\n", codec.info.source);
  fmt::print("ratio {} (1024 x 1024, defaults), error feedback {}, merge {}\n", ratio_text(codec),
             feedback_text(contract), merge_name(contract.merge));
  if (codec.fields.empty()) return kFine;
  fmt::print("\n");
  const CodecTable* const of[] = {&codec};
  key_table(of).print();
  return kFine;
}

int print_all(const Options& options) {
  if (options.json) {
    Json codecs = Json::array();
    for (const CodecTable* codec : all_codecs()) codecs.push_back(json_codec(*codec));
    print_json({{"codecs", codecs}});
  } else if (options.markdown) {
    codec_table().print_markdown();
    fmt::print("\n");
    key_table(all_codecs()).print_markdown();
  } else {
    codec_table().print();
    fmt::print(
        "\nratio: input bytes / payload bytes of a 1024 x 1024 parameter. laconic list CODEC: its "
        "keys.\n");
  }
  return kFine;
}

int list(const Options& options) {
  if (options.codec.empty()) return print_all(options);
  const auto spec = Spec::parse(options.codec);  // for its error, which names the nearest codec
  if (!spec) return fail(spec.error(), options.json, kUsage);
  return print_one(spec->codec(), options.json);
}

}  // namespace

Run add_list(CLI::App& program) {
  CLI::App* command =
      program.add_subcommand("list", "the codecs, what they promise and their keys");
  const auto options = std::make_shared<Options>();
  command->add_option("codec", options->codec, "only this one, with the meaning of its keys");
  auto* json = command->add_flag("--json", options->json, "machine-readable");
  command->add_flag("--markdown", options->markdown, "the tables of docs/guide/specs.md")
      ->excludes(json);
  return [options] { return list(*options); };
}

}  // namespace laconic::tools
