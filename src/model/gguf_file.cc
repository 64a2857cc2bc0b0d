#include "model/gguf_file.h"

#include <fcntl.h>
#include <ggml.h>
#include <gguf.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace headstart::model {

Result<std::unique_ptr<GgufFile>> GgufFile::open(const std::filesystem::path& path) {
  std::unique_ptr<GgufFile> file(new GgufFile);
  file->path_ = path;
  HS_RETURN_IF_ERROR(file->map_file());
  gguf_init_params params{/*no_alloc=*/true, /*ctx=*/&file->tensors_};
  file->gguf_ = gguf_init_from_file(path.c_str(), params);
  if (file->gguf_ == nullptr) {
    return Error{Code::kCorrupt, path.string() + " is no readable GGUF file; fetch it again"};
  }
  HS_RETURN_IF_ERROR(file->check_extents());
  return file;
}

GgufFile::~GgufFile() {
  if (gguf_ != nullptr) gguf_free(gguf_);
  if (tensors_ != nullptr) ggml_free(tensors_);
  if (map_ != nullptr) ::munmap(const_cast<std::byte*>(map_), map_bytes_);
  if (fd_ >= 0) ::close(fd_);
}

Result<void> GgufFile::map_file() {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat st;
  if (fd_ < 0 || ::fstat(fd_, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size < 32) {
    const std::string why = fd_ < 0 ? std::strerror(errno) : "not a GGUF file";
    return Error{Code::kIo, "cannot read the model " + path_.string() + ": " + why};
  }
  map_bytes_ = static_cast<size_t>(st.st_size);
  void* map = ::mmap(nullptr, map_bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  if (map == MAP_FAILED) {
    return Error{Code::kIo, "cannot map " + path_.string() + ": " + std::strerror(errno)};
  }
  ::madvise(map, map_bytes_, MADV_WILLNEED);
  map_ = static_cast<const std::byte*>(map);
  return {};
}

// mincore() would say so too, but of files that this user may not write it says that all of them
// is. A filesystem that cannot tell has every part asked for.
bool GgufFile::resident(size_t offset) const {
  std::byte byte;
  const iovec to{&byte, 1};
  return ::preadv2(fd_, &to, 1, static_cast<off_t>(offset), RWF_NOWAIT) == 1;
}

void GgufFile::read_ahead(std::span<const std::byte> bytes) const {
  // One look a part: all of them together cost far less than asking for what is there.
  constexpr size_t kPart = size_t{1} << 20;
  // Of one request the system reads no more than the disk's own read-ahead, often this much.
  constexpr size_t kRequest = size_t{128} << 10;
  const auto begin = static_cast<size_t>(bytes.data() - map_);
  const size_t end = begin + bytes.size();
  for (size_t part = begin / kPart * kPart; part < end; part += kPart) {
    if (resident(std::max(part, begin))) continue;
    for (size_t at = part; at < std::min(part + kPart, end); at += kRequest) {
      ::posix_fadvise(fd_, static_cast<off_t>(at), kRequest, POSIX_FADV_WILLNEED);
    }
  }
}

Result<void> GgufFile::check_extents() const {
  const size_t data_offset = gguf_get_data_offset(gguf_);
  for (int64_t i = 0; i < gguf_get_n_tensors(gguf_); ++i) {
    const size_t offset = gguf_get_tensor_offset(gguf_, i), size = gguf_get_tensor_size(gguf_, i);
    if (data_offset > map_bytes_ || offset > map_bytes_ - data_offset ||
        size > map_bytes_ - data_offset - offset) {
      return Error{Code::kCorrupt, path_.string() + " ends before its tensor " +
                                       gguf_get_tensor_name(gguf_, i) + "; fetch it again"};
    }
  }
  return {};
}

Result<int64_t> GgufFile::find(const std::string& key, int type) const {
  const int64_t i = gguf_find_key(gguf_, key.c_str());
  if (i >= 0 && gguf_get_kv_type(gguf_, i) != type) {
    return Error{Code::kCorrupt, path_.string() + ": " + key + " has type " +
                                     gguf_type_name(gguf_get_kv_type(gguf_, i)) + ", not " +
                                     gguf_type_name(static_cast<gguf_type>(type))};
  }
  return i;
}

Result<std::optional<uint32_t>> GgufFile::u32(const std::string& key) const {
  HS_ASSIGN_OR_RETURN(const int64_t i, find(key, GGUF_TYPE_UINT32));
  return i < 0 ? std::nullopt : std::optional(gguf_get_val_u32(gguf_, i));
}

Result<std::optional<float>> GgufFile::f32(const std::string& key) const {
  HS_ASSIGN_OR_RETURN(const int64_t i, find(key, GGUF_TYPE_FLOAT32));
  return i < 0 ? std::nullopt : std::optional(gguf_get_val_f32(gguf_, i));
}

Result<std::optional<std::string>> GgufFile::string(const std::string& key) const {
  HS_ASSIGN_OR_RETURN(const int64_t i, find(key, GGUF_TYPE_STRING));
  return i < 0 ? std::nullopt : std::optional<std::string>(gguf_get_val_str(gguf_, i));
}

Result<std::optional<std::vector<bool>>> GgufFile::flags(const std::string& key) const {
  HS_ASSIGN_OR_RETURN(const int64_t i, find(key, GGUF_TYPE_ARRAY));
  if (i < 0) return std::optional<std::vector<bool>>();
  if (gguf_get_arr_type(gguf_, i) != GGUF_TYPE_BOOL) {
    return Error{Code::kCorrupt, path_.string() + ": " + key + " is no array of flags"};
  }
  const auto* values = static_cast<const int8_t*>(gguf_get_arr_data(gguf_, i));
  return std::optional(std::vector<bool>(values, values + gguf_get_arr_n(gguf_, i)));
}

ggml_tensor* GgufFile::tensor(const std::string& name) const {
  return ggml_get_tensor(tensors_, name.c_str());
}

std::span<const std::byte> GgufFile::data(const ggml_tensor* t) const {
  const int64_t i = gguf_find_tensor(gguf_, t->name);
  HS_CHECK(i >= 0, "a tensor of another file");
  return mapping().subspan(gguf_get_data_offset(gguf_) + gguf_get_tensor_offset(gguf_, i),
                           gguf_get_tensor_size(gguf_, i));
}

}  // namespace headstart::model
