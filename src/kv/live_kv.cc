#include "kv/live_kv.h"

#include <ggml-cpu.h>
#include <ggml.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace headstart::kv {
namespace {

ggml_type ggml_type_of(LiveType type) {
  return type == LiveType::kF16 ? GGML_TYPE_F16 : GGML_TYPE_Q8_0;
}

size_t whole_pages(size_t bytes) {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return (bytes + page - 1) / page * page;
}

}  // namespace

Result<LiveType> live_type_from_name(std::string_view name) {
  if (name == "f16") return LiveType::kF16;
  if (name == "q8_0") return LiveType::kQ8_0;
  return Error{Code::kInvalidArgument,
               "cache type '" + std::string(name) + "' is not supported; use f16 or q8_0"};
}

std::string_view to_string(LiveType type) { return type == LiveType::kF16 ? "f16" : "q8_0"; }

Result<std::unique_ptr<LiveKv>> LiveKv::open(const KvShape& shape, LiveType type_k, LiveType type_v,
                                             uint32_t n_ctx) {
  std::unique_ptr<LiveKv> kv(new LiveKv);
  kv->shape_ = shape;
  kv->n_ctx_ = n_ctx;
  kv->types_[0] = type_k;
  kv->types_[1] = type_v;
  for (Part part : {Part::kKey, Part::kValue}) {
    const auto i = static_cast<size_t>(part);
    const ggml_type type = ggml_type_of(kv->types_[i]);
    const uint32_t d_head = part == Part::kKey ? shape.d_head_k : shape.d_head_v;
    if (d_head % static_cast<uint32_t>(ggml_blck_size(type)) != 0) {
      return Error{Code::kUnsupported, "heads of size " + std::to_string(d_head) +
                                           " do not fit the q8_0 cache type; use f16"};
    }
    kv->row_bytes_[i] = ggml_row_size(type, static_cast<int64_t>(shape.row_values(part)));
    kv->region_bytes_[i] = whole_pages(kv->row_bytes_[i] * n_ctx);
  }
  kv->mapped_bytes_ = shape.n_layer * (kv->region_bytes_[0] + kv->region_bytes_[1]);
  void* map = ::mmap(nullptr, kv->mapped_bytes_, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) {
    return Error{Code::kExhausted, "no address space for a context of " + std::to_string(n_ctx) +
                                       " tokens; use a smaller -c"};
  }
  kv->base_ = static_cast<std::byte*>(map);
  return kv;
}

LiveKv::~LiveKv() {
  if (base_ != nullptr) ::munmap(base_, mapped_bytes_);
}

std::byte* LiveKv::row(uint32_t layer, Part part, uint32_t pos) const {
  HS_CHECK(layer < shape_.n_layer && pos < n_ctx_, "a row outside the live cache");
  const size_t region =
      layer * (region_bytes_[0] + region_bytes_[1]) + (part == Part::kValue ? region_bytes_[0] : 0);
  return base_ + region + pos * row_bytes(part);
}

uint64_t LiveKv::bytes_for(uint32_t n_token) const {
  return uint64_t{n_token} * shape_.n_layer * (row_bytes_[0] + row_bytes_[1]);
}

void LiveKv::write(uint32_t layer, Part part, uint32_t pos, std::span<const Half> values) {
  std::byte* to = row(layer, part, pos);
  if (type(part) == LiveType::kF16) {
    std::memcpy(to, values.data(), values.size_bytes());
    return;
  }
  thread_local std::vector<float> wide;
  wide.resize(values.size());
  kernels::to_float(values, wide.data());
  ggml_get_type_traits_cpu(GGML_TYPE_Q8_0)
      ->from_float(wide.data(), to, static_cast<int64_t>(wide.size()));
}

void LiveKv::release(uint32_t n_token) {
  for (uint32_t layer = 0; layer < shape_.n_layer; ++layer) {
    for (Part part : {Part::kKey, Part::kValue}) {
      const size_t used = whole_pages(n_token * row_bytes(part));
      const size_t region = region_bytes_[static_cast<size_t>(part)];
      if (used < region) ::madvise(row(layer, part, 0) + used, region - used, MADV_DONTNEED);
    }
  }
}

}  // namespace headstart::kv
