// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every function of laconic.h with a call that succeeds, its pointers and structs exposed, so
// that one loop can hand each of them over as null, shorter or longer, or without memory.
#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "laconic/error.h"
#include "unit/capi/world.h"

namespace laconic::test {

/// A world of one rank: what it gathers is its own.
struct LoneEngine {
  laconic_engine_table table{};
  laconic_driver_options options{};

  LoneEngine() {
    table.struct_size = sizeof table;
    table.world = 1;
    table.start = [](void*, const laconic_step* steps, uint32_t, uint32_t count, uint64_t* ticket,
                     char*, uint64_t) -> int32_t {
      *ticket = 0;
      if (count != 0 && steps[0].kind == LACONIC_ALL_GATHER)
        std::memcpy(steps[0].recv, steps[0].send, steps[0].send_counts[0]);
      return 0;
    };
    table.wait = [](void*, uint64_t, double, char*, uint64_t) -> int32_t { return 0; };
    options.struct_size = sizeof options;
    options.engine = &table;
    options.ended = [](void*, const laconic_ending*) {};
  }
  LoneEngine(const LoneEngine&) = delete;
  LoneEngine& operator=(const LoneEngine&) = delete;
};

/// Objects that the calls of the table use.
struct Objects {
  static constexpr uint64_t kRows = 20, kCols = 10, kCount = kRows * kCols, kFrames = 20;

  Objects(const std::string& codec_spec, const WorldSetup& setup) : spec(codec_spec), world(setup) {
    codec = create_codec();
    unused = create_codec();
    EXPECT_EQ(laconic_residual_create(kCount, &residual), 0);
    EXPECT_EQ(laconic_codec_max_frame_bytes(codec, kRows, kCols, &bound), 0);
    frame = encode();
    pointers.assign(kFrames, frame.data());
    sizes.assign(kFrames, frame.size());
    EXPECT_EQ(world.exchange(), 0) << laconic_last_message();
    laconic_session* const session = world.ranks[0].session;
    header.struct_size = sizeof header;
    EXPECT_EQ(laconic_session_state_header(session, &header), 0);
    if (laconic_session_state_count(session) == 0) return;
    const char* name = nullptr;
    EXPECT_EQ(laconic_session_state_entry(session, 0, &name, &entry, &entry_count), 0);
  }
  ~Objects() {
    for (laconic_codec* c : {codec, unused, made_codec}) laconic_codec_destroy(c);
    for (laconic_residual* r : {residual, made_residual}) laconic_residual_destroy(r);
    laconic_aggregator_close(aggregator, 0);
    laconic_driver_destroy(driver);
    for (laconic_session* s : {made_session, coded_session, lone_session})
      laconic_session_destroy(s);
  }
  Objects(const Objects&) = delete;
  Objects& operator=(const Objects&) = delete;

  [[nodiscard]] laconic_codec* create_codec() const {
    laconic_codec* made = nullptr;
    EXPECT_EQ(laconic_codec_create(spec.data(), spec.size(), 1, &made), 0);
    return made;
  }
  static laconic_tensor tensor(std::vector<float>& of) {
    return {sizeof(laconic_tensor), LACONIC_F32, kRows, kCols, of.data(), LACONIC_MEMORY_HOST, 0};
  }
  std::vector<uint8_t> encode() {
    std::vector<uint8_t> out(bound);
    const laconic_tensor source = tensor(values);
    EXPECT_EQ(
        laconic_encode(codec, &source, &place, residual, out.data(), bound, &written, nullptr), 0)
        << laconic_last_message();
    out.resize(written);
    return out;
  }

  /// Everything still works, and an exchange that a call has begun comes to its end.
  void expect_usable() {
    for (laconic_codec* c : {codec, unused}) {
      const laconic_tensor out = tensor(decoded);
      EXPECT_EQ(laconic_decode(c, frame.data(), frame.size(), 1.0F, 0, &out, nullptr), 0)
          << laconic_last_message();
    }
    encode();
    if (broken) {
      EXPECT_EQ(world.begin(0), 62) << "engine_failed";
      return;
    }
    world.settle();
    EXPECT_EQ(world.exchange(), 0) << laconic_last_message();
  }

