// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A perceptron for scikit-learn's digits, trained by the ranks of an MPI job:
//
//   python examples/export_digits.py digits.txt
//   g++ -std=c++20 mpi_train.cc $(pkg-config --variable=engines laconic++)/mpi/*.cc
//       $(pkg-config --cflags --libs laconic++ eigen3 mpi-c)   (one command)
//   mpirun -n 2 ./a.out digits.txt 3lc
#include <laconic/engine/mpi.h>
#include <laconic/random.h>
#include <laconic/session.h>

#include <Eigen/Dense>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace {

using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using MatrixView = Eigen::Map<Matrix>;

constexpr int kPixels = 64, kHidden = 256, kClasses = 10;
constexpr uint64_t kBatch = 128, kSteps = 300;  // samples of a step, of all ranks together

/// A row per sample.
struct Images {
  Matrix pixels;
  std::vector<int> labels;
};

/// Lines of "train" or "test", a label and 64 pixels from 0 to 16.
bool read(const char* path, Images* train, Images* test) {
  std::ifstream file(path);
  std::vector<float> pixels[2];
  std::string part;
  for (int label = 0; file >> part >> label;) {
    const bool is_test = part == "test";
    (is_test ? test : train)->labels.push_back(label);
    for (int i = 0; i < kPixels; ++i) {
      float x = 0;
      file >> x;
      pixels[is_test ? 1 : 0].push_back(x / 16.0F);
    }
  }
  for (Images* images : {train, test}) {
    auto& list = pixels[images == test ? 1 : 0];
    const auto count = static_cast<Eigen::Index>(images->labels.size());
    if (count == 0 || list.size() != images->labels.size() * kPixels) return false;
    images->pixels = MatrixView(list.data(), count, kPixels);
  }
  return true;
}

/// This rank's part of a step's samples, the same for any number of ranks.
Images batch(const Images& from, uint64_t step, uint32_t rank, uint32_t world) {
  Images part;
  for (uint64_t i = rank; i < kBatch; i += world) {
    const uint32_t word = laconic::philox({2026, 1}, step, i)[0];
    part.labels.push_back(static_cast<int>(word % from.labels.size()));
  }
  part.pixels.resize(static_cast<Eigen::Index>(part.labels.size()), kPixels);
  for (size_t i = 0; i < part.labels.size(); ++i) {
    const int sample = part.labels[i];
    part.pixels.row(static_cast<Eigen::Index>(i)) = from.pixels.row(sample);
    part.labels[i] = from.labels[static_cast<size_t>(sample)];
  }
  return part;
}

/// Layers of 64, 256, 256 and 10, weights and biases back to back.
class Net {
 public:
  Net() {
    uint64_t size = 0;
    for (const auto& p : parameters()) size += p.count();
    weights_.resize(size);
    gradient_.resize(size);
    for (int layer = 0; layer < 3; ++layer) {
      auto w = weight(weights_, layer);
      const float scale = std::sqrt(6.0F / static_cast<float>(w.cols()));
      for (Eigen::Index i = 0; i < w.size(); ++i) {
        const auto word =
            laconic::philox({2026, 2}, static_cast<uint64_t>(i), static_cast<uint64_t>(layer))[0];
        w.data()[i] = scale * (static_cast<float>(word >> 8) / 8388608.0F - 1.0F);
      }
    }
  }
  [[nodiscard]] static std::vector<laconic::Parameter> parameters() {
    return {{"1.weight", kHidden, kPixels},  {"1.bias", kHidden},
            {"2.weight", kHidden, kHidden},  {"2.bias", kHidden},
            {"3.weight", kClasses, kHidden}, {"3.bias", kClasses}};
  }
  std::vector<float>& gradient() { return gradient_; }
  void sgd(float rate) {
    for (size_t i = 0; i < weights_.size(); ++i) weights_[i] -= rate * gradient_[i];
  }

