#include "kernels/target.h"

#include <hwy/targets.h>

#include <atomic>
#include <string>

#include "kernels/matvec_targets.h"
#include "kernels/tile_bf16.h"

namespace headstart::kernels {
namespace {

#if defined(__x86_64__)
constexpr int64_t kAvx512Targets = HWY_AVX3 | HWY_AVX3_DL;
constexpr int64_t kAvx2Targets = HWY_AVX2;
#endif

std::atomic<Target> limit{Target::kNeonBf16};  // the highest of all: no limit

struct Named {
  const char* name;
  Target target;
};
constexpr Named kNames[] = {
    {"auto", Target::kNeonBf16},
    {"portable", Target::kPortable},
    {"avx2", Target::kAvx2},
    {"avx512", Target::kAvx512},
    {"avx512bf16", Target::kAvx512Bf16},
    {"neon", Target::kNeon},
    {"neon-dotprod", Target::kNeonDotprod},
    {"neon-bf16", Target::kNeonBf16},
};

bool cpu_has(Target target) {
#if defined(__x86_64__)
  switch (target) {
    case Target::kPortable: return true;
    case Target::kAvx2: return (hwy::SupportedTargets() & kAvx2Targets) != 0;
    case Target::kAvx512: return (hwy::SupportedTargets() & kAvx512Targets) != 0;
    case Target::kAvx512Bf16: return tile_ops_avx512bf16() != nullptr;
    default: return false;
  }
#else
  if (target == Target::kNeonBf16) return tile_ops_neonbf16() != nullptr;
  if (target == Target::kNeonDotprod) return neon_dotprod_target() != nullptr;
  return target == Target::kPortable || target == Target::kNeon;
#endif
}

void limit_highway(Target target) {
#if defined(__x86_64__)
  int64_t disabled = 0;
  if (target < Target::kAvx512) disabled |= kAvx512Targets;
  if (target < Target::kAvx2) disabled |= kAvx2Targets;
  hwy::DisableTargets(disabled);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
#else
  (void)target;  // NEON is the baseline
#endif
}

}  // namespace

bool target_allowed(Target target) { return target <= limit.load(); }

Result<void> limit_target(std::string_view name) {
  std::string names;
  for (const Named& known : kNames) {
    if (name != known.name) {
      names += std::string(names.empty() ? "" : ", ") + known.name;
      continue;
    }
    if (name == "auto") return {};
    if (!cpu_has(known.target)) {
      return Error{Code::kUnsupported, "this CPU has no " + std::string(name) + "; use auto"};
    }
    limit.store(known.target);
    limit_highway(known.target);
    return {};
  }
  return Error{Code::kInvalidArgument,
               "there is no instruction set '" + std::string(name) + "'; use one of " + names};
}

}  // namespace headstart::kernels
