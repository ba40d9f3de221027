// dimorder::Program behind functions for ctypes.
#include <dimorder/program.h>

#include <algorithm>
#include <string>
#include <vector>

#include "view.h"

namespace {

struct Guard {
  dimorder::Program program;
  dimorder::Error opened = dimorder::Error::Ok;
  std::vector<std::string> warnings;
  std::vector<dimorder::Tensor> outputs;
};

void keep_warning(const char* message, void* context) {
  static_cast<Guard*>(context)->warnings.emplace_back(message);
}

dimorder::Tensor tensor_of(const view& own) {
  dimorder::Tensor tensor;
  tensor.data = own.data;
  tensor.dtype = static_cast<dimorder::ScalarType>(own.dtype);
  tensor.rank = own.rank;
  std::copy_n(own.sizes, DIMORDER_MAX_RANK, tensor.sizes);
  std::copy_n(own.strides, DIMORDER_MAX_RANK, tensor.strides);
  return tensor;
}

} // namespace

extern "C" {

Guard* guard_open(const char* path, int on_mismatch, int loading, int check_seal) {
  auto* guard = new Guard;
  dimorder::Options options;
  options.on_mismatch = static_cast<dimorder::OnMismatch>(on_mismatch);
  options.loading = static_cast<dimorder::Loading>(loading);
  options.check_seal = check_seal != 0;
  options.warn = keep_warning;
  options.context = guard;
  guard->opened = guard->program.open(path, options);
  return guard;
}

void guard_close(Guard* guard) {
  delete guard;
}

int guard_opened(const Guard* guard) {
  return static_cast<int>(guard->opened);
}

int guard_has_contract(const Guard* guard) {
  return guard->program.has_contract();
}

const char* guard_message(const Guard* guard) {
  return guard->program.message();
}

int guard_run(Guard* guard, const view* inputs, size_t count) {
  std::vector<dimorder::Tensor> tensors(count);
  for (size_t i = 0; i < count; i++) tensors[i] = tensor_of(inputs[i]);
  auto outputs = guard->program.run({tensors.data(), tensors.size()});
  guard->outputs.clear();
  if (!outputs.ok()) return static_cast<int>(outputs.error());
  guard->outputs.assign(outputs->begin(), outputs->end());
  return 0;
}

void guard_output(const Guard* guard, size_t index, view* to);

/// Call the program so many times, each time with the first output of the call before as this input.
int guard_feed_back(Guard* guard, const view* inputs, size_t count, size_t fed, int times) {
  int error = guard_run(guard, inputs, count);
  std::vector<view> again(inputs, inputs + count);
  for (int i = 1; error == 0 && i < times; i++) {
    guard_output(guard, 0, &again[fed]);
    error = guard_run(guard, again.data(), count);
  }
  return error;
}

size_t guard_outputs(const Guard* guard) {
  return guard->outputs.size();
}

void guard_output(const Guard* guard, size_t index, view* to) {
  const dimorder::Tensor& output = guard->outputs[index];
  to->data = output.data;
  to->dtype = static_cast<int32_t>(output.dtype);
  to->rank = output.rank;
  std::copy_n(output.sizes, DIMORDER_MAX_RANK, to->sizes);
  std::copy_n(output.strides, DIMORDER_MAX_RANK, to->strides);
}

void guard_stats(const Guard* guard, uint64_t* to) {
  const dimorder::Stats& stats = guard->program.stats();
  const auto latest = guard->program.conversions();
  uint64_t latest_bytes = 0;
  for (const dimorder::Conversion& each : latest) latest_bytes += each.cost_bytes;
  const uint64_t all[] = {stats.calls, stats.conversions, stats.cost_bytes, latest.size(), latest_bytes};
  std::copy(std::begin(all), std::end(all), to);
}

int guard_reset(Guard* guard) {
  return static_cast<int>(guard->program.reset());
}

size_t guard_warnings(const Guard* guard) {
  return guard->warnings.size();
}

const char* guard_warning(const Guard* guard, size_t index) {
  return guard->warnings[index].c_str();
}

/// Copy elements from one view into another of the same type and sizes.
void guard_convert(const view* from, const view* to) {
  dimorder::convert(tensor_of(*from), tensor_of(*to));
}

size_t guard_nbytes(const view* of) {
  return tensor_of(*of).nbytes();
}

} // extern "C"
