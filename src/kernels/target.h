// kernels/target.h: the instruction sets that kernels may use.
//
// Each kernel takes the best of this CPU at run time. A limit takes the better ones away, for
// comparing them and for giving two machines the same bits.
//
//   threads  limit_target() once, before any kernel runs
#pragma once

#include <string_view>

#include "base/result.h"

namespace headstart::kernels {

enum class Target : uint8_t {
  kPortable,
  kAvx2,
  kAvx512,
  kAvx512Bf16,
  kNeon,
  kNeonDotprod,
  kNeonBf16
};

// False where a limit excludes it; says nothing of the CPU.
bool target_allowed(Target target);

// auto, portable, avx2, avx512, avx512bf16, neon, neon-dotprod, neon-bf16 (with i8mm): this one and
// what is below it on the same kind of CPU. Errors: kInvalidArgument (no such name), kUnsupported
// (this CPU lacks it).
Result<void> limit_target(std::string_view name);

}  // namespace headstart::kernels
