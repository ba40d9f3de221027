// Read the command line.
#pragma once

#include "failure.h"

#include <dimorder/program.h>

#include <string>
#include <vector>

namespace dimorder::runner {

/// How the file is read; the last two show constants that are read after ExecuTorch has freed them.
enum class Loader { kMmap, kFile, kPoison, kUnmap };

/// What the command line asks for.
struct Settings {
  std::string program;
  std::vector<std::string> inputs; ///< `[NAME=]FILE`
  std::vector<std::string> expectations; ///< `[NAME=]FILE.npy`
  std::string output;
  std::string json; ///< a file, or `-`; empty without --json
  std::vector<float> mean, std; ///< empty where they are not given
  OnMismatch on_mismatch = OnMismatch::kAdapt;
  Loader loader = Loader::kMmap;
  double rtol = 1e-4, atol = 0;
  bool has_tolerance = false;
  bool is_exact = false;
  bool check_seal = false;
  bool inspect = false;
  bool verbose = false;
  bool help = false, version = false;
  int threads = 0; ///< 0: what ExecuTorch thinks best
  int rounds = 0;
  int steps = 1;
};

Failure read_settings(int count, const char* const* words, Settings* settings);
std::string help_text();

} // namespace dimorder::runner