  std::string spec;
  World world;
  laconic_codec* codec = nullptr;
  laconic_codec* unused = nullptr;  // has encoded nothing: its work space is still to be made
  laconic_residual* residual = nullptr;
  std::vector<float> values = wave(kCount), decoded = std::vector<float>(kCount);
  laconic_place place{sizeof(laconic_place), 0, 1, 0, 7, 0, 3};
  uint64_t bound = 0, written = 0, bytes = 0;
  bool broken = false;  // an exchange was aborted: its session takes no more
  std::vector<uint8_t> frame, room = std::vector<uint8_t>(4096);  // buffer: for what a call writes
  std::vector<const void*> pointers;
  std::vector<uint64_t> sizes;
  laconic_state_header header{};
  float* entry = nullptr;
  uint64_t entry_count = 0;

  laconic_codec* made_codec = nullptr;
  laconic_residual* made_residual = nullptr;
  laconic_session* made_session = nullptr;
  laconic_session* coded_session = nullptr;  // by server_sum
  laconic_aggregator* aggregator = nullptr;  // of a server that is not there
  laconic_session* lone_session = nullptr;   // of one rank, as the engine below
  laconic_driver* driver = nullptr;          // its own
  LoneEngine engine{};
};

/// A call's pointers on their way into the library: handed over as they are, but for one.
class Arguments {
 public:
  enum class Change : uint8_t { none, null, shorter, longer };
  static constexpr size_t kLonger = 16, kBehind = 64;
  static constexpr uint8_t kCanary = 0xFF;

  /// As they are; without `record` nothing here allocates.
  explicit Arguments(bool record) : record_(record) {}
  Arguments(std::string name, Change change) : changed_(std::move(name)), change_(change) {}

  /// A pointer that must not be null.
  template <class T>
  T* operator()(const char* name, T* pointer) {
    if (record_) pointers.emplace_back(name);
    return change_ == Change::null && changed_ == name ? nullptr : pointer;
  }
  /// A struct that begins with its size, and the place of its last field.
  template <class T>
  T* sized(const char* name, T* value, size_t last_field) {
    if (record_) structs.emplace_back(name);
    T* const given = (*this)(name, value);
    if (given == nullptr || change_ == Change::none || changed_ != name) return given;
    size_ = static_cast<uint32_t>(change_ == Change::shorter ? last_field : sizeof(T) + kLonger);
    known_ = std::min<size_t>(size_, sizeof(T));
    block_.assign(size_ + kBehind, kCanary);
    std::memcpy(block_.data(), value, known_);
    std::memcpy(block_.data(), &size_, sizeof size_);
    return reinterpret_cast<T*>(block_.data());
  }

  /// Nothing was written after the part that both sides know, and struct_size is unchanged.
  void expect_untouched() const {
    if (block_.empty()) return;
    uint32_t size = 0;
    std::memcpy(&size, block_.data(), sizeof size);
    EXPECT_EQ(size, size_);
    for (size_t i = known_; i < block_.size(); ++i)
      ASSERT_EQ(block_[i], kCanary) << "byte " << i << " of a struct of " << size_;
  }

  std::vector<std::string> pointers, structs;

 private:
  bool record_ = false;
  std::string changed_;
  Change change_ = Change::none;
  std::vector<uint8_t> block_;
  uint32_t size_ = 0;
  size_t known_ = 0;
};

enum class Gives : uint8_t { code, value, nothing };

struct Function {
  const char* name;
  Gives gives;
  /// The code; a value: 0 when it returned one, else -1; nothing: 0.
  int32_t (*call)(Objects&, Arguments&);
  bool allocates = false;
  bool in_exchange = false;  // called while all ranks have begun one
  int32_t expected = 0;      // of a code
};

inline void PrintTo(const Function& function, std::ostream* out) { *out << function.name; }

inline int32_t something(bool gave) { return gave ? 0 : -1; }
inline int32_t something(const char* text) {
  EXPECT_NE(text, nullptr) << "texts are never null";
  return something(text != nullptr && *text != '\0');
}

inline std::span<const Function> library_functions() {
  static const Function kList[] = {
      {"laconic_abi_version", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_abi_version() != 0); }},
      {"laconic_version", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_version()); }},
      {"laconic_build_info", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_build_info()); }},
      {"laconic_codecs_json", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_codecs_json()); }},
      {"laconic_device_info", Gives::value,
       [](Objects&, Arguments&) -> int32_t {
         return something(laconic_device_info("/nonexistent/libcuda.so.1"));
       }},
      {"laconic_error_name", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_error_name(25)); }},
      {"laconic_last_message", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_last_message()); }},
      {"laconic_last_hint", Gives::value,
       [](Objects&, Arguments&) -> int32_t { return something(laconic_last_hint()); }},
  };
  return kList;
}

