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
#include <utility>

namespace dimorder::runner {
namespace {

/// Collects the guard's warnings, which say what was converted.
struct Guard {
  const Program* program;
  bool shows; ///< whether they are printed too, as --on-mismatch warn asks
  std::vector<Conversion> conversions;
};

/// Note which tensor a warning is about: it begins with `input 'x', promised in `.
void note_conversion(const char* message, void* context) {
  Guard& guard = *static_cast<Guard*>(context);
  if (guard.shows) std::fprintf(stderr, "dimorder: %s\n", message);
  const std::string text = message;
  const size_t found = text.find("found: ") + std::strlen("found: ");
  const std::string what = text.substr(found, text.find(", shape (", found) - found);
  const auto note = [&](const char* kind, const dimorder_tensor& tensor) {
    const std::string name = name_of(tensor), start = std::string(kind) + " '" + name + "', promised in ";
    if (text.compare(0, start.size(), start) == 0) guard.conversions.push_back({name, what, order_of(tensor), 0});
  };
  for (size_t i = 0; i < guard.program->inputs(); i++) note("input", guard.program->input(i));
  for (size_t i = 0; i < guard.program->outputs(); i++) note("output", guard.program->output(i));
}

Failure open(const Settings& settings, Guard* guard, Program* program) {
  Options options;
  // Conversions are told as warnings, where they are not refused.
  options.on_mismatch = settings.on_mismatch == OnMismatch::kError ? OnMismatch::kError : OnMismatch::kWarn;
  options.loading = settings.loader == Loader::kMmap ? Loading::kMmap : Loading::kFile;
  options.check_seal = settings.check_seal;
  options.warn = note_conversion;
  options.context = guard;
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

/// Call the program once, and note what was converted.
Failure call(Program& program, const std::vector<Tensor>& inputs, Guard* guard, Span<const Tensor>* outputs) {
  guard->conversions.clear();
  const auto result = program.run(Span<const Tensor>(inputs.data(), inputs.size()));
  if (!result.ok()) return Failure::with_lines(program.message(), kNo);
  *outputs = *result;
  return {};
}

/// Give each conversion the bytes of its tensor.
void add_bytes(const Program& program, const std::vector<Tensor>& inputs, Span<const Tensor> outputs, Guard* guard) {
  for (Conversion& conversion : guard->conversions) {
    for (size_t i = 0; i < inputs.size(); i++) {
      if (name_of(program.input(i)) == conversion.tensor) conversion.bytes = inputs[i].nbytes();
    }
    for (size_t i = 0; i < outputs.size(); i++) {
      if (name_of(program.output(i)) == conversion.tensor) conversion.bytes = outputs[i].nbytes();
    }
  }
}

Failure run(
    const Settings& settings, Program& program, const std::vector<Array>& arrays, Guard* guard, Report* report) {
  std::vector<Tensor> inputs;
  Span<const Tensor> outputs;
  for (const Array& array : arrays) inputs.push_back(array.tensor);
  for (int step = 0; step < settings.steps; step++) {
    if (Failure failure = call(program, inputs, guard, &outputs)) return failure;
    guard->shows = false; // once is enough
  }
  add_bytes(program, inputs, outputs, guard);
  report->conversions = guard->conversions;
  if (Failure failure = copy_outputs(outputs, &report->outputs)) return failure;
  for (int round = 0; round < settings.rounds; round++) {
    const auto begin = std::chrono::steady_clock::now();
    if (Failure failure = call(program, inputs, guard, &outputs)) return failure;
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
    first = Failure(
        "output '" + difference.name + "', expected as in " + each.file, difference.why,
        "find out which of the two is right; --rtol and --atol allow for more", kNo);
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
  Guard guard{&program, settings.on_mismatch == OnMismatch::kWarn, {}};
  if (Failure failure = open(settings, &guard, &program)) return failure;
  if (settings.inspect) return tell(settings, text_contract(program), json_contract(settings, program));
  std::vector<Array> inputs;
  std::vector<Expectation> expectations;
  if (Failure failure = check_output(settings, &program)) return failure;
  if (Failure failure = read_expectations(program, settings, &expectations)) return failure;
  if (Failure failure = read_inputs(program, settings, &inputs)) return failure;
  Report report;
  if (Failure failure = run(settings, program, inputs, &guard, &report)) return failure;
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
