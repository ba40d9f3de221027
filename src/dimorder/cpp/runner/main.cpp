// dimorder-run: run a .pte on a board, with its contract checked, and compare what it gives.
#include "contract_text.h"
#include "expect.h"
#include "files.h"
#include "inputs.h"
#include "loaders.h"
#include "outputs.h"
#include "platform.h"
#include "report.h"
#include "settings.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <set>
#include <utility>

namespace dimorder::runner {
namespace {

/// Print a warning that was not printed before: a program may be called many times.
void warn_once(const char* message, void* context) {
  auto& printed = *static_cast<std::set<std::string>*>(context);
  if (printed.insert(message).second) std::fprintf(stderr, "dimorder: %s\n", message);
}

Failure open(const Settings& settings, std::set<std::string>* warnings, Program* program) {
  Options options;
  options.on_mismatch = settings.on_mismatch;
  options.loading = settings.loader == Loader::kMmap ? Loading::kMmap : Loading::kFile;
  options.check_seal = settings.check_seal;
  options.warn = warn_once;
  options.context = warnings;
  const char* path = settings.program.c_str();
  if (is_folder(path)) return {"loading " + settings.program, "a folder", "give the path of a .pte file"};
  std::unique_ptr<::executorch::runtime::DataLoader> loader;
  if (settings.loader == Loader::kPoison) loader = open_hostile(path, Freed::kPoisoned);
  if (settings.loader == Loader::kUnmap) loader = open_hostile(path, Freed::kUnreadable);
  const Error error =
      loader == nullptr ? program->open(path, options) : program->open(std::move(loader), path, options);
  if (error == Error::Ok) return {};
  return Failure::with_lines(program->message(), error == Error::AccessFailed ? kUsage : kNo);
}

Failure call(Program& program, const std::vector<Tensor>& inputs, Span<const Tensor>* outputs) {
  const auto result = program.run(Span<const Tensor>(inputs.data(), inputs.size()));
  if (!result.ok()) return Failure::with_lines(program.message(), kNo);
  *outputs = *result;
  return {};
}

Failure run(const Settings& settings, Program& program, const std::vector<Array>& arrays, Report* report) {
  std::vector<Tensor> inputs;
  Span<const Tensor> outputs;
  for (const Array& array : arrays) inputs.push_back(array.tensor);
  for (int step = 0; step < settings.steps; step++) {
    if (Failure failure = call(program, inputs, &outputs)) return failure;
  }
  report->conversions.assign(program.conversions().begin(), program.conversions().end());
  if (Failure failure = copy_outputs(outputs, &report->outputs)) return failure;
  for (int round = 0; round < settings.rounds; round++) {
    const auto begin = std::chrono::steady_clock::now();
    if (Failure failure = call(program, inputs, &outputs)) return failure;
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
    report->milliseconds.push_back(passed.count());
  }
  return {};
}

Failure print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  if (std::fflush(stdout) == 0 || errno == EPIPE) return {}; // EPIPE: the reader has seen enough
  return {"stdout", std::string("cannot be written: ") + std::strerror(errno), "write it elsewhere", kNo};
}

/// Print the text, or write the JSON where --json says.
Failure tell(const Settings& settings, const std::string& text, const std::string& json) {
  if (settings.json == "-") return print(json);
  if (!settings.json.empty()) {
    std::vector<NewFile> file(1);
    file[0].path = settings.json;
    file[0].head = json;
    if (Failure failure = write_files(file)) return failure;
  }
  return print(text);
}

Failure compare_all(
    const Settings& settings, const Program& program, const std::vector<Expectation>& expectations, Report* report) {
  Failure first;
  for (const Expectation& each : expectations) {
    report->differences.push_back(compare(program, settings, each, report->outputs[each.output].tensor));
    const Difference& difference = report->differences.back();
    if (first || difference.why.empty()) continue;
    const char* fix = difference.place.empty() // nothing was compared
        ? "write the expected values in the output's type and sizes"
        : "find out which of the two is right; --rtol and --atol allow for more";
    first = Failure("output '" + difference.name + "', expected as in " + each.file, difference.why, fix, kNo);
  }
  return first;
}

Failure act(const Settings& settings) {
  const bool writes_json = !settings.json.empty() && settings.json != "-";
  if (Failure failure = check_output(settings, nullptr)) return failure;
  if (writes_json) {
    if (Failure failure = check_writable("--json", settings.json)) return failure;
  }
  if (settings.threads != 0) {
    if (Failure failure = set_threads(settings.threads)) return failure;
  }
  Program program;
  std::set<std::string> warnings;
  if (Failure failure = open(settings, &warnings, &program)) return failure;
  if (settings.inspect) return tell(settings, text_contract(program), json_contract(settings, program));
  std::vector<Array> inputs;
  std::vector<Expectation> expectations;
  if (Failure failure = check_output(settings, &program)) return failure;
  if (Failure failure = read_expectations(program, settings, &expectations)) return failure;
  if (Failure failure = read_inputs(program, settings, &inputs)) return failure;
  Report report;
  if (Failure failure = run(settings, program, inputs, &report)) return failure;
  if (Failure failure = write_outputs(settings, program, report.outputs)) return failure;
  const Failure unequal = compare_all(settings, program, expectations, &report);
  const std::string text = settings.json == "-" ? "" : text_report(program, report);
  const std::string json = settings.json.empty() ? "" : json_report(settings, program, report);
  const Failure untold = tell(settings, text, json);
  return untold ? untold : unequal;
}

int main(int count, const char* const* words) {
  std::signal(SIGPIPE, SIG_IGN);
  Settings settings;
  Failure failure = read_settings(count, words, &settings);
  if (!failure) {
    set_log(settings.verbose);
    if (settings.help) {
      failure = print(help_text());
    } else if (settings.version) {
      failure = print(
          "dimorder-run, reads contracts of version " + std::to_string(DIMORDER_LINES_VERSION) + "\nbackends: " +
          backend_names() + "\n");
    } else {
      failure = act(settings);
    }
  }
  if (failure) failure.print();
  return failure.code;
}

} // namespace
} // namespace dimorder::runner

int main(int count, char** words) {
  return dimorder::runner::main(count, words);
}
