// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>

#include <exception>
#include <mutex>
#include <utility>

#include "metrics.h"

namespace laconic::tools {
namespace {

using prometheus::ClientMetric;
using prometheus::MetricFamily;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

/// One name, its help and its values.
class Family {
 public:
  Family(std::string name, std::string help, MetricType type) {
    family_.name = "laconic_" + std::move(name);
    family_.help = std::move(help);
    family_.type = type;
  }
  void add(Labels labels, double value) {
    ClientMetric metric;
    metric.label = std::move(labels);
    (family_.type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
    family_.metric.push_back(std::move(metric));
  }
  void add(Labels labels, uint64_t value) { add(std::move(labels), static_cast<double>(value)); }
  [[nodiscard]] MetricFamily take() { return std::move(family_); }

 private:
  MetricFamily family_;
};

Family counter(const char* name, const char* help) { return {name, help, MetricType::Counter}; }
Family gauge(const char* name, const char* help) { return {name, help, MetricType::Gauge}; }

std::string name_of(const JobFigures& job) { return fmt::format("{:016x}", job.number); }

constexpr std::size_t kFaults = 7;
std::string fault_name(std::size_t fault) {
  return std::string(aggregation::protocol::datagram_fault_name(
      static_cast<aggregation::protocol::DatagramFault>(fault)));
}

void add_jobs(const Figures& figures, std::vector<MetricFamily>& all) {
  struct Count {
    const char* name;
    const char* help;
    uint64_t aggregation::JobStats::*value;
  };
  static constexpr Count kCounts[] = {
      {"job_datagrams_total", "datagrams of the job that were accepted",
       &aggregation::JobStats::datagrams},
      {"job_duplicates_total", "contributions that were already in their sum",
       &aggregation::JobStats::duplicates},
      {"job_late_total", "contributions to a sum that was closed without them",
       &aggregation::JobStats::late},
      {"job_resent_results_total", "results that a worker requested again",
       &aggregation::JobStats::stored},
      {"job_beyond_ring_total", "contributions too far ahead of the slowest worker",
       &aggregation::JobStats::beyond},
      {"job_sums_total", "sums that were closed", &aggregation::JobStats::closed},
      {"job_partial_sums_total", "sums that were closed without all workers",
       &aggregation::JobStats::partial},
      {"job_multicast_sums_total", "sums that were sent once, by multicast",
       &aggregation::JobStats::together},
      {"job_fetched_sums_total", "sums that workers restored after a restart",
       &aggregation::JobStats::fetched},
  };
  for (const Count& count : kCounts) {
    Family family = counter(count.name, count.help);
    for (const JobFigures& job : figures.jobs) {
      family.add({{"job", name_of(job)}}, job.stats.*count.value);
    }
    all.push_back(family.take());
  }
  Family rejected = counter("job_rejected_total", "datagrams of the job that were dropped");
  Family open = gauge("job_open_slots", "sums with missing contributions");
  Family kept = gauge("job_kept_slots", "closed sums that some workers have not received");
  Family state = gauge("job_state", "1 for the state that the job is in");
  for (const JobFigures& job : figures.jobs) {
    for (std::size_t fault = 1; fault < kFaults; ++fault) {
      rejected.add({{"job", name_of(job)}, {"reason", fault_name(fault)}},
                   job.stats.rejected[fault]);
    }
    open.add({{"job", name_of(job)}}, uint64_t{job.open});
    kept.add({{"job", name_of(job)}}, uint64_t{job.kept});
    state.add({{"job", name_of(job)}, {"state", std::string(state_name(job.state))}}, 1.0);
  }
  for (Family* family : {&rejected, &open, &kept, &state}) all.push_back(family->take());
}

void add_workers(const Figures& figures, std::vector<MetricFamily>& all) {
  Family lag = gauge("worker_lag_sums", "closed sums that the worker has not acknowledged");
  Family trip = gauge("worker_round_trip_seconds",
                      "from a sum's closing to the worker's acknowledgement, smoothed");
  for (const JobFigures& job : figures.jobs) {
    for (std::size_t w = 0; w < job.workers.size(); ++w) {
      const Labels labels{{"job", name_of(job)}, {"worker", std::to_string(w)}};
      lag.add(labels, job.workers[w].lag);
      trip.add(labels, job.workers[w].round_trip);
    }
  }
  all.push_back(lag.take());
  all.push_back(trip.take());
}

void add_server(const Figures& figures, std::vector<MetricFamily>& all) {
  const auto single = [&](Family family, uint64_t value) {
    family.add({}, value);
    all.push_back(family.take());
  };
  const aggregation::ServerStats& s = figures.server;
  single(counter("server_datagrams_total", "datagrams received"), s.datagrams);
  single(counter("server_strangers_total", "datagrams of unknown jobs"), s.strangers);
  single(counter("server_unanswered_total", "unknown senders above the reply rate limit"),
         s.unanswered);
  single(counter("server_refusals_total", "registrations refused"), s.refusals);
  single(gauge("server_jobs", "jobs"), figures.jobs.size());
  single(gauge("server_memory_bytes", "memory of all jobs"), figures.memory);
  Family rejected = counter("server_rejected_total", "datagrams dropped");
  for (std::size_t fault = 1; fault < kFaults; ++fault) {
    rejected.add({{"reason", fault_name(fault)}}, s.rejected[fault]);
  }
  all.push_back(rejected.take());
}

/// Asked by the threads of the HTTP server.
class Collected final : public prometheus::Collectable {
 public:
  [[nodiscard]] std::vector<MetricFamily> Collect() const override {
    const std::lock_guard lock(mutex_);
    std::vector<MetricFamily> all;
    add_jobs(figures_, all);
    add_workers(figures_, all);
    add_server(figures_, all);
    return all;
  }
  void show(Figures figures) {
    const std::lock_guard lock(mutex_);
    figures_ = std::move(figures);
  }

