// tests/soak/chunk_folder.h: a folder of chunks seen from outside: what it takes, and damage to it.
//
//   threads  any; others may write to the folder meanwhile
#pragma once

#include <cstdint>
#include <filesystem>
#include <random>

namespace headstart::test {

// Bytes of all files, temporary ones included. A file that is renamed meanwhile counts once; one
// that comes while another goes may make the sum too large, never too small for the moment of the
// call.
uint64_t folder_bytes(const std::filesystem::path& dir);
size_t n_temp_file(const std::filesystem::path& dir);

// Overwrites a part of, cuts, empties or removes one chunk, or puts another's bytes under its name.
// Nothing grows. False where there is no chunk.
bool damage_one(const std::filesystem::path& dir, std::mt19937_64& random);

}  // namespace headstart::test
