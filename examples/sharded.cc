// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A softmax regression whose optimizer steps between push and pull: momentum, then AdamW. Four
// ranks are threads here; any other engine (laconic/engine/mpi.h, laconic/engine/gloo.h) takes the
// hub's place.
#include <laconic/loopback.h>
#include <laconic/random.h>
#include <laconic/sharded.h>

#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kRanks = 4;
constexpr size_t kInputs = 64, kClasses = 8, kBatch = 8;
using Floats = std::vector<float>;

float draw(uint32_t stream, uint64_t i) {
  return static_cast<float>(laconic::philox({7, stream}, 0, i)[0] >> 8) / 8388608.0F - 1.0F;
}

/// A rank's inputs of a step, classified by a teacher; gives the mean loss.
double gradients(uint32_t rank, uint64_t step, const Floats& weight, const Floats& bias,
                 Floats& gradient) {
  double loss = 0;
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  for (size_t sample = 0; sample < kBatch; ++sample) {
    const uint64_t at = ((step * kRanks + rank) * kBatch + sample) * kInputs;
    Floats x(kInputs), score = bias, teacher(kClasses);
    for (size_t i = 0; i < kInputs; ++i) {
      x[i] = draw(1, at + i);
      for (size_t c = 0; c < kClasses; ++c) {
        score[c] += weight[c * kInputs + i] * x[i];
        teacher[c] += draw(2, c * kInputs + i) * x[i];
      }
    }
    size_t label = 0;
    for (size_t c = 1; c < kClasses; ++c) label = teacher[c] > teacher[label] ? c : label;
    float sum = 0;
    for (float& s : score) sum += s = std::exp(s);
    loss -= std::log(score[label] / sum) / kBatch;
    for (size_t c = 0; c < kClasses; ++c) {
      const float error = (score[c] / sum - (c == label ? 1.0F : 0.0F)) / kBatch;
      for (size_t i = 0; i < kInputs; ++i) gradient[c * kInputs + i] += error * x[i];
      gradient[kClasses * kInputs + c] += error;
    }
  }
  return loss;
}

class Optimizer {
 public:
  virtual ~Optimizer() = default;
  /// `key` names the values, whose state lives here.
  virtual void step(uint64_t key, std::span<const float> mean, std::span<float> values) = 0;
};

class Momentum final : public Optimizer {
 public:
  void step(uint64_t key, std::span<const float> mean, std::span<float> values) override {
    Floats& velocity = velocities_[key];
    velocity.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      velocity[i] = 0.9F * velocity[i] + mean[i];
      values[i] -= 0.1F * velocity[i];
    }
  }

 private:
  std::map<uint64_t, Floats> velocities_;
};

class AdamW final : public Optimizer {
 public:
  void step(uint64_t key, std::span<const float> mean, std::span<float> values) override {
    State& s = states_[key];
    s.m.resize(values.size());
    s.v.resize(values.size());
    ++s.steps;
    const float m_bias = 1.0F - std::pow(0.9F, static_cast<float>(s.steps));
    const float v_bias = 1.0F - std::pow(0.999F, static_cast<float>(s.steps));
    for (size_t i = 0; i < values.size(); ++i) {
      s.m[i] = 0.9F * s.m[i] + 0.1F * mean[i];
      s.v[i] = 0.999F * s.v[i] + 0.001F * mean[i] * mean[i];
      values[i] -=
          0.01F * (0.01F * values[i] + s.m[i] / m_bias / (std::sqrt(s.v[i] / v_bias) + 1e-8F));
    }
  }

 private:
  struct State {
    Floats m, v;
    int steps = 0;
  };
  std::map<uint64_t, State> states_;
};

struct Outcome {
  double first = 0, last = 0;  // losses
  Floats weight;
  std::string failure;
};

void train(laconic::Engine& engine, Optimizer& optimizer, Outcome& out) {
  Floats weight(kClasses * kInputs), bias(kClasses);
  const std::vector<laconic::Parameter> parameters{{"weight", kClasses, kInputs},
                                                   {"bias", kClasses}};
  const std::vector<std::span<float>> values{weight, bias};
  laconic::SessionOptions options;
  options.small_elements = 16;  // the bias is stepped by every rank
  auto sharded = laconic::Sharded::create("3lc", "3lc", parameters, values, engine, options);
  if (!sharded) {
    out.failure = sharded.error().message;
    return;
  }
  Floats gradient(weight.size() + bias.size());
  const std::vector<uint32_t> both{0, 1};
  for (uint64_t step = 0; step < 200; ++step) {
    const double loss = gradients(engine.rank(), step, weight, bias, gradient);
    (step == 0 ? out.first : out.last) = loss;
    auto pushed = (*sharded)->push(step, {gradient, both});
    auto stepped = (*sharded)->step([&](const laconic::OwnedRange& range) -> laconic::Result<void> {
      optimizer.step(range.parameter * 1000000 + range.offset, range.mean, range.master);
      return {};
    });
    if (!pushed || !stepped) {
      out.failure = stepped ? pushed.error().message : stepped.error().message;
      return;
    }
    if (*stepped) optimizer.step(~0ULL, std::span(gradient).subspan(weight.size()), bias);
  }
  out.weight = weight;
}

template <class Kind>
bool run(const char* name) {
  laconic::LoopbackHub hub(kRanks);
  std::vector<Outcome> outcomes(kRanks);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < kRanks; ++r) {
    ranks.emplace_back([&, r] {
      Kind optimizer;
      train(hub.engine(r), optimizer, outcomes[r]);
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const Outcome& o : outcomes) {
    if (!o.failure.empty()) std::printf("%s\n", o.failure.c_str());
    if (!o.failure.empty() || o.weight != outcomes[0].weight) return false;
  }
  std::printf("%-9s loss %.3f -> %.3f, parameters equal on %u ranks\n", name, outcomes[0].first,
              outcomes[0].last, kRanks);
  return outcomes[0].last < 0.6 * outcomes[0].first;
}

}  // namespace

int main() {
  const bool both = run<Momentum>("momentum") && run<AdamW>("AdamW");
  return both ? 0 : 1;
}
