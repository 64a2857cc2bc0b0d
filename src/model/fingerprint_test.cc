// Proves that a model's identity is its bytes: the digest is SHA-256 of the file, a cached digest
// is used only while the file is unchanged, and a useless cache never fails.
#include "model/fingerprint.h"

#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temp_dir.h"

namespace headstart::model {
namespace {

namespace fs = std::filesystem;

class Fingerprint : public testing::Test {
 protected:
  void write(const std::string& text) { std::ofstream(file(), std::ios::binary) << text; }
  fs::path file() const { return dir_ / "model.gguf"; }
  std::string hex(const fs::path& cache = {}) const {
    const auto digest = fingerprint(file(), cache);
    EXPECT_TRUE(digest.ok());
    return digest.ok() ? to_hex(*digest) : "";
  }
  test::TempDir dir_;
};

TEST_F(Fingerprint, IsTheSha256OfTheFile) {
  write("abc");  // FIPS 180-2's example
  EXPECT_EQ(hex(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST_F(Fingerprint, ACachedDigestIsUsedWhileTheFileIsUnchanged) {
  write("abc");
  const fs::path cache = dir_ / "digests";
  const std::string first = hex(cache);
  ASSERT_EQ(std::distance(fs::directory_iterator(cache), fs::directory_iterator()), 1);
  const fs::path entry = fs::directory_iterator(cache)->path();
  std::string stamp, digest;
  std::ifstream(entry) >> stamp >> digest;
  EXPECT_EQ(digest, first);
  // Another digest under the same stamp: if it comes back, the file was not hashed again.
  const std::string marker(64, 'a');
  std::ofstream(entry) << stamp << " " << marker << "\n";
  EXPECT_EQ(hex(cache), marker);
}

TEST_F(Fingerprint, AChangedFileIsHashedAgain) {
  write("abc");
  const fs::path cache = dir_ / "digests";
  const std::string first = hex(cache);
  write("abd");
  fs::last_write_time(file(), fs::last_write_time(file()) + std::chrono::seconds(2));
  EXPECT_NE(hex(cache), first);
  EXPECT_EQ(hex(cache), hex());
}

TEST_F(Fingerprint, ADamagedOrUnusableCacheIsIgnored) {
  write("abc");
  const fs::path cache = dir_ / "digests";
  const std::string want = hex(cache);
  std::ofstream(fs::directory_iterator(cache)->path()) << "nonsense";
  EXPECT_EQ(hex(cache), want);
  EXPECT_EQ(hex(dir_ / "model.gguf" / "below-a-file"), want);
}

TEST_F(Fingerprint, AMissingFileIsAnError) {
  const auto digest = fingerprint(dir_ / "absent.gguf", {});
  ASSERT_FALSE(digest.ok());
  EXPECT_EQ(digest.error().code, Code::kIo);
}

}  // namespace
}  // namespace headstart::model
