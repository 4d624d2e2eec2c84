// moetape_gpu_test: what only a GPU can prove, as one plain program. See docs/cuda.md.
//
//   moetape_gpu_test [--dry-run] [--reduced] [--checks] [--bench] [--out FOLDER]
//
// --dry-run: on a simulated device, where there is no GPU; its times mean nothing. --reduced: the small part
// of the products, for compute-sanitizer. Neither --checks nor --bench: both. The answer is FOLDER/gpu.json
// and FOLDER/gpu.md (default bench/results), and a line for each check and goal that begins with PASS or
// FAIL. Ends with 0 if all holds, 1 if something does not, 2 for wrong use. A dry run has no goals.
#include <chrono>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/fail.h"
#include "tests/gpu/bench.h"
#include "tests/gpu/checks.h"
#include "tests/gpu/goals.h"

namespace moetape::inline v0::cuda {
namespace {

struct Check {
  explicit Check(std::string what) : name(std::move(what)) {}

  std::string name;
  int64_t count = 0;
  double seconds = 0;
  std::string failure;
};

void say(bool good, const std::string& name, const std::string& text) {
  std::printf("%s %s: %s\n", good ? "PASS" : "FAIL", name.c_str(), text.c_str());
  std::fflush(stdout);
}

template <class Function>
Check run_check(const std::string& name, Function function) {
  Check check(name);
  const auto start = std::chrono::steady_clock::now();
  try {
    check.count = function();
  } catch (const std::exception& error) {
    check.failure = error.what();
  }
  check.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  say(check.failure.empty(), name,
      fmt::format("{}{} done in {:.1f} s", check.failure.empty() ? "" : check.failure + "; ", check.count,
                  check.seconds));
  return check;
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c < ' ' ? ' ' : c;
  }
  return result + "\"";
}

std::string json_of(const Rig& rig, const std::vector<Check>& checks, const BenchResult& bench,
                    const std::vector<Goal>& goals) {
  std::vector<std::string> check_texts, steps, bandwidths, goal_texts;
  for (const Goal& goal : goals) {
    goal_texts.push_back(fmt::format(R"(    {{"name": {}, "met": {}, "figures": {}}})", quoted(goal.name),
                                     goal.met, quoted(goal.figures)));
  }
  for (const Check& check : checks) {
    check_texts.push_back(fmt::format(
        R"(    {{"name": {}, "passed": {}, "count": {}, "seconds": {:.2f}, "failure": {}}})",
        quoted(check.name), check.failure.empty(), check.count, check.seconds, quoted(check.failure)));
  }
  for (const StepTime& s : bench.steps) {
    steps.push_back(fmt::format(
        R"(    {{"variant": {}, "batch": {}, "us_per_step": {:.2f}, "added_us": {:.2f}, "nodes": {}, "pcie_bytes": {}, "host_us": {:.2f}}})",
        quoted(s.variant), s.batch, s.microseconds, s.added, s.num_nodes, s.pcie_bytes, s.host_microseconds));
  }
  for (const Bandwidth& b : bench.bandwidths) {
    bandwidths.push_back(fmt::format(R"(    {{"variant": {}, "batch": {}, "gb_per_s": {:.2f}}})",
                                     quoted(b.variant), b.batch, b.gigabytes_per_second));
  }
  return fmt::format(
      "{{\n  \"device\": {},\n  \"measured\": {},\n  \"goals\": [\n{}\n  ],\n  \"checks\": [\n{}\n  ],\n  "
      "\"steps\": [\n{}\n  ],\n"
      "  \"bandwidths\": [\n{}\n  ]\n}}\n",
      quoted(rig.name()), rig.measures(), fmt::join(goal_texts, ",\n"), fmt::join(check_texts, ",\n"),
      fmt::join(steps, ",\n"), fmt::join(bandwidths, ",\n"));
}

std::string markdown_of(const Rig& rig, const std::vector<Check>& checks, const BenchResult& bench,
                        const std::vector<Goal>& goals) {
  std::string text = fmt::format("# moetape on {}\n\n", rig.name());
  if (!rig.measures()) text += "A dry run on a simulated device: the times below mean nothing.\n\n";
  text += "| check | done | result |\n|---|---|---|\n";
  for (const Check& check : checks) {
    text += fmt::format("| {} | {} | {} |\n", check.name, check.count,
                        check.failure.empty() ? "passed" : check.failure);
  }
  if (!goals.empty()) text += "\n| goal | figures | met |\n|---|---|---|\n";
  for (const Goal& goal : goals)
    text += fmt::format("| {} | {} | {} |\n", goal.name, goal.figures, goal.met ? "yes" : "no");
  if (bench.steps.empty()) return text;
  text +=
      "\nA graph of 58 gates, top-8 of 256.\n\n| batch | recording | µs a step | added | nodes | bytes over "
      "PCIe | host µs |\n|---|---|---|---|---|---|---|\n";
  for (const StepTime& s : bench.steps) {
    text += fmt::format("| {} | {} | {:.1f} | {:.1f} | {} | {} | {:.1f} |\n", s.batch, s.variant,
                        s.microseconds, s.added, s.num_nodes, s.pcie_bytes, s.host_microseconds);
  }
  text += "\n| rows | way | GB/s |\n|---|---|---|\n";
  for (const Bandwidth& b : bench.bandwidths)
    text += fmt::format("| {} | {} | {:.1f} |\n", b.batch, b.variant, b.gigabytes_per_second);
  return text;
}

void write(const std::filesystem::path& file, const std::string& text) {
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) throw std::runtime_error("cannot write " + file.string());
}

