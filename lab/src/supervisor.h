// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Runs the COMMANDs on a link: starts them, relays their output, changes rates, and ends when they
// have ended.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "control.h"
#include "event_loop.h"
#include "output.h"
#include "program.h"
#include "report.h"

namespace laconic::lab {

class Supervisor {
 public:
  Supervisor(const Options& options, std::unique_ptr<Link> link, const OpenFileLimit& files);

  /// `lifeline` ends when the lab's outer process is gone. Blocks until all COMMANDs have ended.
  Report run(int lifeline);

 private:
  using Clock = EventLoop::Clock;

  Result<void> prepare(int lifeline);
  Result<void> begin();
  void await_switch(uint32_t looks);
  Result<void> start_programs();
  Result<void> relay_output(Program& program);
  Result<void> relay_stream(Program& program, Fd source, int target, const char* suffix);
  void plan_timers();
  void plan_turn(std::size_t turn);
  void on_signal();
  void reap();
  void on_ending(Program& program);
  void on_switch_ending();
  void on_beside_ending(const Program& program);
  void on_forwarder_ending(const Ending& ending);
  void end_companions();
  void await_companions();
  std::vector<Program*> companions();
  void stop(std::optional<Error> why);
  void signal_all(int signal);
  Result<void> change_rate(BitRate rate, const char* cause);
  ControlServer::Answer answer(std::string_view line);
  std::string answer_status();
  std::string answer_rate(std::string_view text);
  std::string answer_loss(std::string_view text);
  std::string answer_counters();
  ControlServer::Answer answer_enter(std::string_view host);
  [[nodiscard]] std::optional<Error> failures() const;
  [[nodiscard]] Duration elapsed() const;
  [[nodiscard]] std::string name_of(const Program& program) const;
  Result<std::vector<PortCounters>> counters();
  Report report();

  const Options& options_;
  std::unique_ptr<Link> link_;
  const OpenFileLimit& files_;
  EventLoop loop_;
  ControlServer control_;
  Fd signals_;
  std::list<LineRelay> relays_;
  std::vector<Program> programs_;  ///< none until the switch's COMMAND is ready
  std::vector<Program> beside_;    ///< of --beside, started with them
  std::optional<Program> switch_;  ///< of --switch
  bool released_ = false;          ///< these two may end now
  std::vector<RateEvent> rates_;
  std::vector<PortCounters> at_start_;
  Shaping shaping_;
  Clock::time_point start_;
  std::optional<Error> error_;
  bool stopping_ = false;
};

}  // namespace laconic::lab