inline std::span<const Function> codec_functions() {
  static const Function kList[] = {
      {"laconic_codec_create", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_codec_create(a("spec", o.spec.data()), o.spec.size(), 3,
                                     a("out", &o.made_codec));
       },
       true},
      {"laconic_codec_destroy", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         auto* const given = a("codec", o.made_codec);
         laconic_codec_destroy(given);
         if (given != nullptr) o.made_codec = nullptr;  // null destroys nothing
         return 0;
       }},
      {"laconic_codec_spec", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_codec_spec(a("codec", o.codec)));
       }},
      {"laconic_codec_json", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_codec_json(a("codec", o.codec)));
       }},
      {"laconic_codec_max_frame_bytes", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_codec_max_frame_bytes(a("codec", o.codec), 3, 4, a("bytes", &o.bytes));
       }},
      {"laconic_encode", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_tensor source = o.tensor(o.values);
         return laconic_encode(
             a("codec", o.unused), a.sized("source", &source, offsetof(laconic_tensor, data)),
             a.sized("place", &o.place, offsetof(laconic_place, parameter)), o.residual,
             a("out", o.room.data()), o.room.size(), a("written", &o.written), nullptr);
       },
       true},
      {"laconic_decode", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_tensor out = o.tensor(o.decoded);
         return laconic_decode(a("codec", o.unused), a("frame", o.frame.data()), o.frame.size(),
                               1.0F, 0, a.sized("out", &out, offsetof(laconic_tensor, data)),
                               nullptr);
       },
       true},
      {"laconic_decode_many", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_tensor out = o.tensor(o.decoded);
         o.pointers.back() = a("one frame", o.frame.data());
         return laconic_decode_many(a("codec", o.unused), a("frames", o.pointers.data()),
                                    a("bytes", o.sizes.data()), Objects::kFrames, 0.05F, 0,
                                    a.sized("out", &out, offsetof(laconic_tensor, data)), nullptr);
       },
       true},
      {"laconic_frame_parse", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_frame_info info{};
         info.struct_size = sizeof info;
         return laconic_frame_parse(
             a("frame", o.frame.data()), o.frame.size(),
             a.sized("info", &info, offsetof(laconic_frame_info, frame_bytes)));
       }},
      {"laconic_residual_create", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_residual_create(100, a("out", &o.made_residual));
       },
       true},
      {"laconic_residual_over", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_tensor values = o.tensor(o.values);
         return laconic_residual_over(a.sized("values", &values, offsetof(laconic_tensor, data)),
                                      a("out", &o.made_residual));
       },
       true},
      {"laconic_residual_destroy", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         auto* const given = a("residual", o.made_residual);
         laconic_residual_destroy(given);
         if (given != nullptr) o.made_residual = nullptr;  // null destroys nothing
         return 0;
       }},
      {"laconic_residual_data", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_residual_data(a("residual", o.residual)) != nullptr);
       }},
      {"laconic_residual_count", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_residual_count(a("residual", o.residual)) == Objects::kCount);
       }},
      {"laconic_residual_state", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_residual_state(a("residual", o.residual), a("count", &o.bytes)) !=
                          nullptr);
       }},
      {"laconic_residual_set_state", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_residual_set_state(a("residual", o.made_residual),
                                           a("state", o.values.data()), o.values.size());
       },
       true},
  };
  return kList;
}

