// model/fingerprint.h: what a model is, whatever its file is called.
//
// SHA-256 over the GGUF's bytes. Adapters and rope overrides will be hashed in when they exist.
// Hashing a large file takes seconds, so the digest is cached beside inode, size and mtime.
#pragma once

#include <filesystem>
#include <functional>

#include "base/hash.h"
#include "base/result.h"

namespace headstart::model {

// `cache_dir` keeps the digests (created if needed); empty: always hash. A cache that cannot be
// read or written is ignored. `progress` hears the share hashed; may be empty. Errors: kIo.
Result<Digest> fingerprint(const std::filesystem::path& gguf,
                           const std::filesystem::path& cache_dir,
                           const std::function<void(double)>& progress = {});

}  // namespace headstart::model
