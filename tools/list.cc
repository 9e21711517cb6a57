// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic list: what can be named in a spec.
#include <fmt/format.h>

#include <memory>
#include <span>

#include "base/field_text.h"
#include "command.h"
#include "controls.h"
#include "laconic/registry.h"
#include "laconic/spec.h"
#include "output.h"
#include "session/describe.h"

namespace laconic::tools {
namespace {

struct Options {
  std::string codec;
  bool json = false;
  bool markdown = false;
  bool controls = false;
};

/// The memory of a spec without a modifier: "on" and "off" refer to a residual.
std::string feedback_text(const Contract& contract) {
  switch (contract.memory_default) {
    case MemoryKind::none:
      break;
    case MemoryKind::residual:
      return "on";
    case MemoryKind::ema:
      return "ema";
    case MemoryKind::momentum:
      return "momentum";
  }
  return contract.feedback == Feedback::never ? "never" : "off";
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
                        value_text(field, field.fallback));
  }
  return text;
}

Table codec_table() {
  Table table({{"codec"},
               {"class"},
               {"summary"},
               {"ratio", Table::Align::right},
               {"feedback"},
               {"adds on the wire"},
               {"zero stays zero"},
               {"keys and defaults"}});
  for (const CodecTable* codec : all_codecs()) {
    const Contract contract = Spec::defaults(*codec).contract();
    table.add({std::string(codec->info.name), std::string(session::method_name(codec->info.method)),
               std::string(codec->info.summary), ratio_text(*codec), feedback_text(contract),
               contract.merge == Merge::linear ? "yes" : "no",
               contract.zero_stays_zero ? "yes" : "no", keys_text(*codec)});
  }
  return table;
}

Table key_table(std::span<const CodecTable* const> of) {
  Table table({{"codec"}, {"key"}, {"default"}, {"accepts"}, {"meaning"}});
  for (const CodecTable* codec : of) {
    for (const Field& field : codec->fields) {
      table.add({std::string(codec->info.name), std::string(field.name),
                 value_text(field, field.fallback), range_text(field), std::string(field.help)});
    }
  }
  return table;
}

/// Prints laconic_codecs_json() and a line feed.
int print_codecs_json(std::span<const CodecTable* const> of) {
  fmt::print("{}\n", session::describe_codecs(of));
  return kFine;
}

int print_one(const CodecTable& codec, bool json) {
  if (json) {
    const CodecTable* const of[] = {&codec};
    return print_codecs_json(of);
  }
  const Contract contract = Spec::defaults(codec).contract();
  fmt::print("{}: {}\n", codec.info.name, codec.info.summary);
  fmt::print("class: {}; source: {}\n", session::method_name(codec.info.method), codec.info.source);
  fmt::print("ratio {} (1024 x 1024, defaults), error feedback {}, merge {}, zero stays zero: {}\n",
             ratio_text(codec), feedback_text(contract), session::merge_name(contract.merge),
             contract.zero_stays_zero ? "yes" : "no");
  if (codec.fields.empty()) return kFine;
  fmt::print("\n");
  const CodecTable* const of[] = {&codec};
  key_table(of).print();
  return kFine;
}

int print_all(const Options& options) {
  if (options.json) {
    return print_codecs_json(all_codecs());
  }
  if (options.markdown) {
    codec_table().print_markdown();
    fmt::print("\n");
    key_table(all_codecs()).print_markdown();
  } else {
    codec_table().print();
    fmt::print(
        "\nclass: of GRACE's survey. ratio: input bytes / payload bytes of a 1024 x 1024\n"
        "parameter. zero stays zero: rows without a gradient (padding of embeddings) do not\n"
        "move. laconic list CODEC: its keys.\n");
  }
  return kFine;
}

int list(const Options& options) {
  if (options.controls) {
    return list_controls(options.json ? As::json : options.markdown ? As::markdown : As::text);
  }
  if (options.codec.empty()) return print_all(options);
  const auto spec = Spec::parse(options.codec);  // for its error, which names the nearest codec
  if (!spec) return fail(spec.error(), options.json, kUsage);
  return print_one(spec->codec(), options.json);
}

}  // namespace

Run add_list(Program& program) {
  const Command command =
      program.add_command("list", "codecs with their guarantees and keys; or controls");
  const auto options = std::make_shared<Options>();
  const Option codec =
      command.add_option("codec", options->codec, "only this one, with the meaning of its keys");
  command
      .add_flag("--controls", options->controls, "controls instead, and the settings they change")
      .excludes(codec);
  const Option json = command.add_flag("--json", options->json, "machine-readable");
  command
      .add_flag("--markdown", options->markdown, "the tables of docs/guide/specs.md, or control.md")
      .excludes(json);
  return [options] { return list(*options); };
}

}  // namespace laconic::tools
