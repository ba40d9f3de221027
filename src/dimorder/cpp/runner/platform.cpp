// Choose what ExecuTorch logs and how many threads it has, and name its backends.
#include "platform.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/platform.h>

#include <cstdint>
#include <cstdio>

#if __has_include(<executorch/extension/threadpool/threadpool.h>)
#include <executorch/extension/threadpool/threadpool.h>
#else
// ExecuTorch's wheel exports these and has no header for them. Weak, for a build without threads lacks them.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t count);
};
__attribute__((weak)) ThreadPool* get_threadpool();
} // namespace executorch::extension::threadpool
#define DIMORDER_RUN_WEAK_THREADS
#endif

namespace dimorder::runner {
namespace {

bool is_verbose_log = false;

const char* file_name(const char* path) {
  const char* name = path;
  for (const char* at = path; *at != '\0'; at++) name = *at == '/' ? at + 1 : name;
  return name;
}

void log_message(
    et_timestamp_t, et_pal_log_level_t level, const char* file, const char*, size_t line, const char* message,
    size_t length) {
  const bool is_error = level == kError || level == kFatal;
  if (!is_error && !is_verbose_log) return;
  std::fprintf(
      stderr, "%c executorch:%s:%zu] %.*s\n", static_cast<char>(level), file_name(file), line, static_cast<int>(length),
      message);
}

} // namespace

void set_log(bool is_verbose) {
  is_verbose_log = is_verbose;
  ::executorch::runtime::register_pal(::executorch::runtime::PalImpl::create(log_message, __FILE__));
}

Failure set_threads(int count) {
  namespace threads = ::executorch::extension::threadpool;
  threads::ThreadPool* pool = nullptr;
#ifdef DIMORDER_RUN_WEAK_THREADS
  if (&threads::get_threadpool != nullptr) pool = threads::get_threadpool();
#else
  pool = threads::get_threadpool();
#endif
  const std::string where = "--threads " + std::to_string(count);
  if (pool == nullptr) return {where, "an ExecuTorch without a pool of threads", "leave it out"};
  if (pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count))) return {};
  return {where, "a pool of threads that cannot be changed", "leave it out, or give a smaller number", kNo};
}

std::string backend_names() {
  std::string names;
  for (size_t i = 0; i < ::executorch::runtime::get_num_registered_backends(); i++) {
    const auto name = ::executorch::runtime::get_backend_name(i);
    if (name.ok()) names += (names.empty() ? "" : ", ") + std::string(*name);
  }
  return names.empty() ? "none" : names;
}

} // namespace dimorder::runner