inline std::span<const Function> session_functions() {
  static const Function kList[] = {
      {"laconic_session_create", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_session_options options = o.world.options(0);
         options.spec = a("options.spec", options.spec);
         options.threads = 3;
         laconic_parameter parameters[] = {World::parameters()[0], World::parameters()[1]};
         parameters[1].name = a("parameters[1].name", parameters[1].name);
         return laconic_session_create(
             a.sized("options", &options, offsetof(laconic_session_options, window)),
             a("parameters", &parameters[0]), 2, a("out", &o.made_session));
       },
       true},
      {"laconic_parameter_id", Gives::value,
       [](Objects&, Arguments& a) -> int32_t {
         return something(laconic_parameter_id(a("name", "w")) != 0);
       }},
      {"laconic_session_destroy", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         auto* const given = a("session", o.made_session);
         laconic_session_destroy(given);
         if (given != nullptr) o.made_session = nullptr;  // null destroys nothing
         return 0;
       }},
      {"laconic_session_shard", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         uint64_t count = 0;
         return laconic_session_shard(a("session", o.world.ranks[0].session), 0,
                                      a("first", &o.written), a("count", &count));
       }},
      {"laconic_session_reports", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_reports(a("session", o.world.ranks[0].session),
                                        a("reports", o.room.data()));
       }},
      {"laconic_session_decide_by", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_decide_by(a("session", o.world.ranks[0].session),
                                          a("reports", o.room.data()), 0);
       }},
      {"laconic_session_agreement", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_agreement(a("session", o.world.ranks[0].session),
                                          a("out", o.room.data()));
       }},
      {"laconic_session_check_agreement", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_check_agreement(a("session", o.world.ranks[0].session),
                                                a("gathered", o.world.cards().data()));
       }},
      {"laconic_session_set", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_rule rule{};
         rule.match = a("settings.rules[0].match", "*");
         laconic_settings settings{
             sizeof settings, LACONIC_STRATEGY_AUTO, "topk:ratio=0.05", "fixed", nullptr, 1, 0,
             nullptr};
         settings.rules = a("settings.rules", &rule);
         return laconic_session_set(
             a("session", o.world.ranks[0].session),
             a.sized("settings", &settings, offsetof(laconic_settings, reserved)));
       },
       true},
      {"laconic_session_begin_step", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         uint32_t version = 0;
         return laconic_session_begin_step(a("session", o.world.ranks[0].session), 1,
                                           a("version", &version));
       }},
      {"laconic_session_explain", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_explain(a("session", o.world.ranks[0].session)));
       },
       true},
      {"laconic_session_stats", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_stats(a("session", o.world.ranks[0].session)));
       },
       true},
      {"laconic_session_layout_matters", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_layout_matters(a("session", o.world.ranks[0].session)));
       }},
      {"laconic_session_all_raw", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_all_raw(a("session", o.world.ranks[0].session)));
       }},
      {"laconic_session_scale_residuals", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_scale_residuals(a("session", o.world.ranks[0].session), 2.0F);
       }},
      {"laconic_session_flush", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_flush(a("session", o.world.ranks[0].session), 2);
       }},
      {"laconic_session_release_layout", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_bucket bucket = o.world.bucket(0);
         bucket.parameters = a("bucket.parameters", bucket.parameters);
         bucket.offsets = a("bucket.offsets", bucket.offsets);
         const int32_t code = laconic_session_release_layout(
             a("session", o.world.ranks[0].session),
             a.sized("bucket", &bucket, offsetof(laconic_bucket, offsets)));
         for (uint32_t r = 1; r < o.world.ranks.size() && code == 0; ++r) {  // every rank does it
           bucket = o.world.bucket(r);
           EXPECT_EQ(laconic_session_release_layout(o.world.ranks[r].session, &bucket), 0);
         }
         return code;
       }},
      {"laconic_session_residual_norm", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_residual_norm(a("session", o.world.ranks[0].session)) >
                          0.0);
       }},
  };
  return kList;
}

inline std::span<const Function> exchange_functions() {
  static const Function kList[] = {
      {"laconic_exchange_begin", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         o.world.weights_first = true;
         laconic_bucket bucket = o.world.bucket(0);
         bucket.buffer = a("bucket.buffer", bucket.buffer);
         bucket.parameters = a("bucket.parameters", bucket.parameters);
         bucket.offsets = a("bucket.offsets", bucket.offsets);
         return laconic_exchange_begin(
             a("session", o.world.ranks[0].session),
             a.sized("bucket", &bucket, offsetof(laconic_bucket, offsets)),
             a("out", &o.world.ranks[0].exchange));
       }},
      {"laconic_exchange_fail", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_exchange_fail(a("exchange", o.world.ranks[0].exchange), 62,
                                      "a message that does not fit into a short string");
       },
       false, true},
      {"laconic_exchange_next", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         World::Rank& rank = o.world.ranks[0];
         const int32_t code = laconic_exchange_next(
             a("exchange", rank.exchange), a("steps", &rank.steps[0]), sizeof(laconic_step),
             LACONIC_MAX_BATCH, a("count", &rank.count));
         const bool refused = code == 1;  // a null argument: the exchange goes on
         if (code != 0 && !refused) {
           rank.exchange = nullptr;
           rank.ended = true;
         }
         return code;
       },
       false, true},
      {"laconic_exchange_timed", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_exchange_timed(a("exchange", o.world.ranks[0].exchange), 1.5, 2.5);
       },
       false, true},
      {"laconic_session_summed", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_summed(a("session", o.world.ranks[0].session), 1.5, 2.5);
       }},
      {"laconic_exchange_abort", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_exchange* const exchange = a("exchange", o.world.ranks[0].exchange);
         o.broken = exchange != nullptr;
         laconic_exchange_abort(exchange);
         return 0;
       },
       false, true},
  };
  return kList;
}

