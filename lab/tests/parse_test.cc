// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The parts of `laconic lab` that are pure functions: units, schedule, command line, kernel
// counters.
#include <gtest/gtest.h>

#include <set>

#include "../src/counters.h"
#include "../src/network.h"
#include "../src/options.h"
#include "../src/program.h"
#include "../src/units.h"

namespace laconic::lab {
namespace {

using std::chrono::milliseconds;

TEST(LabRate, ReadsUnitsAsPowersOfThousand) {
  EXPECT_EQ(*parse_rate("50mbit"), 50'000'000U);
  EXPECT_EQ(*parse_rate("2.5 Gbit"), 2'500'000'000U);
  EXPECT_EQ(*parse_rate("64kbit"), 64'000U);
  EXPECT_EQ(*parse_rate("9000bit"), 9'000U);
  EXPECT_EQ(*parse_rate("off"), kUnshaped);
}

TEST(LabRate, RefusesNonRatesAndNamesUnits) {
  for (const char* text :
       {"", "50", "mbit", "50mb", "50mbps", "-1mbit", "1e99gbit", "nan mbit", "0mbit", "7kbit"})
    EXPECT_FALSE(parse_rate(text)) << text;
  const auto bad = parse_rate("50mbps");
  EXPECT_EQ(bad.error().code, Errc::invalid_argument);
  EXPECT_NE(bad.error().message.find("mbps"), std::string::npos);
  EXPECT_NE(bad.error().hint.find("kbit, mbit, gbit"), std::string::npos);
}

TEST(LabRate, FormatsBack) {
  for (const char* text : {"50mbit", "2.5gbit", "64kbit", "off", "10gbit"})
    EXPECT_EQ(format_rate(*parse_rate(text)), text);
}

TEST(LabRate, SeveralRatesAlternate) {
  EXPECT_EQ(*parse_rates("100mbit,10mbit"), (std::vector<BitRate>{100'000'000, 10'000'000}));
  EXPECT_EQ(*parse_rates("1gbit, off"), (std::vector<BitRate>{1'000'000'000, kUnshaped}));
  EXPECT_EQ(*parse_rates("5mbit"), std::vector<BitRate>{5'000'000});
  EXPECT_EQ(format_rates(*parse_rates("100mbit,10mbit")), "100mbit,10mbit");
  for (const char* text :
       {"", ",", "5mbit,", ",5mbit", "5mbit,,6mbit", "5mbit;6mbit", "5mbit 6mbit"})
    EXPECT_FALSE(parse_rates(text)) << text;
}

TEST(LabSize, ReadsUnitsAsPowersOf1024) {
  EXPECT_EQ(*parse_size("64kb"), 65536U);
  EXPECT_EQ(*parse_size("64k"), 65536U);
  EXPECT_EQ(*parse_size("1mb"), 1048576U);
  EXPECT_EQ(*parse_size("1514"), 1514U);
  EXPECT_EQ(format_size(65536), "64kb");
  EXPECT_FALSE(parse_size("64kbit"));
  EXPECT_FALSE(parse_size("9gb"));
}

TEST(LabTime, ReadsUnits) {
  EXPECT_EQ(*parse_time("10ms"), milliseconds(10));
  EXPECT_EQ(*parse_time("1.5s"), milliseconds(1500));
  EXPECT_EQ(*parse_time("20"), milliseconds(20'000));
  EXPECT_EQ(*parse_time("2min"), milliseconds(120'000));
  EXPECT_FALSE(parse_time("3 fortnights"));
  for (const char* text : {"10ms", "0.2ms", "1.5s", "120s"})
    EXPECT_EQ(format_time(*parse_time(text)), text);
}

TEST(LabShare, ReadsPercent) {
  EXPECT_DOUBLE_EQ(*parse_share("1%"), 0.01);
  EXPECT_DOUBLE_EQ(*parse_share("0.05 %"), 0.0005);
  for (const char* text : {"", "%", "1", "0.01", "100%", "-1%", "1%%", "nan%"})
    EXPECT_FALSE(parse_share(text)) << text;
}

TEST(LabSchedule, ReadsEntries) {
  const auto schedule = parse_schedule("t=0 100mbit, t=20 10mbit,t=500ms 1gbit");
  EXPECT_FALSE(schedule) << "times must increase";
  const std::vector<RateChange> expected{{milliseconds(0), 100'000'000},
                                         {milliseconds(20'000), kUnshaped}};
  EXPECT_EQ(*parse_schedule("t=0 100mbit, t=20s off"), expected);
}

TEST(LabSchedule, RefusesOtherText) {
  for (const char* text : {"", "100mbit", "t=0", "t=0 ", "0 100mbit", "t=x 1mbit", "t=0 1mbit,",
                           "t=0 1mbit; t=1 2mbit"})
    EXPECT_FALSE(parse_schedule(text)) << text;
}

TEST(LabLoss, DropsTheGivenShareOfRandomNumbers) {
  EXPECT_EQ(loss_bytecode(0.25), "4,32 0 0 4294963256,37 0 1 1073741824,6 0 0 4294967295,6 0 0 2");
}

TEST(LabLoss, SwitchLossIsFoundByAddress) {
  EXPECT_EQ(loss_bytecode_from(0x0a4d00fe, 0.25),
            "6,32 0 0 26,21 0 2 172818686,32 0 0 4294963256,37 0 1 1073741824,6 0 0 4294967295,6 0 "
            "0 2");
}

TEST(LabHosts, HostsFileNamesSwitchOnlyIfPresent) {
  EXPECT_EQ(hosts_file(1, 0, false),
            "127.0.0.1 localhost\n10.77.0.1 host0\n::ffff:10.77.0.1 host0\n");
  EXPECT_EQ(hosts_file(1, 0, true),
            "127.0.0.1 localhost\n10.77.0.254 switch\n10.77.0.1 host0\n"
            "::ffff:10.77.0.254 switch\n::ffff:10.77.0.1 host0\n");
  EXPECT_EQ(hosts_file(1, 1, false),
            "127.0.0.1 localhost\n10.77.0.1 host0\n10.77.0.201 beside0\n"
            "::ffff:10.77.0.1 host0\n::ffff:10.77.0.201 beside0\n");
}

TEST(LabHosts, AddressesAreUnique) {
  Options options;
  options.hosts = 200;
  options.beside = 50;
  std::set<std::string> addresses{host_address(kSwitch)}, names{host_name(kSwitch)};
  for (const int host : all_hosts(options)) {
    addresses.insert(host_address(host));
    names.insert(host_name(host));
  }
  EXPECT_EQ(addresses.size(), 251U);
  EXPECT_EQ(names.size(), 251U);
  EXPECT_EQ(addresses.count("10.77.0.255"), 0U);
}

TEST(LabOptions, CommandFollowsTheDashes) {
  const auto o =
      parse_options({"--hosts", "4", "--rate", "50mbit", "--", "python", "x.py", "--json"});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->hosts, 4);
  EXPECT_EQ(o->shaping.rate, 50'000'000U);
  EXPECT_EQ(o->shaping.burst, 65536U);
  EXPECT_EQ(o->command, (std::vector<std::string>{"python", "x.py", "--json"}));
  EXPECT_FALSE(o->json);
  EXPECT_TRUE(o->pin);
}

TEST(LabOptions, FirstScheduleEntryIsTheFirstRate) {
  EXPECT_EQ(parse_options({"--schedule", "t=0 1mbit, t=1 2mbit", "--", "x"})->shaping.rate,
            1'000'000U);
  EXPECT_EQ(parse_options({"--rate", "3mbit", "--schedule", "t=1 2mbit", "--", "x"})->shaping.rate,
            3'000'000U);
}

TEST(LabOptions, SeveralRatesNeedPeriod) {
  const auto turns = parse_options({"--rate", "100mbit,10mbit", "--every", "3s", "--", "x"});
  ASSERT_TRUE(turns);
  EXPECT_EQ(turns->shaping.rate, 100'000'000U);
  EXPECT_EQ(turns->rates, (std::vector<BitRate>{100'000'000, 10'000'000}));
  EXPECT_EQ(turns->every, std::chrono::seconds(3));
  EXPECT_TRUE(parse_options({"--rate", "100mbit", "--", "x"})->rates.empty());
  const auto of = [](std::vector<std::string> words) {
    words.insert(words.end(), {"--", "x"});
    return parse_options(words).error().message;
  };
  EXPECT_NE(of({"--rate", "1mbit,2mbit"}).find("--every does not say"), std::string::npos);
  EXPECT_NE(of({"--rate", "1mbit", "--every", "3s"}).find("several rates"), std::string::npos);
  EXPECT_NE(of({"--every", "3s"}).find("several rates"), std::string::npos);
  EXPECT_NE(of({"--rate", "1mbit,2mbit", "--every", "1ms"}).find("below 100ms"), std::string::npos);
  EXPECT_NE(of({"--rate", "1mbit,2mbit", "--every", "3s", "--schedule", "t=1 off"}).find("exclude"),
            std::string::npos);
}

TEST(LabOptions, FramesHaveBoundsAndFitIntoTheBucket) {
  EXPECT_EQ(parse_options({"--", "x"})->mtu, 1500U);
  EXPECT_EQ(parse_options({"--mtu", "9000", "--", "x"})->mtu, 9000U);
  EXPECT_EQ(parse_options({"--mtu", "576", "--burst", "1124b", "--", "x"})->shaping.burst, 1124U);
  EXPECT_TRUE(parse_options({"--emulate", "--mtu", "1500", "--", "x"}));
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--mtu", "575"},
                                             {"--mtu", "9001"},
                                             {"--mtu", "-1"},
                                             {"--mtu", "1500b"},
                                             {"--mtu", "4294968796"},
                                             {"--mtu", "9000", "--burst", "9547b"},
                                             {"--burst", "2047b"},
                                             {"--emulate", "--mtu", "9000"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--", "x"});
    EXPECT_FALSE(parse_options(all)) << ::testing::PrintToString(words);
  }
}

TEST(LabOptions, DelayHasBounds) {
  const auto o = parse_options({"--delay", "5ms", "--jitter", "5ms", "--seed", "9", "--", "x"});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->shaping.jitter, milliseconds(5));
  EXPECT_EQ(o->shaping.seed, 9U);
  EXPECT_TRUE(parse_options({"--delay", "0ms", "--jitter", "0ms", "--", "x"}));
  EXPECT_TRUE(parse_options({"--delay", "10s", "--seed", "18446744073709551615", "--", "x"}));
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--jitter", "1ms"},
                                             {"--delay", "1ms", "--jitter", "2ms"},
                                             {"--delay", "10.1s"},
                                             {"--delay", "-1ms"},
                                             {"--delay", "1ms", "--jitter", "some"},
                                             {"--delay", "1ms", "--seed", "-1"},
                                             {"--delay", "1ms", "--seed", "1.5"},
                                             {"--delay", "1ms", "--seed", "18446744073709551616"},
                                             {"--emulate", "--delay", "1ms"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--", "x"});
    EXPECT_FALSE(parse_options(all)) << ::testing::PrintToString(words);
  }
}

TEST(LabOptions, OptionBesideTakesNumberAndCommand) {
  const auto o = parse_options({"--beside", "2", "ping -f host0", "--hosts", "3", "--", "x"});
  ASSERT_TRUE(o);
  EXPECT_EQ(o->beside, 2);
  EXPECT_EQ(o->at_beside, "ping -f host0");
  EXPECT_EQ(o->hosts, 3);
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--beside"},
                                             {"--beside", "2"},
                                             {"--beside", "0", "y"},
                                             {"--beside", "51", "y"},
                                             {"--beside", "two", "y"},
                                             {"--beside", "2x", "y"},
                                             {"--beside", "2", " "},
                                             {"--beside", "2", "y", "z"},
                                             {"--beside", "1", "y", "--beside", "1", "z"},
                                             {"--emulate", "--beside", "1", "y"}}) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--", "x"});
    const auto refused = parse_options(all);
    ASSERT_FALSE(refused) << ::testing::PrintToString(words);
    EXPECT_NE(refused.error().message.find("--beside"), std::string::npos);
  }
}

TEST(LabOptions, UsageErrors) {
  const std::vector<std::vector<std::string>> lines{
      {},
      {"--hosts", "4"},
      {"python", "x.py"},
      {"--hosts", "0", "--", "x"},
      {"--hosts", "many", "--", "x"},
      {"--unknown", "--", "x"},
      {"--rate", "fast", "--", "x"},
      {"--burst", "100b", "--", "x"},
      {"--queue", "1kb", "--", "x"},
      {"--loss", "2", "--", "x"},
      {"--emulate", "--delay", "1ms", "--", "x"},
      {"--port", "70000", "--", "x"},
      {"--per-host", "0", "--", "x"},
      {"--hosts", "200", "--per-host", "2", "--", "x"},
      {"--emulate", "--launcher", "--", "x"},
      {"--on"},
      {"--on", "--", "x"},
      {"--on", "", "x"},
      {"--on", "host1"},
      {"--on", "host1", "--"},
  };
  for (const auto& words : lines) {
    const auto o = parse_options(words);
    ASSERT_FALSE(o) << ::testing::PrintToString(words);
    EXPECT_EQ(o.error().code, Errc::invalid_argument);
  }
}

TEST(LabOptions, ArgumentsAfterOnHostFormCommand) {
  const std::vector<std::string> command{"orted", "--json", "--", "--hosts", "x"};
  for (const bool dashes : {false, true}) {
    std::vector<std::string> words{"--json", "--on", "host1"};
    if (dashes) words.emplace_back("--");
    words.insert(words.end(), command.begin(), command.end());
    const auto o = parse_options(words);
    ASSERT_TRUE(o) << o.error().message;
    EXPECT_EQ(o->on, "host1");
    EXPECT_EQ(o->command, command);
    EXPECT_TRUE(o->json);
  }
  EXPECT_TRUE(parse_options({"--", "ssh", "--on", "host1"})->on.empty());
}

TEST(LabPrograms, RanksOfOneHostAreConsecutive) {
  Options options;
  options.hosts = 2;
  options.per_host = 3;
  const std::vector<Program> programs = plan_programs(options, {4, 7});
  ASSERT_EQ(programs.size(), 6U);
  EXPECT_EQ(*programs[4].rank, 4);
  EXPECT_EQ(programs[4].host, 1);
  EXPECT_EQ(programs[4].local_rank, 1);
  EXPECT_EQ(programs[3].cores, std::vector<int>{7});
  EXPECT_EQ(cores_of(options, {4, 7, 9}, 1), (std::vector<int>{4, 7, 9}));
  options.per_host = 1;
  EXPECT_EQ(cores_of(options, {4, 7, 9}, 1), std::vector<int>{7});
}

TEST(LabPrograms, LauncherHasCoresOfHost0) {
  Options options;
  options.launcher = true;
  options.per_host = 2;
  const std::vector<Program> programs = plan_programs(options, {0, 1, 2});
  ASSERT_EQ(programs.size(), 1U);
  EXPECT_FALSE(programs[0].rank);
  EXPECT_EQ(programs[0].cores, (std::vector<int>{0, 1}));
  options.pin = false;
  EXPECT_TRUE(plan_programs(options, {0, 1, 2})[0].cores.empty());
}

TEST(LabPrograms, ExtraProcessesAreNotRanks) {
  Options options;
  options.beside = 2;
  const std::vector<Program> programs = plan_beside(options);
  ASSERT_EQ(programs.size(), 2U);
  EXPECT_FALSE(programs[1].rank);
  EXPECT_TRUE(is_beside(programs[1].host));
  EXPECT_TRUE(programs[1].cores.empty());
  EXPECT_EQ(called(programs[1]), "beside1");
}

TEST(LabCounters, ReadsTheKernelsTable) {
  const auto found = parse_net_dev(
      "Inter-|   Receive                                                |  Transmit\n"
      " face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs "
      "drop fifo\n"
      "    lo:       1       2    0    0    0     0          0         0        3       4    0    "
      "0    0\n"
      " port0: 5000000000   60    0    0    0     0          0         0       70      80    0    "
      "0    0\n"
      " short: 1 2 3\n");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found.at("port0").rx_bytes, 5'000'000'000U);
  EXPECT_EQ(found.at("port0").rx_packets, 60U);
  EXPECT_EQ(found.at("port0").tx_bytes, 70U);
  EXPECT_EQ(found.at("port0").tx_packets, 80U);
}

TEST(LabCounters, FindsOpenPorts) {
  const std::string headings = "  sl  local_address rem_address   st tx_queue rx_queue\n";
  const std::string bound = headings + "  12: FE004D0A:1CFC 00000000:0000 07 00000000:00000000\n";
  EXPECT_FALSE(has_socket_in("", "07"));
  EXPECT_FALSE(has_socket_in(headings, "07"));
  EXPECT_TRUE(has_socket_in(bound, "07"));
  EXPECT_FALSE(has_socket_in(bound, "0A"));
  EXPECT_FALSE(has_socket_in(headings + "  12: FE004D0A:1CFC 01004D0A:1CFD 01 0:0\n", "07"));
}

}  // namespace
}  // namespace laconic::lab
