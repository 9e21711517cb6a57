// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/spec.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "base/field_text.h"
#include "laconic/registry.h"

namespace laconic {
namespace {

Error error_of(std::string_view text) {
  const auto spec = Spec::parse(text);
  EXPECT_FALSE(spec) << text;
  return spec ? Error{Errc::ok, {}, {}} : spec.error();
}

void expect_same(const Spec& a, const Spec& b) {
  EXPECT_EQ(&a.codec(), &b.codec());
  EXPECT_EQ(a.feedback(), b.feedback());
  EXPECT_EQ(a.canonical(), b.canonical());
  EXPECT_EQ(a.hash(), b.hash());
  for (const Field& field : a.codec().fields) {
    EXPECT_EQ(field.get(a.params()), field.get(b.params())) << field.name;
  }
}

/// Texts that a field should accept: the default, the ends of its range, points between, every
/// word.
std::vector<std::string> values_of(const Field& field) {
  std::vector<std::string> texts{value_text(field, field.fallback)};
  if (field.type == FieldType::real) {
    for (const double t : {0.0, 1e-7, 0.1, 1.0 / 3, 0.77, 0.999}) {
      texts.push_back(number_text(field.min + t * (field.max - field.min)));
    }
    if (!field.max_open) texts.push_back(number_text(field.max));
    return texts;
  }
  for (const double value : {field.min, field.min + 1, field.max}) {
    if (value <= field.max) texts.push_back(value_text(field, value));
  }
  return texts;
}

// ---- the field tables themselves ----

TEST(Registry, EveryCodecIsFoundByNameAndId) {
  for (const CodecTable* codec : all_codecs()) {
    EXPECT_EQ(find_codec(codec->info.name), codec);
    EXPECT_EQ(find_codec(codec->info.id), codec);
  }
  EXPECT_EQ(find_codec("no such codec"), nullptr);
  EXPECT_EQ(find_codec(uint16_t{0xFFFF}), nullptr);
}

TEST(Registry, NameCardsAndFieldsAreComplete) {
  for (const CodecTable* codec : all_codecs()) {
    SCOPED_TRACE(std::string(codec->info.name));
    EXPECT_FALSE(codec->info.summary.empty());
    ParamBlock params{};
    codec->defaults(params.bytes.data());
    std::set<std::string_view> names;
    for (const Field& field : codec->fields) {
      SCOPED_TRACE(std::string(field.name));
      EXPECT_TRUE(names.insert(field.name).second) << "two fields of one name";
      EXPECT_FALSE(field.help.empty());
      EXPECT_LE(field.min, field.max);
      EXPECT_GE(field.fallback, field.min);
      EXPECT_LE(field.fallback, field.max);
      ParamBlock fallback{};
      field.set(fallback.bytes.data(), field.fallback);
      EXPECT_EQ(field.get(params.bytes.data()), field.get(fallback.bytes.data()))
          << "the field table and Params{} give different defaults";
    }
  }
}

// ---- canonical form ----

TEST(Spec, DefaultsPrintOnlyTheName) {
  for (const CodecTable* codec : all_codecs()) {
    EXPECT_EQ(Spec::defaults(*codec).canonical(), codec->info.name);
    const auto parsed = Spec::parse(codec->info.name);
    ASSERT_TRUE(parsed);
    expect_same(*parsed, Spec::defaults(*codec));
  }
}

TEST(Spec, CanonicalFormParsesBack) {
  for (const CodecTable* codec : all_codecs()) {
    for (const Field& field : codec->fields) {
      for (const std::string& value : values_of(field)) {
        const std::string text =
            std::string(codec->info.name) + ":" + std::string(field.name) + "=" + value;
        const auto spec = Spec::parse(text);
        ASSERT_TRUE(spec) << text << ": " << spec.error().message;
        const auto again = Spec::parse(spec->canonical());
        ASSERT_TRUE(again) << spec->canonical() << ": " << again.error().message;
        expect_same(*spec, *again);
      }
    }
  }
}

TEST(Spec, OrderOfOptionsDoesNotMatter) {
  for (const CodecTable* codec : all_codecs()) {
    std::string forward, backward;
    for (const Field& field : codec->fields) {
      const std::string option = std::string(field.name) + "=" + values_of(field).back();
      forward += (forward.empty() ? "" : ",") + option;
      backward = option + (backward.empty() ? "" : ",") + backward;
    }
    if (forward.empty()) continue;
    const auto a = Spec::parse(std::string(codec->info.name) + ":" + forward);
    const auto b = Spec::parse(std::string(codec->info.name) + ":" + backward);
    ASSERT_TRUE(a) << a.error().message;
    ASSERT_TRUE(b);
    expect_same(*a, *b);
  }
}

TEST(Spec, MemoryIsPrintedIfNotDefault) {
  for (const CodecTable* codec : all_codecs()) {
    const std::string name(codec->info.name);
    const Contract contract = Spec::defaults(*codec).contract();
    for (const auto& [kind, modifier] :
         {std::pair(MemoryKind::none, "+noef"), std::pair(MemoryKind::residual, "+ef"),
          std::pair(MemoryKind::ema, "+ema=0.8"),
          std::pair(MemoryKind::momentum, "+momentum=0.8")}) {
      const auto spec = Spec::parse(name + modifier);
      if (!in_memory_set(contract.memories, kind)) {
        ASSERT_FALSE(spec) << name << modifier;
        EXPECT_EQ(spec.error().code, Errc::unsupported);
        if (kind == MemoryKind::residual) {
          EXPECT_NE(spec.error().message.find("no error feedback"), std::string::npos);
        }
        continue;
      }
      ASSERT_TRUE(spec) << name << modifier;
      EXPECT_EQ(spec->memory().kind, kind);
      EXPECT_EQ(spec->feedback(), kind == MemoryKind::residual || kind == MemoryKind::momentum);
      const bool usual = kind == contract.memory_default && kind <= MemoryKind::residual;
      EXPECT_EQ(spec->canonical(), usual ? name : name + modifier);
    }
  }
}

TEST(Spec, HashesDiffer) {
  std::set<uint64_t> hashes;
  for (const CodecTable* codec : all_codecs()) {
    EXPECT_TRUE(hashes.insert(Spec::defaults(*codec).hash()).second);
  }
}

// ---- errors ----

TEST(SpecErrors, BadModifiersAreExplained) {
  for (const char* text : {"int8+ema=1", "int8+ema=0.05", "topk+momentum=0.999999999", "topk+ema=x",
                           "topk+decay=0", "topk+decay=1.01", "topk+decay=-1", "topk+decay=nan"}) {
    EXPECT_NE(error_of(text).code, Errc::ok) << text;
    EXPECT_NE(error_of(text).hint.find(" accepts 0.1 to 1"), std::string::npos)
        << error_of(text).hint;
  }
  EXPECT_NE(error_of("topk+decy=0.5").message.find("did you mean 'decay'"), std::string::npos);
  EXPECT_NE(error_of("topk+momentun").message.find("did you mean 'momentum'"), std::string::npos);
  const Error mean = error_of("topk+ema=0.9");
  EXPECT_EQ(mean.code, Errc::unsupported);
  EXPECT_EQ(mean.hint, "it supports: +noef, +ef, +momentum");
  EXPECT_EQ(error_of("int8+momentum=0.9").code, Errc::unsupported);
  EXPECT_EQ(error_of("int8+noef+decay=0.9").code, Errc::unsupported);
  EXPECT_EQ(error_of("none+ema").code, Errc::unsupported);
}

TEST(SpecErrors, SyntaxErrorsAreExplained) {
  for (const char* text :
       {"", ":", ":s=1", "+ef", "none:", "none:a", "none:=1", "none:,", "none+", "none+ef+ef",
        "none+ef+noef", "none+EF", "none+", "topk+ef=1", "topk+decay",
        "topk+decay=", "topk+decay=0.5+decay=0.5", "int8+ema+ef", "topk+momentum="}) {
    EXPECT_EQ(error_of(text).code, Errc::spec_syntax) << text;
  }
  EXPECT_EQ(error_of(std::string(5000, 'a')).code, Errc::spec_syntax);
}

TEST(SpecErrors, UnknownNamesAreExplained) {
  const Error error = error_of("non");
  EXPECT_EQ(error.code, Errc::unknown_codec);
  EXPECT_NE(error.hint.find("did you mean 'none'"), std::string::npos) << error.hint;
  EXPECT_NE(error.hint.find("laconic list"), std::string::npos);
  EXPECT_EQ(error_of("None").code, Errc::unknown_codec);
  EXPECT_EQ(error_of(" none").code, Errc::unknown_codec);
  EXPECT_EQ(error_of(std::string_view("none\0", 5)).code, Errc::unknown_codec);
}

TEST(SpecErrors, NamesOfOtherProgramsAreExplained) {
  EXPECT_EQ(error_of("auto").code, Errc::unknown_codec);
  EXPECT_NE(error_of("auto").hint.find("does not choose"), std::string::npos);
  EXPECT_NE(error_of("redsync:ratio=0.01").hint.find("sidco"), std::string::npos);
  EXPECT_NE(error_of("threelc").hint.find("3lc"), std::string::npos);
}

TEST(SpecErrors, StagesAreReserved) {
  const Error error = error_of("none|zstd");
  EXPECT_EQ(error.code, Errc::unsupported);
  EXPECT_NE(error.message.find("are not supported"), std::string::npos);
}

TEST(SpecErrors, UnknownKeyListsKeysWithRanges) {
  const Error error = error_of("topk:ration=0.1");
  EXPECT_EQ(error.code, Errc::unknown_key);
  EXPECT_NE(error.hint.find("did you mean 'ratio'"), std::string::npos) << error.hint;
  EXPECT_NE(error.hint.find("to 1"), std::string::npos) << error.hint;
  EXPECT_EQ(error_of("none:ratio=1").hint, "none has no keys");
}

TEST(SpecErrors, DuplicateKeysAreRefused) {
  const Error error = error_of("topk:ratio=0.1,ratio=0.1");
  EXPECT_EQ(error.code, Errc::spec_syntax);
  EXPECT_NE(error.message.find("twice"), std::string::npos);
}

TEST(SpecErrors, OutOfRangeNamesRangeAndDefault) {
  const Error error = error_of("topk:ratio=2");
  EXPECT_EQ(error.code, Errc::value_out_of_range);
  EXPECT_NE(error.message.find("topk:ratio=2"), std::string::npos);
  EXPECT_NE(error.hint.find("default"), std::string::npos);
  EXPECT_EQ(error_of("3lc:s=1.99999999").code, Errc::value_out_of_range);  // 2.0 in a float
}

TEST(SpecErrors, MessagesArePrintable) {
  const Error error = error_of("\x1b[31m\n");
  for (const char c : error.message + error.hint) EXPECT_TRUE(c >= ' ' && c <= '~');
}

std::string canonical_of(std::string_view text) {
  const auto spec = Spec::parse(text);
  return spec ? spec->canonical() : spec.error().message;
}

TEST(Spec, ModifiersHaveOneForm) {
  EXPECT_EQ(canonical_of("topk+ef+decay=1"), "topk");
  EXPECT_EQ(canonical_of("topk+decay=0.50"), "topk+decay=0.5");
  EXPECT_EQ(canonical_of("topk+decay=0.5+ef"), "topk+decay=0.5");
  EXPECT_EQ(canonical_of("int8+decay=0.1+ef"), "int8+ef+decay=0.1");
  EXPECT_EQ(canonical_of("topk+momentum"), "topk+momentum=0.9");
  EXPECT_EQ(canonical_of("int8:block=64+ema=9e-1"), "int8:block=64+ema=0.9");
  EXPECT_EQ(Spec::parse("int8+ema=0.95")->memory(), (MemorySettings{MemoryKind::ema, 0.95F, 1}));
  EXPECT_EQ(Spec::parse("topk+decay=0.25")->memory(),
            (MemorySettings{MemoryKind::residual, 0, 0.25F}));
  EXPECT_NE(Spec::parse("topk")->hash(), Spec::parse("topk+decay=0.5")->hash());
}

uint64_t planned_bytes(const std::string& text) {
  const auto spec = Spec::parse(text);
  EXPECT_TRUE(spec) << text;
  if (!spec) return 0;
  const Plan plan = spec->codec().plan(spec->params(), {1U << 20U, 1U << 10U, 1U << 10U, 0, 0}, 4);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan.rounds; ++i) bytes += plan.round[i].expected;
  return bytes;
}

TEST(Spec, ControlledSettingsObeyTheirMark) {
  std::vector<std::string_view> moved;
  for (const CodecTable* codec : all_codecs()) {
    for (const Field& field : codec->fields) {
      if (!field.actuator.marked) continue;
      const std::string name(codec->info.name);
      EXPECT_TRUE(moved.empty() || moved.back() != name) << name << " has two";
      moved.push_back(codec->info.name);
      const Actuator& a = field.actuator;
      EXPECT_LT(a.min, a.max) << name;
      const std::string head = name + ":" + std::string(field.name) + "=";
      const uint64_t low = planned_bytes(head + value_text(field, a.min));
      const uint64_t high = planned_bytes(head + value_text(field, a.max));
      if (a.sends == Sends::more) {
        EXPECT_LT(low, high) << name;
      } else {
        EXPECT_GE(low, high) << name;
      }
    }
  }
  EXPECT_GE(moved.size(), 10U);
}

TEST(Spec, ExamplesParse) {
  EXPECT_EQ(canonical_of("topk:ratio=1e-2+ef"), canonical_of("topk:ratio=0.01"));
  EXPECT_EQ(canonical_of("topk:ratio=0.05"), "topk:ratio=0.05");
  EXPECT_EQ(canonical_of("3lc:s=1.5+noef"), "3lc:s=1.5+noef");
}

}  // namespace
}  // namespace laconic
