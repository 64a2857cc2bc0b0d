// model/gguf_file.h: a GGUF file, mapped read-only, with typed and checked metadata.
//
//   units    bytes
//   threads  const methods may be called from any thread at once
//   source   ggml's gguf.h parses the header; every tensor's extent is checked against the file
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

struct ggml_context;
struct ggml_tensor;
struct gguf_context;

namespace headstart::model {

class GgufFile {
 public:
  // Errors: kIo, kCorrupt (not a GGUF, or tensors beyond the file's end).
  static Result<std::unique_ptr<GgufFile>> open(const std::filesystem::path& path);
  ~GgufFile();
  GgufFile(const GgufFile&) = delete;
  GgufFile& operator=(const GgufFile&) = delete;

  const std::filesystem::path& path() const { return path_; }
  // Nothing where the key is absent. Errors: kCorrupt where it has another type.
  Result<std::optional<uint32_t>> u32(const std::string& key) const;
  Result<std::optional<float>> f32(const std::string& key) const;
  Result<std::optional<std::string>> string(const std::string& key) const;
  // One flag a layer, stored as an array of bool. Nothing where absent.
  Result<std::optional<std::vector<bool>>> flags(const std::string& key) const;

  ggml_context* tensors() const { return tensors_; }            // metadata of every tensor, no data
  ggml_tensor* tensor(const std::string& name) const;           // null where absent
  std::span<const std::byte> data(const ggml_tensor* t) const;  // of a tensor of this file
  std::span<const std::byte> mapping() const { return {map_, map_bytes_}; }
  // Asks the system to read these bytes of the mapping from the file, but for what is in memory;
  // does not wait for the disk.
  void read_ahead(std::span<const std::byte> bytes) const;

 private:
  GgufFile() = default;
  Result<int64_t> find(const std::string& key, int type) const;  // -1 where absent
  Result<void> map_file();
  Result<void> check_extents() const;
  bool resident(size_t offset) const;

  std::filesystem::path path_;
  gguf_context* gguf_ = nullptr;
  ggml_context* tensors_ = nullptr;
  int fd_ = -1;
  const std::byte* map_ = nullptr;
  size_t map_bytes_ = 0;
};

}  // namespace headstart::model
