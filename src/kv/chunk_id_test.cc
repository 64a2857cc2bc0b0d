// kv/chunk_id: keys differ whenever model, salt, parent or tokens differ, and stay what they are
// from one release to the next (files on disk are named by them).
#include "kv/chunk_id.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace headstart::kv {
namespace {

Digest digest_of(uint8_t fill) {
  Digest d;
  d.fill(fill);
  return d;
}

TEST(PrefixKey, DiffersByModelSaltParentAndTokens) {
  const std::vector<Token> one = {1, 2, 3}, other = {1, 2, 4};
  std::set<Digest> keys;
  for (uint8_t model : {uint8_t{1}, uint8_t{2}}) {
    for (const char* salt : {"", "a", "b"}) {
      Digest root = prefix_root(digest_of(model), salt);
      keys.insert(root);
      for (const auto& tokens : {one, other}) {
        keys.insert(extend_prefix(root, tokens));
        keys.insert(extend_prefix(extend_prefix(root, tokens), one));
      }
    }
  }
  EXPECT_EQ(keys.size(), 6u * 5u);
}

TEST(ContentKey, DoesNotConfuseSaltAndTokens) {
  // "ab" + {} and "" + the token whose bytes are "ab\0\0".
  EXPECT_NE(content_key(digest_of(1), "ab", {}),
            content_key(digest_of(1), "", std::vector<Token>{0x6261}));
  EXPECT_NE(content_key(digest_of(1), "", std::vector<Token>{7}),
            extend_prefix(prefix_root(digest_of(1), ""), std::vector<Token>{7}));
}

TEST(PrefixKey, IsStableAcrossReleases) {
  // printf 'headstart prefix 1' and 32 bytes 0x07 and 8 zero bytes | sha256sum
  EXPECT_EQ(to_hex(prefix_root(digest_of(7), "")),
            "dd3c041db002e776518c6294eae95e6c57348dfa957e1a2bbb10a2bc2a065f32");
  EXPECT_EQ(to_hex(extend_prefix(digest_of(7), std::vector<Token>{1, -1})),
            "9e356fe56cbd8bb8195e3ccb73be0abd42b8215814bac0b814538a0bdc8caff8");
}

TEST(ChunkId, NamesKeyAndIdentity) {
  ChunkId id{digest_of(0xab), digest_of(0x01)};
  const std::string key = "abababababababababababababababababababababababababababababababab";
  EXPECT_EQ(id.to_string(), key + "-0101010101010101");
}

}  // namespace
}  // namespace headstart::kv
