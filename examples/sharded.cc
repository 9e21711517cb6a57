// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A softmax regression whose optimizer steps between push and pull: momentum, then AdamW. Over MPI,
// over Gloo, or with four threads of one process as ranks:
//
//   mpirun -n 4 example_sharded_openmpi           compiled with -DSHARDED_MPI
//   example_sharded_gloo RANK WORLD RENDEZVOUS    compiled with -DSHARDED_GLOO; see GlooOptions
//   example_sharded
#if defined(SHARDED_MPI)
#include <laconic/engine/mpi.h>
#elif defined(SHARDED_GLOO)
#include <laconic/engine/gloo.h>
#else
#include <laconic/loopback.h>
#endif
#include <laconic/random.h>
#include <laconic/sharded.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr size_t kInputs = 64, kClasses = 8, kBatch = 8;
using Floats = std::vector<float>;

float draw(uint32_t stream, uint64_t i) {
  return static_cast<float>(laconic::philox({7, stream}, 0, i)[0] >> 8) / 8388608.0F - 1.0F;
}

/// A rank's inputs of a step, classified by a teacher; gives the mean loss.
double gradients(const laconic::Engine& engine, uint64_t step, const Floats& weight,
                 const Floats& bias, Floats& gradient) {
  double loss = 0;
  std::fill(gradient.begin(), gradient.end(), 0.0F);
  for (size_t sample = 0; sample < kBatch; ++sample) {
    const uint64_t at = ((step * engine.world() + engine.rank()) * kBatch + sample) * kInputs;
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
    const double loss = gradients(engine, step, weight, bias, gradient);
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

bool learned(const char* name, const laconic::Engine& engine, const Outcome& o) {
  if (!o.failure.empty()) {
    std::printf("%s\n", o.failure.c_str());
    return false;
  }
  double sum = 0;  // equal on all ranks
  for (const float w : o.weight) sum = 1.000001 * sum + w;
  std::printf("%s, rank %u of %u: loss %.3f -> %.3f, weights %a\n", name, engine.rank(),
              engine.world(), o.first, o.last, sum);
  return o.last < 0.6 * o.first;
}

/// Both optimizers on this rank.
bool run(laconic::Engine& engine) {
  Outcome momentum, adamw;
  Momentum sgd;
  train(engine, sgd, momentum);
  AdamW adam;
  train(engine, adam, adamw);
  const bool first = learned("momentum", engine, momentum);
  return learned("AdamW", engine, adamw) && first;
}

}  // namespace

#if defined(SHARDED_MPI)

int main(int argc, char** argv) {
  laconic::MpiEngine engine(&argc, &argv, {.environment = std::getenv});
  return run(engine) ? 0 : 1;
}

#elif defined(SHARDED_GLOO)

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const auto number = [&](int i) { return static_cast<uint32_t>(std::stoul(argv[i])); };
  auto engine = laconic::GlooEngine::create(
      {.rank = number(1), .world = number(2), .rendezvous = argv[3], .interface_ = "lo"});
  if (!engine) {
    std::printf("%s\n", engine.error().message.c_str());
    return 1;
  }
  return run(**engine) ? 0 : 1;
}

#else

int main() {
  constexpr uint32_t kRanks = 4;
  laconic::LoopbackHub hub(kRanks);
  std::vector<int> good(kRanks);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < kRanks; ++r)
    ranks.emplace_back([&, r] { good[r] = run(hub.engine(r)) ? 1 : 0; });
  for (std::thread& rank : ranks) rank.join();
  return std::count(good.begin(), good.end(), 1) == kRanks ? 0 : 1;
}

#endif
