// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What scripts/proof.py compiles to measure the machine. Budgets count in the time that this takes:
// after a change here, or of the options in proof.py, every figure has to be measured again.
#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

template <typename Key>
std::size_t counted(const std::vector<Key>& keys) {
  std::map<Key, std::vector<std::size_t>> places;
  std::unordered_map<std::string, std::function<bool(const Key&, const Key&)>> orders;
  for (std::size_t i = 0; i < keys.size(); ++i) places[keys[i]].push_back(i);
  orders["less"] = std::less<Key>();
  orders["greater"] = std::greater<Key>();
  std::size_t sum = 0;
  for (auto& [name, order] : orders) {
    std::vector<Key> sorted(keys);
    std::stable_sort(sorted.begin(), sorted.end(), order);
    sum += name.size() + places[sorted.front()].size();
  }
  return sum;
}

}  // namespace

std::size_t calibration(const std::vector<int>& a, const std::vector<double>& b) {
  return counted(a) + counted(b);
}
