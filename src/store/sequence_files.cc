#include "store/sequence_files.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <string>

#include "store/chunk_file.h"

namespace headstart::store {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr char kListName[] = "sequence.hssq";
constexpr unsigned char kMagic[8] = {0x89, 'H', 'S', 'S', 'Q', '\r', '\n', 0x1A};
constexpr uint32_t kVersion = 1;

// The list's fixed part; salt, token ids and a checksum of all of it follow.
struct ListHead {
  unsigned char magic[8];
  uint32_t version;
  uint32_t n_token;
  uint32_t n_salt_byte;
  uint32_t reserved;
  Digest fingerprint;
};
static_assert(sizeof(ListHead) == 56);

Error damaged(const std::filesystem::path& file, const std::string& what) {
  return {Code::kCorrupt, file.string() + " " + what + "; save the slot again"};
}

std::vector<std::byte> encode(const Sequence& s) {
  ListHead head = {};
  std::memcpy(head.magic, kMagic, sizeof(kMagic));
  head.version = kVersion;
  head.n_token = static_cast<uint32_t>(s.tokens.size());
  head.n_salt_byte = static_cast<uint32_t>(s.salt.size());
  head.fingerprint = s.fingerprint;
  std::vector<std::byte> bytes;
  const auto add = [&](const void* from, size_t n) {
    const auto* p = static_cast<const std::byte*>(from);
    bytes.insert(bytes.end(), p, p + n);
  };
  add(&head, sizeof(head));
  add(s.salt.data(), s.salt.size());
  add(s.tokens.data(), s.tokens.size() * sizeof(Token));
  const uint64_t sum = checksum(bytes);
  add(&sum, sizeof(sum));
  return bytes;
}

Result<ListHead> read_head(const ReadFile& file, const std::filesystem::path& path) {
  ListHead head;
  if (file.size_bytes() < sizeof(head)) return damaged(path, "ends early");
  HS_RETURN_IF_ERROR(file.read_at(0, std::as_writable_bytes(std::span(&head, 1))));
  if (std::memcmp(head.magic, kMagic, sizeof(kMagic)) != 0) {
    return damaged(path, "is no saved sequence");
  }
  if (head.version > kVersion) {
    return Error{Code::kUnsupported, path.string() + " was saved by a newer version"};
  }
  const bool fits = head.n_token <= kSequenceTokensMax && head.n_salt_byte <= kv::kSaltBytesMax;
  const uint64_t size_bytes =
      sizeof(head) + head.n_salt_byte + uint64_t{head.n_token} * sizeof(Token) + sizeof(uint64_t);
  if (!fits || file.size_bytes() != size_bytes) return damaged(path, "has a wrong length");
  return head;
}

}  // namespace

Result<uint64_t> write_sequence(Disk& disk, const std::filesystem::path& dir,
                                const Sequence& sequence, std::span<const kv::ChunkPtr> chunks) {
  HS_CHECK(
      sequence.tokens.size() <= kSequenceTokensMax && sequence.salt.size() <= kv::kSaltBytesMax,
      "a sequence within its limits");
  HS_RETURN_IF_ERROR(disk.make_private_dir(dir));
  std::set<std::string> kept{kListName};
  uint64_t n_byte = 0;
  for (const kv::ChunkPtr& chunk : chunks) {
    const std::string name = chunk_file_name(chunk->header().meta.id());
    HS_RETURN_IF_ERROR(disk.write_durable(dir / name, chunk->bytes()));
    kept.insert(name);
    n_byte += chunk->bytes().size();
  }
  const auto list = encode(sequence);
  const std::filesystem::path temp = dir / (std::string(kListName) + ".new");
  HS_RETURN_IF_ERROR(disk.write_durable(temp, list));
  HS_RETURN_IF_ERROR(disk.rename_durable(temp, dir / kListName));
  // What an earlier save left. Only files of ours: the folder's name came from a client.
  HS_ASSIGN_OR_RETURN(const auto files, disk.list(dir));
  for (const FileInfo& f : files) {
    if (parse_chunk_file_name(f.name) && !kept.contains(f.name)) {
      HS_RETURN_IF_ERROR(disk.remove(dir / f.name));
    }
  }
  return n_byte + list.size();
}

Result<Sequence> read_sequence(Disk& disk, const std::filesystem::path& dir) {
  const std::filesystem::path path = dir / kListName;
  HS_ASSIGN_OR_RETURN(const auto file, disk.open(path));
  HS_ASSIGN_OR_RETURN(const ListHead head, read_head(*file, path));
  std::vector<std::byte> bytes(file->size_bytes());
  HS_RETURN_IF_ERROR(file->read_at(0, bytes));
  uint64_t sum = 0;
  std::memcpy(&sum, bytes.data() + bytes.size() - sizeof(sum), sizeof(sum));
  if (sum != checksum(std::span(bytes).first(bytes.size() - sizeof(sum)))) {
    return damaged(path, "has a wrong checksum");
  }
  Sequence s;
  s.fingerprint = head.fingerprint;
  const std::byte* at = bytes.data() + sizeof(head);
  s.salt.assign(reinterpret_cast<const char*>(at), head.n_salt_byte);
  s.tokens.resize(head.n_token);
  std::memcpy(s.tokens.data(), at + head.n_salt_byte, s.tokens.size() * sizeof(Token));
  return s;
}

Result<SequenceChunks> read_sequence_chunks(Disk& disk, const std::filesystem::path& dir) {
  HS_ASSIGN_OR_RETURN(const auto files, disk.list(dir));
  SequenceChunks out;
  for (const FileInfo& f : files) {
    if (!parse_chunk_file_name(f.name)) continue;
    const auto file = disk.open(dir / f.name);
    auto chunk = file.ok() ? read_chunk(**file) : Result<kv::ChunkPtr>(file.error());
    if (!chunk.ok()) {
      ++out.n_damaged;
      continue;
    }
    out.size_bytes += (*chunk)->bytes().size();
    out.chunks.push_back(*std::move(chunk));
  }
  return out;
}

}  // namespace headstart::store