struct Arguments {
  bool dry_run = false;
  bool reduced = false;
  bool checks = false;
  bool bench = false;
  std::filesystem::path out = "bench/results";
};

Arguments parse(const std::vector<std::string>& given) {
  Arguments arguments;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i] == "--dry-run") {
      arguments.dry_run = true;
    } else if (given[i] == "--reduced") {
      arguments.reduced = true;
    } else if (given[i] == "--checks") {
      arguments.checks = true;
    } else if (given[i] == "--bench") {
      arguments.bench = true;
    } else if (given[i] == "--out" && i + 1 < given.size()) {
      arguments.out = given[++i];
    } else {
      throw std::invalid_argument("moetape_gpu_test: cannot understand " + given[i]);
    }
  }
  if (!arguments.checks && !arguments.bench) arguments.checks = arguments.bench = true;
  return arguments;
}

int run(const Arguments& arguments) {
  const auto rig = arguments.dry_run ? make_simulated_rig() : make_cuda_rig();
  std::vector<Check> checks;
  if (arguments.checks) {
    checks.push_back(run_check("products", [&] { return check_products(*rig, arguments.reduced); }));
    checks.push_back(run_check("graphs", [&] { return check_graphs(*rig); }));
    checks.push_back(run_check("overlap", [&] { return check_overlap(*rig); }));
    checks.push_back(run_check("given up", [&] { return check_given_up(*rig); }));
    checks.push_back(run_check("manners", [&] { return rig->check_manners(); }));
  }
  BenchResult bench;
  if (arguments.bench) {
    checks.push_back(run_check("bench", [&] {
      const bool all = rig->measures();
      bench = run_bench(*rig,
                        all ? std::vector<int64_t>{1, 16, 64, 256, 1024, 8192} : std::vector<int64_t>{1, 64});
      return static_cast<int64_t>(bench.steps.size());
    }));
  }
  std::vector<Goal> goals;
  if (arguments.bench && rig->measures()) goals = judge(bench);
  for (const Goal& goal : goals) say(goal.met, goal.name, goal.figures);
  std::filesystem::create_directories(arguments.out);
  write(arguments.out / "gpu.json", json_of(*rig, checks, bench, goals));
  write(arguments.out / "gpu.md", markdown_of(*rig, checks, bench, goals));
  bool good = true;
  for (const Check& check : checks) good = good && check.failure.empty();
  for (const Goal& goal : goals) good = good && goal.met;
  return good ? 0 : 1;
}

}  // namespace
}  // namespace moetape::inline v0::cuda

int main(int argc, char** argv) {
  namespace cuda = moetape::cuda;
  try {
    return cuda::run(cuda::parse({argv + 1, argv + argc}));
  } catch (const std::invalid_argument& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "moetape_gpu_test: %s\n", error.what());
    return 1;
  }
}