  /// The gradient of the mean cross entropy.
  void backward(const Images& images) {
    const Matrix h1 = hidden(images.pixels, 0), h2 = hidden(h1, 1);
    Matrix d = scores(h2);
    for (Eigen::Index i = 0; i < d.rows(); ++i) {
      d.row(i) = (d.row(i).array() - d.row(i).maxCoeff()).exp();
      d.row(i) /= d.row(i).sum();
      d(i, images.labels[static_cast<size_t>(i)]) -= 1.0F;
    }
    d /= static_cast<float>(d.rows());
    set(2, d, h2);
    d = ((d * weight(weights_, 2)).array() * (h2.array() > 0).cast<float>()).matrix().eval();
    set(1, d, h1);
    d = ((d * weight(weights_, 1)).array() * (h1.array() > 0).cast<float>()).matrix().eval();
    set(0, d, images.pixels);
  }

  double accuracy(const Images& images) {
    const Matrix out = scores(hidden(hidden(images.pixels, 0), 1));
    int right = 0;
    for (Eigen::Index i = 0; i < out.rows(); ++i) {
      Eigen::Index best = 0;
      out.row(i).maxCoeff(&best);
      right += best == images.labels[static_cast<size_t>(i)] ? 1 : 0;
    }
    return right / static_cast<double>(out.rows());
  }
  /// Replicas have the same.
  [[nodiscard]] uint64_t fingerprint() const {
    uint64_t hash = 14695981039346656037U;
    for (const float w : weights_) hash = (hash ^ laconic::float_bits(w)) * 1099511628211U;
    return hash;
  }

 private:
  static float* at(std::vector<float>& all, int parameter) {
    uint64_t offset = 0;
    for (int i = 0; i < parameter; ++i) offset += parameters()[static_cast<size_t>(i)].count();
    return all.data() + offset;
  }
  static MatrixView weight(std::vector<float>& all, int layer) {
    const auto& p = parameters()[static_cast<size_t>(2 * layer)];
    return {at(all, 2 * layer), static_cast<Eigen::Index>(p.rows),
            static_cast<Eigen::Index>(p.cols)};
  }
  static Eigen::Map<Eigen::RowVectorXf> bias(std::vector<float>& all, int layer) {
    return {at(all, 2 * layer + 1), weight(all, layer).rows()};
  }
  Matrix linear(const Matrix& x, int layer) {
    return (x * weight(weights_, layer).transpose()).rowwise() + bias(weights_, layer);
  }
  Matrix hidden(const Matrix& x, int layer) { return linear(x, layer).cwiseMax(0.0F); }
  Matrix scores(const Matrix& x) { return linear(x, 2); }
  void set(int layer, const Matrix& d, const Matrix& x) {
    weight(gradient_, layer) = d.transpose() * x;
    bias(gradient_, layer) = d.colwise().sum();
  }

  std::vector<float> weights_, gradient_;
};

int fail(const laconic::Error& error) {
  std::fprintf(stderr, "%s (%s)\n", error.message.c_str(), error.hint.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  laconic::MpiEngine engine(&argc, &argv, {.environment = std::getenv});
  Images train, test;
  if (argc < 2 || !read(argv[1], &train, &test)) {
    std::fprintf(stderr, "usage: mpi_train DIGITS [SPEC], DIGITS as export_digits.py writes it\n");
    return 2;
  }
  Net net;
  auto session = laconic::Session::create(argc > 2 ? argv[2] : "3lc", net.parameters(), engine);
  if (!session) return fail(session.error());
  for (uint64_t step = 0; step < kSteps; ++step) {
    net.backward(batch(train, step, engine.rank(), engine.world()));
    if (auto done = (*session)->average(step, net.gradient()); !done) return fail(done.error());
    net.sgd(0.2F);
  }
  std::printf("rank %u of %u: accuracy %.4f, weights %016llx\n", engine.rank(), engine.world(),
              net.accuracy(test), static_cast<unsigned long long>(net.fingerprint()));
  return 0;
}