inline std::span<const Function> state_functions() {
  static const Function kList[] = {
      {"laconic_session_state_header", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_state_header(
             a("session", o.world.ranks[0].session),
             a.sized("out", &o.header, offsetof(laconic_state_header, spec)));
       }},
      {"laconic_session_state_count", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_session_state_count(a("session", o.world.ranks[0].session)) != 0);
       }},
      {"laconic_session_state_entry", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const char* name = nullptr;
         return laconic_session_state_entry(a("session", o.world.ranks[0].session), 0,
                                            a("name", &name), a("data", &o.entry),
                                            a("count", &o.entry_count));
       }},
      {"laconic_session_state_accepts", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_state_accepts(
             a("session", o.world.ranks[0].session),
             a.sized("header", &o.header, offsetof(laconic_state_header, spec)));
       }},
      {"laconic_session_state_check", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_session_state_check(a("session", o.world.ranks[0].session), 0,
                                            a("values", o.entry), o.entry_count);
       }},
  };
  return kList;
}

inline laconic_aggregator_options aggregator_options() {
  laconic_aggregator_options o{};
  o.struct_size = sizeof o;
  o.world = 2;
  o.servers = "127.0.0.1:9";
  o.timeout_ms = 50;
  return o;
}

/// Without a server: CAggregator.* has the calls that succeed.
inline std::span<const Function> aggregator_functions() {
  static const Function kList[] = {
      {"laconic_aggregator_open", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_aggregator_options options = aggregator_options();
         options.servers = a("options.servers", options.servers);
         laconic_aggregator_close(std::exchange(o.aggregator, nullptr), 0);
         return laconic_aggregator_open(
             a.sized("options", &options, offsetof(laconic_aggregator_options, multicast)),
             a("out", &o.aggregator));
       },
       true},
      {"laconic_aggregator_join", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         return laconic_aggregator_join(a("aggregator", o.aggregator),
                                        a("session", o.coded_session), 7, 0);
       },
       true, false, static_cast<int32_t>(Errc::timed_out)},
      {"laconic_aggregator_run", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_contribution out{};
         laconic_aggregate in{};
         laconic_step step{};
         step.kind = LACONIC_AGGREGATE;
         step.granules = 1;
         step.contributions = a("the contributions", &out);
         step.aggregates = a("the aggregates", &in);
         return laconic_aggregator_run(a("aggregator", o.aggregator), a("step", &step),
                                       sizeof step);
       },
       false, false, static_cast<int32_t>(Errc::exchange_order)},
      {"laconic_aggregator_interrupt", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_aggregator_interrupt(a("aggregator", o.aggregator));
         return 0;
       }},
      {"laconic_aggregator_stats", Gives::value,
       [](Objects& o, Arguments& a) -> int32_t {
         return something(laconic_aggregator_stats(a("aggregator", o.aggregator)));
       },
       true},
      {"laconic_aggregator_close", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_aggregator* const given = a("aggregator", o.aggregator);
         laconic_aggregator_close(given, 0);
         if (given != nullptr) o.aggregator = nullptr;  // null closes nothing
         return 0;
       }},
  };
  return kList;
}