 private:
  mutable std::mutex mutex_;
  Figures figures_;
};

/// Threads of CivetWeb: the number of clients served at once.
constexpr const char* kThreads = "8";
constexpr const char* kRequestMs = "1000";

class PrometheusMetrics final : public Metrics {
 public:
  /// Throws what CivetWeb throws.
  explicit PrometheusMetrics(const std::string& address)
      : exposer_({"listening_ports", address, "num_threads", kThreads, "request_timeout_ms",
                  kRequestMs, "enable_keep_alive", "no"}),
        collected_(std::make_shared<Collected>()) {
    exposer_.RegisterCollectable(collected_);
    const auto ports = exposer_.GetListeningPorts();
    address_ = address.substr(0, address.rfind(':')) + ":" +
               std::to_string(ports.empty() ? 0 : ports.front());
  }
  void show(Figures figures) override { collected_->show(std::move(figures)); }
  [[nodiscard]] const std::string& address() const override { return address_; }

 private:
  prometheus::Exposer exposer_;
  std::shared_ptr<Collected> collected_;
  std::string address_;
};

}  // namespace

std::string_view why_no_metrics() noexcept { return {}; }

Result<std::unique_ptr<Metrics>> open_metrics(const std::string& address) {
  if (address.rfind(':') == std::string::npos || address.back() == ':') {
    return Error{Errc::invalid_argument, fmt::format("--metrics '{}': no port", address),
                 "HOST:PORT, for example 127.0.0.1:9420"};
  }
  try {
    return std::unique_ptr<Metrics>(std::make_unique<PrometheusMetrics>(address));
  } catch (const std::exception& error) {
    return Error{Errc::invalid_argument,
                 fmt::format("--metrics {}: cannot listen there ({})", address, error.what()),
                 "use an address of this machine and a free port"};
  }
}

}  // namespace laconic::tools
