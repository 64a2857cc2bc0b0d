#include "tests/soak/chunk_folder.h"

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "store/chunk_file.h"

namespace headstart::test {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> entries(const fs::path& dir) {
  std::vector<fs::path> out;
  std::error_code gone;
  for (fs::directory_iterator it(dir, gone), end; !gone && it != end; it.increment(gone)) {
    out.push_back(it->path());
  }
  return out;
}

std::vector<fs::path> chunks(const fs::path& dir) {
  auto files = entries(dir);
  std::erase_if(files, [](const fs::path& file) {
    return !store::parse_chunk_file_name(file.filename().string());
  });
  std::sort(files.begin(), files.end());  // the same choice for the same seed
  return files;
}

std::string read(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string noise(size_t size, std::mt19937_64& random) {
  std::string out(size, '\0');
  for (char& c : out) c = static_cast<char>(random());
  return out;
}

// In place: a tier may have the file open.
void write_at(const fs::path& file, size_t at, const std::string& bytes) {
  std::fstream out(file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(static_cast<std::streamoff>(at));
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

uint64_t folder_bytes(const fs::path& dir) {
  std::map<ino_t, uint64_t> size_of;
  for (const fs::path& file : entries(dir)) {
    struct stat s {};
    if (::stat(file.c_str(), &s) == 0) size_of[s.st_ino] = static_cast<uint64_t>(s.st_size);
  }
  uint64_t sum = 0;
  for (const auto& [inode, size] : size_of) sum += size;
  return sum;
}

size_t n_temp_file(const fs::path& dir) {
  const auto files = entries(dir);
  return static_cast<size_t>(std::count_if(files.begin(), files.end(), [](const fs::path& file) {
    return store::parse_temp_file_name(file.filename().string()).has_value();
  }));
}

bool damage_one(const fs::path& dir, std::mt19937_64& random) {
  const auto files = chunks(dir);
  if (files.empty()) return false;
  const fs::path& file = files[random() % files.size()];
  std::error_code gone;  // evicted meanwhile
  const std::string bytes = read(file);
  if (bytes.empty()) return false;
  const size_t at = random() % bytes.size();
  switch (random() % 5) {
    case 0: write_at(file, at, noise(std::min<size_t>(bytes.size() - at, 4096), random)); break;
    case 1: fs::resize_file(file, at, gone); break;
    case 2: fs::remove(file, gone); break;
    case 3: fs::resize_file(file, 0, gone); break;
    case 4: {
      const std::string other = read(files[random() % files.size()]);
      if (other.size() > bytes.size()) return false;
      write_at(file, 0, other);
      fs::resize_file(file, other.size(), gone);
    }
  }
  return true;
}

}  // namespace headstart::test
