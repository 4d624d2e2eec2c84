// How files get their names: whole, and nobody else's unless that is asked for.
#include "tape/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>

#include "moetape/output_file.h"
#include "tape/index.h"
#include "tape/tape_test_util.h"

namespace moetape::inline v0 {
namespace {

namespace fs = std::filesystem;
using testing::ElementsAre;
using testing::IsEmpty;

using OutputFiles = InFolder;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string text_of(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST_F(OutputFiles, AppearWholeAtTheEnd) {
  OutputFile file = value_of(OutputFile::create(path("page.html")));
  expect_ok(file.write(bytes_of("<html>")));
  OutputFile moved = std::move(file);
  expect_ok(moved.write(bytes_of("</html>")));
  EXPECT_EQ(text_of(moved.hidden_path()), "<html></html>");
  EXPECT_FALSE(fs::exists(path("page.html")));
  expect_ok(moved.finish());
  EXPECT_EQ(text_of(path("page.html")), "<html></html>");
  EXPECT_THAT(names(), ElementsAre("page.html"));
  struct stat status{};
  ASSERT_EQ(stat(path("page.html").c_str(), &status), 0);
  const mode_t mask = umask(0);
  umask(mask);
  EXPECT_EQ(status.st_mode & 0777, 0666 & ~mask);
  expect_error(moved.write(bytes_of("more")), ErrorCode::kClosed, "page.html: expected a file that is being");
  expect_error(moved.finish(), ErrorCode::kClosed, "finished");
}

TEST_F(OutputFiles, LeaveNothingWhereTheyAreGivenUp) {
  {
    expect_ok(value_of(OutputFile::create(path("page.html"))).write(bytes_of("half")));
  }
  EXPECT_THAT(names(), IsEmpty());
}

TEST_F(OutputFiles, ReplaceAFileOnlyWhereAsked) {
  write_file(path("page.html"), bytes_of("old"));
  expect_error(OutputFile::create(path("page.html")), ErrorCode::kConflict,
               "page.html: expected no file there, since overwrite is not set");
  fs::create_symlink("page.html", folder_ / "link");
  expect_error(OutputFile::create(path("link")), ErrorCode::kConflict, "page.html: expected no file there");
  OutputFile file = value_of(OutputFile::create(path("link"), true));
  expect_ok(file.write(bytes_of("new")));
  EXPECT_EQ(text_of(path("page.html")), "old");
  expect_ok(file.finish());
  EXPECT_EQ(text_of(path("page.html")), "new");
  EXPECT_THAT(names(), ElementsAre("link", "page.html"));
}

TEST_F(OutputFiles, TakeNoNameThatAnotherTookMeanwhile) {
  {
    OutputFile file = value_of(OutputFile::create(path("page.html")));
    expect_ok(file.write(bytes_of("mine")));
    write_file(path("page.html"), bytes_of("another's"));
    expect_error(file.finish(), ErrorCode::kConflict, "page.html: expected no file there");
    EXPECT_EQ(text_of(path("page.html")), "another's");
    fs::rename(path("page.html"), path("kept.html"));
    expect_ok(file.finish());
    EXPECT_EQ(text_of(path("page.html")), "mine");
    OutputFile loser = value_of(OutputFile::create(path("third.html")));
    fs::create_symlink("nowhere", folder_ / "third.html");
    expect_error(loser.finish(), ErrorCode::kConflict, "third.html");
  }
  EXPECT_THAT(names(), ElementsAre("kept.html", "page.html", "third.html"));
}

TEST_F(OutputFiles, AreRegularFilesInFoldersThatAreThere) {
  expect_error(OutputFile::create(folder_, true), ErrorCode::kInvalidArgument, "got a folder");
  expect_error(OutputFile::create("/dev/null", true), ErrorCode::kInvalidArgument, "got something else");
  expect_error(OutputFile::create(path("none/page.html")), ErrorCode::kIo, "No such file or directory");
  write_file(path("file"), bytes_of(""));
  expect_error(OutputFile::create(path("file/page.html")), ErrorCode::kIo, "Not a directory");
  EXPECT_THAT(names(), ElementsAre("file"));
}

// The name itself may be as long as the system allows: what is added to hidden ones and shards is not.
TEST_F(OutputFiles, HaveNamesAsLongAsTheSystemAllows) {
  std::string longest;
  while (longest.size() < tape::kMaxNameBytes - 5) longest += "ü";
  longest = longest.substr(0, tape::kMaxNameBytes - 5) + ".tape";
  OutputFile file = value_of(OutputFile::create(path(longest)));
  expect_ok(file.finish());
  EXPECT_THAT(names(), ElementsAre(longest));
  expect_error(OutputFile::create(path(longest + "x")), ErrorCode::kIo, "File name too long");
  const std::string shard = tape::shard_name(longest, 0, 100'000, "5e1c09af");
  EXPECT_LE(shard.size(), tape::kMaxNameBytes);
  EXPECT_TRUE(shard.ends_with("ü-00001-of-100000-5e1c09af.tape")) << shard;
}

TEST(Names, AreCutBetweenCharacters) {
  EXPECT_EQ(tape::cut_text("aü", 3), "aü");
  EXPECT_EQ(tape::cut_text("aü", 2), "a");
  EXPECT_EQ(tape::cut_text("ü", 1), "");
  EXPECT_EQ(tape::cut_text("", 0), "");
  EXPECT_LT(tape::hidden_name(std::string(255, 'n')).size(), 130u);
}

// File systems without the first way have the second or the third.
TEST_F(OutputFiles, EveryWayTakesAFreeNameAndNoOther) {
  for (const auto take : {tape::take_by_rename, tape::take_by_link, tape::take_by_reserving}) {
    write_file(path("from"), bytes_of("new"));
    write_file(path("to"), bytes_of("old"));
    EXPECT_EQ(take(path("from"), path("to")), EEXIST);
    EXPECT_EQ(text_of(path("from")), "new");
    EXPECT_EQ(text_of(path("to")), "old");
    fs::remove(path("to"));
    EXPECT_EQ(take(path("from"), path("to")), 0);
    EXPECT_EQ(text_of(path("to")), "new");
    EXPECT_THAT(names(), ElementsAre("to"));
    EXPECT_EQ(take(path("from"), path("other")), ENOENT);
    EXPECT_THAT(names(), ElementsAre("to"));
  }
}

}  // namespace
}  // namespace moetape::inline v0
