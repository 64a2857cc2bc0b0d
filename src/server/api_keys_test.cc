// Proves that exactly the configured keys are principals, that key files are read within limits and
// never quoted, and that principals' salts differ. To add a case: a key, or a file's text.
#include "server/api_keys.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <set>

#include "tests/support/temp_dir.h"

namespace headstart::server {
namespace {

ApiKeys keys_of(std::vector<std::string> keys) {
  auto made = ApiKeys::of(keys);
  EXPECT_TRUE(made.ok());
  return made.ok() ? *std::move(made) : ApiKeys();
}

class KeyFileTest : public ::testing::Test {
 protected:
  std::filesystem::path file(const std::string& text, mode_t mode = 0600) {
    const auto path = dir_ / "keys";
    std::ofstream(path, std::ios::binary) << text;
    ::chmod(path.c_str(), mode);
    return path;
  }
  // The error's message.
  std::string fault(const std::string& text) {
    const auto read = read_key_file(file(text));
    return read.ok() ? "" : read.error().message;
  }
  test::TempDir dir_;
};

TEST(ApiKeysTest, FindsExactlyItsKeys) {
  const ApiKeys keys = keys_of({"sk-one", "sk-two", "sk-three"});
  for (const char* key : {"sk-one", "sk-two", "sk-three"}) EXPECT_TRUE(keys.find(key)) << key;
  for (const char* key : {"", "sk-on", "sk-onee", "SK-ONE", "sk-one ", "sk-four"}) {
    EXPECT_FALSE(keys.find(key)) << key;
  }
  EXPECT_FALSE(keys.find(std::string("sk-one\0x", 8)));
  EXPECT_FALSE(keys.find(std::string(1 << 20, 'x')));
  EXPECT_FALSE(ApiKeys().find(""));
}

TEST(ApiKeysTest, KeyOfTheGreatestLengthIsNoPrefixOfALongerOne) {
  const std::string longest(kKeyBytesMax, 'k');
  const ApiKeys keys = keys_of({longest});
  EXPECT_TRUE(keys.find(longest));
  EXPECT_FALSE(keys.find(longest + "k"));
}

TEST(ApiKeysTest, PrincipalsAreTheSameInEveryProcessAndDifferByKey) {
  const ApiKeys a = keys_of({"one", "two"}), b = keys_of({"two"});
  EXPECT_EQ(*a.find("two"), *b.find("two"));
  EXPECT_NE(*a.find("one"), *a.find("two"));
}

TEST(ApiKeysTest, SaltsDifferByPrincipalAndClientSaltAndHoldNoKey) {
  const ApiKeys keys = keys_of({"one", "two"});
  std::set<std::string> salts;
  for (const char* key : {"one", "two"}) {
    for (const char* salt : {"", "a", "b"}) salts.insert(salt_of(*keys.find(key), salt));
  }
  EXPECT_EQ(salts.size(), 6u);
  for (const std::string& salt : salts) {
    EXPECT_EQ(salt.size(), 64u);
    EXPECT_EQ(salt.find_first_not_of("0123456789abcdef"), std::string::npos);
  }
}

TEST(ApiKeysTest, RefusesKeysThatNoHeaderCarriesWithoutQuotingThem) {
  for (const std::string& key : {std::string(), std::string("my secret"), std::string("tab\tbed"),
                                 std::string("caf\xc3\xa9"), std::string(kKeyBytesMax + 1, 'x')}) {
    const auto made = ApiKeys::of(std::vector{key});
    ASSERT_FALSE(made.ok()) << key;
    EXPECT_EQ(made.error().code, Code::kInvalidArgument);
    EXPECT_TRUE(key.empty() || made.error().message.find(key) == std::string::npos);
  }
  EXPECT_FALSE(ApiKeys::of(std::vector<std::string>(kKeysMax + 1, "x")).ok());
}

TEST_F(KeyFileTest, ReadsOneKeyALine) {
  const auto read =
      read_key_file(file("# of the team\n\n  sk-one \r\nsk-two#2\n\t# no more\nsk-3"));
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(read->keys, (std::vector<std::string>{"sk-one", "sk-two#2", "sk-3"}));
  EXPECT_FALSE(read->readable_by_others);
}

TEST_F(KeyFileTest, SeesWhoElseMayReadIt) {
  EXPECT_TRUE(read_key_file(file("k\n", 0644))->readable_by_others);
  EXPECT_FALSE(read_key_file(file("k\n", 0640))->readable_by_others);
}

TEST_F(KeyFileTest, NamesTheFaultAndNeverTheKey) {
  EXPECT_NE(fault("# c\nsecret key\n").find("keys:2: "), std::string::npos);
  EXPECT_EQ(fault("# c\nsecret key\n").find("secret"), std::string::npos);
  EXPECT_NE(fault("# nothing\n").find("holds no API key"), std::string::npos);
  EXPECT_NE(fault(std::string(kKeyFileBytesMax + 1, '#')).find("1 MiB"), std::string::npos);
  const auto missing = read_key_file(dir_ / "missing");
  ASSERT_FALSE(missing.ok());
  EXPECT_NE(missing.error().message.find("missing"), std::string::npos);
  EXPECT_FALSE(read_key_file(dir_ / "").ok());  // a folder
}

}  // namespace
}  // namespace headstart::server
