// Read the command line: a table of the options, from which the help is written too.
#include "settings.h"

#include "numbers.h"

#include <cstring>

namespace dimorder::runner {
namespace {

constexpr char kSeeHelp[] = "see dimorder-run --help";

using Take = bool (*)(Settings&, const std::string& value);

struct Option {
  const char* name;
  const char* letter; ///< nullptr: none
  const char* value; ///< what its value is called; nullptr: it has none
  const char* wanted; ///< what its value has to be, for the failure
  const char* help;
  Take take; ///< false for a value that it refuses
};

template <auto member>
bool set(Settings& settings, const std::string&) {
  settings.*member = true;
  return true;
}

template <auto member>
bool append(Settings& settings, const std::string& value) {
  (settings.*member).push_back(value);
  return !value.empty();
}

template <auto member, int maximum>
bool count(Settings& settings, const std::string& value) {
  return read_count(value, maximum, &(settings.*member));
}

template <auto member>
bool numbers(Settings& settings, const std::string& value) {
  return read_numbers(value, &(settings.*member));
}

template <auto member>
bool tolerance(Settings& settings, const std::string& value) {
  settings.has_tolerance = true;
  return read_number(value, &(settings.*member)) && settings.*member >= 0;
}

bool on_mismatch(Settings& settings, const std::string& value) {
  if (value == "adapt") settings.on_mismatch = OnMismatch::kAdapt;
  else if (value == "error") settings.on_mismatch = OnMismatch::kError;
  else if (value == "warn") settings.on_mismatch = OnMismatch::kWarn;
  else return false;
  return true;
}

bool loader(Settings& settings, const std::string& value) {
  const char* const names[] = {"mmap", "file", "poison", "unmap"};
  for (size_t i = 0; i < 4; i++) {
    if (value != names[i]) continue;
    settings.loader = static_cast<Loader>(i);
    return true;
  }
  return false;
}

bool output(Settings& settings, const std::string& value) {
  settings.output = value;
  return !value.empty();
}

bool json(Settings& settings, const std::string& value) {
  settings.json = value.empty() ? "-" : value;
  return true;
}

constexpr char kJson[] = "--json"; // its value may be left out

constexpr char kNumbers[] = "numbers such as 0.5,0.5,0.5";
constexpr char kFromZero[] = "a number from 0 on";
constexpr char kFromOne[] = "a number from 1 on";

const Option kOptions[] = {
    {"--input", "-i", "[NAME=]FILE", "a file", "a .npy, .ppm, .pgm, .png, .raw or .bin, one per input",
     append<&Settings::inputs>},
    {"--output", "-o", "FILE|DIR", "a path", "the output as a .npy, or several as NAME.npy in a folder", output},
    {"--expect", nullptr, "[NAME=]FILE", "a file", "a .npy that an output has to equal, else the exit code is 1",
     append<&Settings::expectations>},
    {"--rtol", nullptr, "X", kFromZero,
     "the error that is allowed, as a share of the largest magnitude\n"
     "in the .npy (default 1e-4)",
     tolerance<&Settings::rtol>},
    {"--atol", nullptr, "X", kFromZero, "and besides (default 0)", tolerance<&Settings::atol>},
    {"--exact", nullptr, nullptr, "", "equal bit for bit", set<&Settings::is_exact>},
    {"--mean", nullptr, "A,B,C", kNumbers, "of a picture's channels, from 0 to 1 (default 0)",
     numbers<&Settings::mean>},
    {"--std", nullptr, "A,B,C", kNumbers, "of a picture's channels (default 1)", numbers<&Settings::std>},
    {"--on-mismatch", nullptr, "KIND", "adapt, error or warn",
     "an input in another order is converted (adapt, the default), refused\n"
     "(error), or converted with a warning (warn)",
     on_mismatch},
    {"--inspect", nullptr, nullptr, "", "print the contract; nothing runs", set<&Settings::inspect>},
    {kJson, nullptr, "[FILE]", "", "what it found as JSON; - or nothing is stdout", json},
    {"--rounds", nullptr, "N", kFromOne, "time N more calls: median, least and largest",
     count<&Settings::rounds, 1000000000>},
    {"--steps", nullptr, "N", kFromOne, "call it N times, and tell of the last; for a program with state",
     count<&Settings::steps, 1000000000>},
    {"--threads", nullptr, "N", "a number from 1 to 1024", "threads to run with (default: what ExecuTorch thinks best)",
     count<&Settings::threads, 1024>},
    {"--check-seal", nullptr, nullptr, "", "compare the file with the checksum in it", set<&Settings::check_seal>},
    {"--loader", nullptr, "KIND", "mmap, file, poison or unmap",
     "mmap (default) or file; for tests poison, which fills memory that\n"
     "ExecuTorch frees with NaN, and unmap, which makes it unreadable",
     loader},
    {"--verbose", "-v", nullptr, "", "show all that ExecuTorch logs, not only errors", set<&Settings::verbose>},
    {"--help", "-h", nullptr, "", "show this", set<&Settings::help>},
    {"--version", nullptr, nullptr, "", "show which contracts it reads, and its backends", set<&Settings::version>},
};

constexpr char kExamples[] =
    "  dimorder-run net.pte --inspect\n"
    "  dimorder-run net.pte --input x.npy -o y.npy\n"
    "  dimorder-run net.pte --input x.npy --expect y.npy --json\n"
    "  dimorder-run resnet18.pte --input photo.ppm --mean 0.485,0.456,0.406 --std 0.229,0.224,0.225\n"
    "  dimorder-run ranker.pte --input ids=ids.npy --input mask=mask.npy -o scores/ --on-mismatch error\n"
    "  dimorder-run net.pte --input camera.raw --rounds 100 --threads 1\n"
    "\n"
    "An array is taken as it lies in its file. A picture has the input's height and width already, lies\n"
    "channels-last, and becomes (x / 255 - mean) / std; uint8 gets its bytes as they are where neither is\n"
    "given. The bytes of a .raw or .bin are of the input's type, dense in the order of the contract.\n"
    "\n"
    "exit codes: 0 done, 1 refused or a check failed, 2 wrong usage\n";

Failure misused(const std::string& found, const std::string& fix = kSeeHelp) {
  return {"dimorder-run", found, fix};
}

/// The option that a word names, and the value behind `=` or behind its letter.
const Option* find(const std::string& word, bool* has_value, std::string* value) {
  const size_t equals = word.find('=');
  for (const Option& option : kOptions) {
    const bool is_short = option.letter != nullptr && word.compare(0, 2, option.letter) == 0;
    if (!is_short && word.substr(0, equals) != option.name) continue;
    const size_t end = is_short ? 2 : equals == std::string::npos ? word.size() : equals + 1;
    *has_value = is_short ? word.size() > 2 : equals != std::string::npos;
    *value = word.substr(end);
    return &option;
  }
  return nullptr;
}

Failure check(const Settings& settings) {
  const auto both = [](const char* first, const char* second) {
    return misused(std::string(first) + " together with " + second, "leave one of them out");
  };
  for (const float number : settings.std) {
    if (number == 0) return {"--std", "a zero", "give the standard deviation of each channel"};
  }
  if (settings.help || settings.version) return {};
  if (settings.program.empty()) return misused("no PROGRAM.pte", "dimorder-run PROGRAM.pte --input x.npy, or --help");
  if (settings.is_exact && settings.has_tolerance) return both("--exact", "--rtol or --atol");
  if (settings.expectations.empty() && (settings.is_exact || settings.has_tolerance)) {
    return misused("a tolerance without --expect", "give --expect FILE.npy");
  }
  if (!settings.inspect) return {};
  if (!settings.inputs.empty()) return both("--inspect", "--input");
  if (!settings.output.empty()) return both("--inspect", "-o");
  if (!settings.expectations.empty()) return both("--inspect", "--expect");
  return {};
}

} // namespace

Failure read_settings(int argc, const char* const* words, Settings* settings) {
  bool are_options = true;
  for (int i = 1; i < argc; i++) {
    const std::string word = words[i];
    if (are_options && word == "--") {
      are_options = false;
      continue;
    }
    if (!are_options || word.size() < 2 || word[0] != '-') {
      if (!settings->program.empty()) return misused("a second program, " + word, "give inputs by --input FILE");
      settings->program = word;
      continue;
    }
    bool has_value = false;
    std::string value;
    const Option* option = find(word, &has_value, &value);
    if (option == nullptr) return misused("the unknown option " + word);
    if (option->value == nullptr && has_value) return misused("a value for " + std::string(option->name));
    const char* next = i + 1 < argc ? words[i + 1] : nullptr;
    if (option->value != nullptr && !has_value) {
      const bool may_lack = option->name == kJson;
      const bool is_option = next != nullptr && next[0] == '-' && next[1] != '\0';
      if (next == nullptr && !may_lack) return misused("no value for " + std::string(option->name));
      if (next != nullptr && !(may_lack && is_option)) value = words[++i];
    }
    if (!option->take(*settings, value)) {
      return {std::string(option->name) + " " + value, "no such value", std::string("give ") + option->wanted};
    }
  }
  return check(*settings);
}

std::string help_text() {
  constexpr size_t kColumn = 28;
  std::string text =
      "usage: dimorder-run PROGRAM.pte [--input [NAME=]FILE]... [-o FILE|DIR] [--expect [NAME=]FILE]... [options]\n\n"
      "Run a .pte of any tool, with its contract checked.\n\noptions:\n";
  for (const Option& option : kOptions) {
    std::string line = "  " + std::string(option.name);
    if (option.letter != nullptr) line += std::string(", ") + option.letter;
    if (option.value != nullptr) line += std::string(" ") + option.value;
    line += std::string(line.size() + 2 < kColumn ? kColumn - line.size() : 2, ' ');
    for (const char* at = option.help; *at != '\0'; at++) {
      line += *at;
      if (*at == '\n') line += std::string(kColumn, ' ');
    }
    text += line + "\n";
  }
  return text + "\nexamples:\n" + kExamples;
}

} // namespace dimorder::runner
