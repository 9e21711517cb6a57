// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic laws: whether a gradient follows the laws that SIDCo fits, and what its fits select.
#include "codecs/sidco/laws.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>

#include "base/arena.h"
#include "codecs/sidco/trace.h"
#include "codecs/sparse/sparse_payload.h"
#include "command.h"
#include "files.h"
#include "laconic/isa.h"
#include "laconic/spec.h"
#include "output.h"

namespace laconic::tools {
namespace {

using codecs::Sidco;
using codecs::sidco::Exceedances;
using codecs::sidco::ks_distance;
using codecs::sidco::Law;
using codecs::sidco::MagnitudeLaw;
using codecs::sidco::Moments;
using codecs::sidco::Stage;
using codecs::sidco::Trace;

constexpr uint64_t kFewest = 16;  // non-zero values that a law is fitted to

struct Options {
  std::vector<std::string> files;
  std::vector<std::string> specs;
  uint64_t values = 0;
  uint32_t calls = 1;
  uint32_t times = 0;
  bool json = false;
};

Error no_memory(uint64_t n) {
  return {Errc::out_of_memory, fmt::format("not enough memory for {} values", n), {}};
}

/// Median over `times` calls.
template <typename Call>
double median_seconds(uint32_t times, Call&& call) {
  std::vector<double> seconds(times);
  for (double& s : seconds) {
    const auto begin = std::chrono::steady_clock::now();
    call();
    s = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  std::nth_element(seconds.begin(), seconds.begin() + times / 2, seconds.end());
  return seconds[times / 2];
}

/// One setting of the codec, with its state, over the tensors of a file.
class Coder {
 public:
  Coder(const Spec& spec, uint64_t n)
      : spec_(&spec),
        params_(*static_cast<const Sidco::Params*>(spec.params())),
        unit_{n, n, 1, 0, 0},
        plan_(Sidco::plan(params_, unit_, 1)),
        // The fit is shown: without state, a call that keeps a threshold makes one.
        state_(plan_.state_floats == codecs::sidco::Adaptation::kFloats ? plan_.state_floats : 0) {
    Sidco::init(params_, unit_, place_, state_);
  }

  [[nodiscard]] bool reserve() {
    const bool enough = scratch_.reserve(plan_.scratch_bytes) && out_.reserve(plan_.round[0].bytes);
    work_ = {{}, scratch_.bytes(), best_isa(), nullptr};
    return enough;
  }

  /// The first of `calls` calls with the same values. The state goes on through all of them.
  Trace encode(const float* x, uint32_t calls) {
    Trace first;
    float stages = 0;
    Bytes payload;
    for (uint32_t call = 0; call < calls; ++call) {
      const float now = state_.empty() ? 1 : state_[0];
      if (call == 0 || now != stages) {  // else the same payload again
        Trace trace;
        payload = encode(x, trace);
        if (call == 0) first = trace;
      }
      stages = now;
      Sidco::commit({&params_, state_, unit_, place_, 0, work_}, state_, payload, {}, 1);
    }
    return first;
  }

  /// Seconds that a call with the state as it is takes.
  [[nodiscard]] double seconds(const float* x, uint32_t times) {
    return median_seconds(times, [&] {
      Trace trace;
      encode(x, trace);
    });
  }

  [[nodiscard]] const Spec& spec() const noexcept { return *spec_; }
  [[nodiscard]] Law law() const noexcept { return static_cast<Law>(params_.law); }

 private:
  Bytes encode(const float* x, Trace& trace) {
    const Encoded done = codecs::sidco::encode_traced({&params_, state_, unit_, place_, 0, work_},
                                                      {x, nullptr}, out_.bytes(), trace);
    return Bytes(out_.bytes()).first(done.bytes);
  }

  const Spec* spec_;
  Sidco::Params params_;
  Place place_{};
  Unit unit_;
  Plan plan_;
  std::vector<float> state_;
  Arena scratch_;
  Arena out_;
  Work work_{};
};

/// A tensor's non-zero values.
struct Values {
  std::vector<float> values;     ///< with their signs
  std::vector<float> ascending;  ///< their magnitudes
  bool finite = true;
};

Values non_zero(std::span<const float> x) {
  Values v;
  for (const float value : x) {
    if (!std::isfinite(value)) v.finite = false;
    if (value != 0) v.values.push_back(value);
  }
  if (!v.finite) return v;
  v.ascending = v.values;
  for (float& value : v.ascending) value = std::fabs(value);
  std::sort(v.ascending.begin(), v.ascending.end());
  return v;
}

/// As encode takes them, for one of the laws.
std::optional<Moments> moments_of(std::span<const float> x, Law law, double* unit) {
  Arena scratch;
  if (!scratch.reserve(Exceedances::scratch_bytes(x.size(), 1))) return {};
  const Work work{{}, scratch.bytes(), best_isa(), nullptr};
  Exceedances exceedances({x.data(), nullptr}, x.size(), 1, law, work);
  const Moments all = exceedances.all();
  *unit = exceedances.unit();
  return all;
}

Json law_json(const Values& v, const std::optional<MagnitudeLaw>& law, double unit = 1) {
  if (!law) return nullptr;
  Json json{{"ks", ks_distance(v.ascending, *law, unit)}};
  if (law->shape() != 0) json["shape"] = law->shape();
  return json;
}

/// {"exponential": {"ks"}, "gamma": {"ks", "shape"}, …}; null for a law that the codec would
/// not fit.
std::optional<Json> laws_json(std::span<const float> x, const Values& v) {
  double unit = 1;
  const auto with_logarithm = moments_of(x, Law::gamma_pareto, &unit);
  const auto with_variance = moments_of(x, Law::pareto, &unit);
  if (!with_logarithm || !with_variance) return {};
  return Json{
      {"exponential", law_json(v, MagnitudeLaw::exponential(with_variance->mean), unit)},
      {"gamma", law_json(v, MagnitudeLaw::gamma(*with_logarithm), unit)},
      {"pareto", law_json(v, MagnitudeLaw::pareto(*with_variance), unit)},
      {"normal", law_json(v, MagnitudeLaw::normal(v.values))},
      {"laplace", law_json(v, MagnitudeLaw::laplace(v.values))},
  };
}

/// The values to which a stage was fitted: the magnitudes above the threshold of the previous
/// stage.
std::span<const float> fitted_to(const Values& v, const Trace& t, uint32_t stage) {
  const std::span<const float> all(v.ascending);
  if (stage == 0) return all;
  const float above = t.stage[stage - 1].eta.value;
  return all.subspan(
      static_cast<std::size_t>(std::upper_bound(all.begin(), all.end(), above) - all.begin()));
}

Json stage_json(const Values& v, const Trace& t, Law law, uint32_t i) {
  const Stage& stage = t.stage[i];
  const auto fitted = MagnitudeLaw::of_stage(law, i == 0, stage.of);
  return {{"threshold", stage.eta.value},
          {"wanted", stage.wanted},
          {"selected", stage.selected},
          {"ks", ks_distance(fitted_to(v, t, i), fitted, t.unit, stage.low)}};
}

Json fit_json(const Values& v, const Trace& t, const Coder& coder) {
  Json stages = Json::array();
  for (uint32_t i = 0; i < t.stages; ++i) stages.push_back(stage_json(v, t, coder.law(), i));
  return {{"spec", coder.spec().canonical()},
          {"wanted", t.wanted},
          {"stages", stages},
          {"fitted", t.fitted},
          {"corrections", t.corrections},
          {"threshold", t.eta.value},
          {"exact", t.exact},
          {"sent", t.sent},
          {"memory_passes", t.memory_passes}};
}

double copy_seconds(std::span<const float> x, uint32_t times) {
  std::vector<float> copy(x.size());
  return median_seconds(times, [&] { std::memcpy(copy.data(), x.data(), x.size_bytes()); });
}

/// Everything about one tensor. Too few values, or some that are not finite, have "why" instead.
Result<Json> tensor_json(std::span<const float> x, std::vector<Coder>& coders,
                         const Options& options) {
  const Values v = non_zero(x);
  Json json{{"values", x.size()}, {"nonzero", v.values.size()}};
  if (!v.finite) {
    json["why"] = "not finite";
    return json;
  }
  if (v.values.size() < kFewest) {
    json["why"] =
        fmt::format("too few values: {} are not zero, the fits need {}", v.values.size(), kFewest);
    return json;
  }
  auto laws = laws_json(x, v);
  if (!laws) return no_memory(x.size());
  json["laws"] = std::move(*laws);
  Json fits = Json::array();
  if (options.times != 0) json["copy_seconds"] = copy_seconds(x, options.times);
  for (Coder& coder : coders) {
    const double seconds = options.times == 0 ? 0 : coder.seconds(x.data(), options.times);
    fits.push_back(fit_json(v, coder.encode(x.data(), options.calls), coder));
    if (options.times != 0) fits.back()["seconds"] = seconds;
  }
  const auto exponent =
      codecs::sidco::compressibility(v.ascending, fits.members()[0].value["wanted"].whole());
  json["compressibility"] = exponent ? Json(*exponent) : Json(nullptr);
  json["fits"] = std::move(fits);
  return json;
}

Result<std::vector<Spec>> parse_specs(const std::vector<std::string>& texts) {
  std::vector<Spec> specs;
  for (const std::string& text : texts) {
    auto spec = Spec::parse(text);
    if (!spec) return std::move(spec).error();
    if (spec->codec().info.name != Sidco::info.name) {
      return Error{Errc::invalid_argument,
                   fmt::format("{} matches no distribution", spec->canonical()),
                   "name settings of sidco, for example --spec sidco:law=gp,stages=2"};
    }
    specs.push_back(std::move(*spec));
  }
  return specs;
}

/// The tensors of one file, in their order.
Result<Json> file_json(const std::string& path, const Options& options,
                       const std::vector<Spec>& specs) {
  const auto values = read_floats(path);
  if (!values) return values.error();
  const uint64_t n = options.values != 0 ? options.values : values->size();
  if (n != 0 && values->size() % n != 0) {
    return Error{Errc::invalid_argument,
                 fmt::format("{}: {} values are not a whole number of tensors of {}", path,
                             values->size(), n),
                 "--values is the number of values of each tensor"};
  }
  if (n > Sidco::contract({}).max_count) {
    return Error{
        Errc::shape_unsupported, fmt::format("{}: sidco does not accept {} values", path, n), {}};
  }
  std::vector<Coder> coders;
  for (const Spec& spec : specs) {
    if (!coders.emplace_back(spec, n).reserve()) return no_memory(n);
  }
  Json tensors = Json::array();
  const uint64_t count = n == 0 ? 1 : values->size() / n;
  for (uint64_t i = 0; i < count; ++i) {
    auto tensor = tensor_json(std::span(*values).subspan(i * n, n), coders, options);
    if (!tensor) return tensor.error();
    Json entry{{"file", path}, {"index", i}};
    entry.update(*tensor);
    tensors.push_back(std::move(entry));
  }
  return tensors;
}

std::string distance_text(const Json& tensor, const char* law) {
  const Json& fitted = tensor["laws"][law];
  return fitted.is_null() ? "-" : fmt::format("{:.3f}", fitted["ks"].number());
}

std::string part_text(const Json& fit, const char* what) {
  return fmt::format("{:.2f}", fit[what].number() / fit["wanted"].number());
}

void print_tensors(const Json& tensors) {
  using Align = Table::Align;
  std::vector<Table::Column> columns{{"file"}, {"index", Align::right}, {"values", Align::right}};
  for (const char* law : {"exp", "gamma", "gp", "normal", "laplace"}) {
    columns.push_back({law, Align::right});
  }
  for (const char* what : {"spec", "fitted", "sent", "passes"}) {
    columns.push_back({what, *what == 's' && what[1] == 'p' ? Align::left : Align::right});
  }
  Table table(std::move(columns));
  for (const auto& [_, tensor] : tensors.members()) {
    std::vector<std::string> row{tensor["file"].text(), tensor["index"].dump(),
                                 tensor["values"].dump()};
    for (const char* law : {"exponential", "gamma", "pareto", "normal", "laplace"}) {
      row.push_back(distance_text(tensor, law));
    }
    if (const Json* const why = tensor.find("why")) {
      row.insert(row.end(), {why->text(), "", "", ""});
      table.add(std::move(row));
      continue;
    }
    for (const auto& [__, fit] : tensor["fits"].members()) {
      std::vector<std::string> line = row;
      line.insert(line.end(), {fit["spec"].text(), part_text(fit, "fitted"), part_text(fit, "sent"),
                               fit["memory_passes"].dump()});
      table.add(std::move(line));
    }
  }
  table.print();
  fmt::print(
      "\nexp to laplace: Kolmogorov-Smirnov distance of the magnitudes from the law. fitted, sent: "
      "in "
      "parts of what was wanted,\nbefore and after the guard. passes: how often all values were "
      "read.\n");
}

int laws(const Options& options) {
  const auto specs = parse_specs(options.specs);
  if (!specs) return fail(specs.error(), options.json, kUsage);
  Json tensors = Json::array();
  for (const std::string& file : options.files) {
    auto found = file_json(file, options, *specs);
    if (!found) return fail(found.error(), options.json, kUsage);
    for (const auto& [_, tensor] : found->members()) tensors.push_back(tensor);
  }
  options.json ? print_json({{"tensors", tensors}}) : print_tensors(tensors);
  return kFine;
}

}  // namespace

Run add_laws(Program& program) {
  const Command command = program.add_command(
      "laws",
      "whether gradients follow the distributions that sidco fits, and what its fits select");
  const auto options = std::make_shared<Options>();
  options->specs = {"sidco"};
  command.add_option("files", options->files, "raw float32, little-endian; a tensor each")
      .required();
  command.add_option("--spec", options->specs, "settings of sidco; may be repeated")
      .allow_extra_args(false)  // the files follow
      .capture_default_str();
  command.add_option("--values", options->values,
                     "number of values of each tensor in a file: one layer's gradients in order");
  command
      .add_option("--calls", options->calls,
                  "calls with each tensor; the first is reported: what the adaptive "
                  "number of stages learns from")
      .range(1, 1000000)
      .capture_default_str();
  command
      .add_option("--times", options->times,
                  "time this number of encodings and of copies of each tensor: the medians "
                  "are in --json")
      .range(0, 1000000)
      .capture_default_str();
  command.add_flag("--json", options->json, "machine-readable");
  return [options] { return laws(*options); };
}

}  // namespace laconic::tools