inline std::span<const Function> driver_functions() {
  static const auto driver = [](Objects& o, Arguments& a) { return a("driver", o.driver); };
  static const Function kList[] = {
      {"laconic_agree", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_engine_table table = o.engine.table;
         table.start = a("engine.start", table.start);
         table.wait = a("engine.wait", table.wait);
         return laconic_agree(a.sized("engine", &table, offsetof(laconic_engine_table, completed)),
                              a("session", o.lone_session), nullptr, a("what", "attach"),
                              a("gathered", o.room.data()));
       },
       true},
      {"laconic_driver_create", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_engine_table table = o.engine.table;
         table.start = a("engine.start", table.start);
         table.wait = a("engine.wait", table.wait);
         laconic_driver_options options = o.engine.options;
         options.engine = a.sized("engine", &table, offsetof(laconic_engine_table, completed));
         options.ended = a("options.ended", options.ended);
         return laconic_driver_create(
             a("session", o.lone_session),
             a.sized("options", &options, offsetof(laconic_driver_options, traced)),
             a("out", &o.driver));
       },
       true},
      {"laconic_driver_destroy", Gives::nothing,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_driver* const given = driver(o, a);
         laconic_driver_destroy(given);
         if (given != nullptr) o.driver = nullptr;  // null destroys nothing
         return 0;
       }},
      {"laconic_driver_submit", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_bucket bucket = o.world.bucket(0);
         bucket.buffer = a("bucket.buffer", bucket.buffer);
         bucket.parameters = a("bucket.parameters", bucket.parameters);
         bucket.offsets = a("bucket.offsets", bucket.offsets);
         return laconic_driver_submit(driver(o, a),
                                      a.sized("bucket", &bucket, offsetof(laconic_bucket, offsets)),
                                      0, 1, nullptr);
       }},
      {"laconic_driver_drain", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t { return laconic_driver_drain(driver(o, a)); }},
      {"laconic_driver_finish", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t { return laconic_driver_finish(driver(o, a)); }},
      {"laconic_driver_break_off", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_failure why{62, 0, "a message that does not fit into a short string", nullptr};
         return laconic_driver_break_off(driver(o, a), a("failure", &why));
       }},
      {"laconic_driver_release", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_bucket bucket = o.world.bucket(0);
         bucket.parameters = a("bucket.parameters", bucket.parameters);
         bucket.offsets = a("bucket.offsets", bucket.offsets);
         return laconic_driver_release(
             driver(o, a), a.sized("bucket", &bucket, offsetof(laconic_bucket, offsets)));
       }},
      {"laconic_driver_set", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_settings settings{
             sizeof settings, LACONIC_STRATEGY_AUTO, "topk:ratio=0.05", "fixed", nullptr, 0, 0,
             nullptr};
         uint32_t waits = 0;
         return laconic_driver_set(
             driver(o, a), a.sized("settings", &settings, offsetof(laconic_settings, reserved)),
             nullptr, a("waits", &waits));
       },
       true},
      {"laconic_driver_set_what_waits", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         uint32_t set = 0;
         return laconic_driver_set_what_waits(driver(o, a), a("set", &set));
       }},
      {"laconic_driver_set_replicas", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_replica replicas[2]{{o.values.data(), LACONIC_F32, 0},
                                           {o.values.data(), LACONIC_BF16, 0}};
         return laconic_driver_set_replicas(driver(o, a), a("replicas", &replicas[0]), 2, 1);
       },
       true},
      {"laconic_driver_owned", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_owned_range ranges[2];
         uint32_t count = 0;
         return laconic_driver_owned(driver(o, a), a("ranges", &ranges[0]), 2, a("count", &count));
       }},
      {"laconic_driver_turns", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         laconic_turns turns{sizeof turns, 0, nullptr, 0, 0};
         return laconic_driver_turns(driver(o, a), a.sized("turns", &turns, sizeof turns));
       }},
      {"laconic_driver_pull", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         uint32_t skipped = 0;
         return laconic_driver_pull(driver(o, a), nullptr, a("skipped", &skipped));
       }},
      {"laconic_driver_exchanges", Gives::code,
       [](Objects& o, Arguments& a) -> int32_t {
         const laconic_bucket bucket = o.world.bucket(0);
         uint32_t exchange_of[2];
         return laconic_driver_exchanges(driver(o, a), a("buckets", &bucket), 1, 0,
                                         a("exchange_of", exchange_of));
       },
       true},
  };
  return kList;
}

inline std::vector<Function> all_functions() {
  std::vector<Function> all;
  for (const auto part :
       {library_functions(), codec_functions(), session_functions(), exchange_functions(),
        aggregator_functions(), driver_functions(), state_functions()}) {
    all.insert(all.end(), part.begin(), part.end());
  }
  return all;
}

}  // namespace laconic::test
